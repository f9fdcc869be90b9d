"""Bulk copies: what they require of their operands, and what a reduction computes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.table import form_of
from gemmkit.emulator.isa.types import TYPES

# What the size, and both addresses, must be a multiple of.
UNIT = 16


def is_reduction(form: Form) -> bool:
    """Whether a bulk copy combines its source with its destination."""
    return "O" in form.modifiers


def check_copy(form: Form, to: int, start: int, nbytes: int) -> None:
    """Check the operands of a bulk copy: addresses in their spaces, and bytes.

    Raises:
        Misuse: one is not a multiple of 16.
    """
    if form.operation == "bulk_store":
        if to % nbytes:
            raise Misuse(
                "misaligned",
                f"stores {nbytes} bytes at the shared address {to:#x}, which is not a multiple of "
                f"{nbytes}",
            )
        return
    if nbytes % UNIT:
        raise Misuse(
            "invalid size",
            f"copies {nbytes:,} bytes; the size of a bulk copy must be a multiple of {UNIT}",
        )
    for name, space, address in (
        ("destination", form["D"], to),
        ("source", form["F"], start),
    ):
        if address % UNIT:
            raise Misuse(
                "misaligned",
                f"copies {nbytes:,} bytes, but the {name} in {space} memory, {address:#x}, is not "
                f"a multiple of {UNIT}",
            )


def check_barrier(to: int, barrier: int) -> None:
    """Check that the destination of a copy and its mbarrier, in the blocks of these ranks, are in
    the same one.

    Raises:
        Misuse: they are not.
    """
    if to != barrier:
        raise Misuse(
            "invalid mbarrier",
            f"writes to the block of rank {to} and names an mbarrier of rank {barrier}; both must "
            "be in the same block",
        )


def combined(form: Form, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The destination of a bulk reduction, element by element."""
    of = TYPES[form["T"]]
    before, operand = (each.copy().view(f"u{of.bytes}") for each in (old, new))
    if form["O"] == "inc":
        result = np.where(before >= operand, 0, before + 1)
    elif form["O"] == "dec":
        result = np.where((before == 0) | (before > operand), operand, before - 1)
    else:
        definition = form_of(f"{form['O']}.{form['T']}")
        assert definition is not None
        result = evaluate(definition, [before, operand])[0]
    return np.ascontiguousarray(result.astype(before.dtype)).view(np.uint8)
