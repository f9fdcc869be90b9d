"""The exact result, in float64 and by the BLAS rules, with the magnitudes that its bound needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.epilogue import LARGEST_FLOAT
from gemmkit.problem import GemmProblem
from gemmkit.verify.bounds import Rounding, single
from gemmkit.verify.inputs import Inputs, matrices

Selection = slice | NDArray[np.intp]
EVERYTHING = slice(None)

# Elements of one panel of A or B held in float64: 16 MiB.
PANEL_ELEMENTS = 2**21


@dataclass(frozen=True, slots=True)
class Expected:
    """What rows × columns of the result must be.

    `values` are after the activation; `before` and `magnitude` are α·A·B + β·C + bias and the sum
    of its terms' magnitudes, S of `bounds`.
    """

    values: NDArray[np.float64]
    before: NDArray[np.float64]
    magnitude: NDArray[np.float64]


def evaluate(
    problem: GemmProblem,
    inputs: Inputs,
    rows: Selection = EVERYTHING,
    columns: Selection = EVERYTHING,
) -> Expected:
    """Compute the chosen rows and columns of the result: 4 · rows · columns · k operations.

    β = 0 never reads C, and α = 0 never reads A or B.
    """
    m, n, k = problem.m, problem.n, problem.k
    alpha, beta = single(problem.alpha), single(problem.beta)
    shape = (_count(m, rows), _count(n, columns))
    before, magnitude = np.zeros(shape), np.zeros(shape)
    a, b, c = matrices(problem, inputs)
    with np.errstate(all="ignore"):
        if alpha != 0 and k:
            _multiply(a[rows], b[:, columns], before, magnitude)
            before *= alpha
            magnitude *= abs(alpha)
        if beta != 0:
            addend = beta * c[rows][:, columns].astype(float)
            before += addend
            magnitude += np.abs(addend, out=addend)
        if inputs.bias is not None:
            bias = inputs.bias[columns].astype(float)
            before += bias
            magnitude += np.abs(bias)
        values = before
        if problem.epilogue.activation == "relu":
            values = np.maximum(before, 0.0)
    return Expected(values, before, magnitude)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two elements of a block: the one with the largest error, and the one nearest its bound.

    `max_error` and `max_error_bound` are of the first; `ratio`, `error`, `bound`, `row` and
    `column` of the second, whose error / bound is the largest (a NaN counts as infinite). `wrong`
    marks the wrong elements, and is None where there are none.
    """

    correct: bool
    max_error: float
    max_error_bound: float
    ratio: float
    error: float
    bound: float
    row: int
    column: int
    wrong: NDArray[np.bool_] | None = None


def compare(
    problem: GemmProblem,
    rounding: Rounding,
    result: NDArray[np.float32],
    expected: Expected,
) -> Comparison:
    """Hold a block of results against what it must be.

    A result that is not finite passes only where the exact one is not finite either, or where
    terms of that sign add up to more than fp32 holds, so that some order of summation overflows.
    """
    if result.size == 0:
        return Comparison(True, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0)
    with np.errstate(all="ignore"):
        error = np.abs(result - expected.values)
        bound = rounding.bound(expected.magnitude)
        passed = np.isfinite(error) & (error <= bound)
        ratio = np.where(error == 0, 0.0, error / bound)
        if not passed.all():
            legitimate = ~passed & _legitimate(problem, result, expected)
            passed |= legitimate
            error[legitimate] = 0.0
            ratio[legitimate] = 0.0
    # What no comparison holds for (NaN) counts as infinitely wrong.
    ratio[np.isnan(ratio)] = np.inf
    error[np.isnan(error)] = np.inf
    largest = np.unravel_index(int(np.argmax(error)), error.shape)
    row, column = (int(each) for each in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    return Comparison(
        correct=bool(passed.all()),
        max_error=float(error[largest]),
        max_error_bound=float(bound[largest]),
        ratio=float(ratio[row, column]),
        error=float(error[row, column]),
        bound=float(bound[row, column]),
        row=row,
        column=column,
        wrong=None if passed.all() else ~passed,
    )


def _legitimate(
    problem: GemmProblem, result: NDArray[np.float32], expected: Expected
) -> NDArray[np.bool_]:
    """Where a NaN or an infinity is what fp32 arithmetic may give."""
    before, magnitude = expected.before, expected.magnitude
    # The sum of the positive terms is (S + D) / 2, of the negative ones (S - D) / 2. A·B may
    # overflow before a small α scales it down; rounding may carry a sum up by a factor below 2.
    unscaled = 1.0
    if 0 < abs(single(problem.alpha)) < 1:
        unscaled = 1.0 / abs(single(problem.alpha))
    upward = (magnitude + before) * unscaled >= LARGEST_FLOAT
    downward = (magnitude - before) * unscaled >= LARGEST_FLOAT
    may_be_nan = np.isnan(before) | (upward & downward)
    legitimate = (
        (np.isposinf(result) & upward)
        | (np.isneginf(result) & downward)
        | (np.isnan(result) & may_be_nan)
    )
    if problem.epilogue.activation == "relu":
        # IEEE 754's maximumNumber(NaN, 0) is 0, its maximum(NaN, 0) is NaN: both are in use.
        legitimate |= (result == 0) & (downward | may_be_nan)
    return legitimate


def _multiply(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    product: NDArray[np.float64],
    magnitude: NDArray[np.float64],
) -> None:
    """Add a @ b and |a| @ |b|, panel by panel so that float64 copies stay in the cache."""
    m, k = a.shape
    down_step = max(1, PANEL_ELEMENTS // k)
    along_step = max(1, PANEL_ELEMENTS // max(b.shape[1], 1))
    for row in range(0, m, down_step):
        down = slice(row, row + down_step)
        a_panel = a[down].astype(float)
        a_size = np.abs(a_panel)
        for depth in range(0, k, along_step):
            along = slice(depth, depth + along_step)
            b_panel = b[along].astype(float)
            product[down] += a_panel[:, along] @ b_panel
            magnitude[down] += a_size[:, along] @ np.abs(b_panel, out=b_panel)


def _count(size: int, selection: Selection) -> int:
    return len(range(*selection.indices(size))) if isinstance(selection, slice) else selection.size
