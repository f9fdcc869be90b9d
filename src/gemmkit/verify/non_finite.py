"""NaN in place of an infinity, as kernels give whose method subtracts an infinity from itself.

A kernel that splits operands into parts of a narrower type computes the low part of an element x as
x − high(x), which is NaN for an infinite x. Compensated summation subtracts an infinite sum from
itself, and so does Winograd's inner product, unless the signs differ. That is a limitation of the
method and no fault of its code; cuSOLVER and cuBLAS, too, make infinities an option of their
emulated fp32. It is told apart from an infinity that is multiplied by zero past the end of a row or
column, which has the same effect on some of the products only: those with an infinity at that end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.storage import Stored
from gemmkit.verify.encoding import decode, is_canary
from gemmkit.verify.inputs import Inputs, matrices
from gemmkit.verify.reference import Expected


def nan_for_infinity(
    problem: GemmProblem, inputs: Inputs, stored: Stored, expected: Expected, *, always: bool
) -> NDArray[np.bool_] | None:
    """The elements of an m × n result that are wrong for holding NaN in place of an infinite sum.

    None where an infinite sum is wrong otherwise. Of those with infinite terms before the last step
    of k and none in it, some have to be NaN; all of those with any before it where `always` says
    that the method makes NaN of every infinity, as the splitting of operands does. After a ReLU,
    the zero that it makes of NaN counts as well.
    """
    infinite = np.isinf(expected.before)
    if inputs.kind != "non-finite" or not infinite.any():
        return None
    a, b, _ = (np.isinf(each[:]) for each in matrices(problem, inputs))
    early = infinite & np.logical_or.outer(a[:, :-1].any(axis=1), b[:-1].any(axis=0))
    late = np.logical_or.outer(a[:, -1], b[-1])
    found = decode(stored, problem.result_dtype)
    lost = np.isnan(found) & ~is_canary(stored, problem.result_dtype)
    if problem.epilogue.activation == "relu":
        lost |= found == 0
    wrong: NDArray[np.bool_] = infinite & (found != expected.values)
    if not wrong.any() or not lost[wrong].all():
        return None
    by_method = lost[early].all() and early.any() if always else (lost & early & ~late).any()
    return wrong if by_method else None


def note(count: int) -> str:
    """What to tell of that many elements of a result."""
    elements = "1 element is" if count == 1 else f"{count:,} elements are"
    return (
        f"non-finite operands: {elements} NaN instead of infinite, as when a method subtracts an "
        "infinity from itself (operands split into parts, compensated sums); all other elements "
        "are right"
    )
