"""What each register-to-register form of the instruction table computes, on arrays of raw bits.

This definition is authoritative for both executors. It is written for clarity, and exact except for
the `.approx` functions, which are float64 evaluations rounded to the result's type and differ from
the hardware's in the last bits. A NaN result is the canonical one of its type; PTX guarantees no
payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics import bits, compare, convert, floating, fp8, half, integer
from gemmkit.emulator.isa.semantics.raw import Operation, Raw

OPERATIONS: Mapping[str, Operation] = {
    **integer.OPERATIONS,
    **bits.OPERATIONS,
    **floating.OPERATIONS,
    **half.OPERATIONS,
    **compare.OPERATIONS,
    **convert.OPERATIONS,
    **fp8.OPERATIONS,
}


def evaluate(form: Form, sources: Sequence[Raw | int]) -> tuple[Raw, ...]:
    """The results of a form.

    Args:
        form: one whose operation is in `OPERATIONS`.
        sources: all operands but the destinations, in order: raw bits in unsigned arrays of the
            operands' widths (bool for predicates), of shapes that broadcast; an immediate of the
            form (as in `lop3`) is an int. A form that takes the carry (`addc`) has it, as bool,
            as its last source.

    Returns:
        One array per destination, of the destination's width. A comparison gives the predicate
        and its complement, as in `p|q`; a form that sets the carry gives it last.
    """
    with np.errstate(all="ignore"):
        results = OPERATIONS[form.operation](form, *sources)
    return results if isinstance(results, tuple) else (results,)


def reads_carry(form: Form) -> bool:
    """Whether the condition code's carry is an additional source."""
    return form.operation == "carry_in" or (form.operation == "carry_out" and form["I"] == "c")


def writes_carry(form: Form) -> bool:
    """Whether the condition code's carry is an additional result."""
    return form.operation == "carry_out"
