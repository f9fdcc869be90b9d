"""NaN in place of an infinity, as kernels give that split operands into parts of a narrower type.

Such a kernel computes the low part of an element x as x − high(x), which is NaN for an infinite x:
every product with an infinite operand is NaN. That is a limitation of the method and no fault of
its code; cuSOLVER and cuBLAS, too, make infinities an option of their emulated fp32. It is told
apart from an infinity that is multiplied by zero past the end of a row or column, which has the
same effect on some of the products only: those with an infinity at that end.
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
    problem: GemmProblem, inputs: Inputs, stored: Stored, expected: Expected
) -> NDArray[np.bool_] | None:
    """The elements of an m × n result that are wrong for holding NaN in place of an infinite sum.

    None unless that is so for every infinite sum, and one of these is due to an infinity before the
    last step of k. After a ReLU, the zero that it makes of NaN counts as well.
    """
    infinite = np.isinf(expected.before)
    if inputs.kind != "non-finite" or not infinite.any():
        return None
    a, b, _ = (each[:] for each in matrices(problem, inputs))
    rows, columns = np.isinf(a[:, :-1]).any(axis=1), np.isinf(b[:-1]).any(axis=0)
    if not infinite[rows].any() and not infinite[:, columns].any():
        return None
    found = decode(stored, problem.result_dtype)
    lost = np.isnan(found) & ~is_canary(stored, problem.result_dtype)
    if problem.epilogue.activation == "relu":
        lost |= found == 0
    wrong: NDArray[np.bool_] = infinite & (found != expected.values)
    return wrong if wrong.any() and lost[infinite].all() else None


def note(count: int) -> str:
    """What to tell of that many elements of a result."""
    elements = "1 element is" if count == 1 else f"{count:,} elements are"
    return (
        f"non-finite operands: {elements} NaN instead of infinite, as when operands are split into "
        "parts of a narrower type; all other elements are right"
    )
