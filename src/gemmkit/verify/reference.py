"""The exact result, in float64 and by the BLAS rules, with the magnitudes that its bound needs.

The reference of an fp64 product has to be better than fp64. A and B are cut in two, A = A₁ + A₂, so
that A₁ and B₁ have few enough bits for sums of `REFERENCE_PANEL` of their products to be exact in
fp64 (the error-free transformation of Ozaki, Ogita, Oishi and Rump, "Error-free transformations of
matrix multiplication", 2012). A·B = A₁·B₁ + (A₁·B₂ + A₂·B), and what rounds in the parenthesis is
smaller than u·|A|·|B|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.verify.bounds import REFERENCE_PANEL, Rounding, scalar
from gemmkit.verify.encoding import LARGEST, Numbers, decode, encode
from gemmkit.verify.inputs import Inputs, matrices, residual_numbers

Selection = slice | NDArray[np.intp]
EVERYTHING = slice(None)

# Elements of one panel of A or B held in float64: 16 MiB.
PANEL_ELEMENTS = 2**21


@dataclass(frozen=True, slots=True)
class Expected:
    """What rows × columns of the result must be.

    `before` and `magnitude` are α·A·B + β·C + bias and the sum of its terms' magnitudes, x and S of
    `bounds`; `activated` is what the activation makes of x, `values` what the whole epilogue does.
    `bias` is the part of x that is the bias, as a row or a column, `residual` the part of the
    values that is the residual; they are None where there is none.
    """

    values: NDArray[np.float64]
    before: NDArray[np.float64]
    magnitude: NDArray[np.float64]
    residual: Numbers | None = None
    bias: Numbers | None = None
    activated: Numbers | None = None

    @property
    def auxiliary(self) -> Expected:
        """What the auxiliary output must be: x."""
        return Expected(self.before, self.before, self.magnitude, bias=self.bias)


def evaluate(
    problem: GemmProblem,
    inputs: Inputs,
    rows: Selection = EVERYTHING,
    columns: Selection = EVERYTHING,
) -> Expected:
    """Compute the chosen rows and columns of the result: 4 · rows · columns · k operations.

    β = 0 never reads C, and α = 0 never reads A or B. For fp64 it is 8 operations.
    """
    m, n, k = problem.m, problem.n, problem.k
    alpha, beta = scalar(problem, problem.alpha), scalar(problem, problem.beta)
    shape = (_count(m, rows), _count(n, columns))
    before, magnitude = np.zeros(shape), np.zeros(shape)
    a, b, c = matrices(problem, inputs)
    residual, bias = residual_numbers(problem, inputs), None
    with np.errstate(all="ignore"):
        if alpha != 0 and k:
            precise = problem.sum_dtype == "float64"
            _multiply(a[rows], b[:, columns], before, magnitude, precise=precise)
            before *= alpha
            magnitude *= abs(alpha)
        if beta != 0:
            addend = beta * c[rows][:, columns].astype(float)
            before += addend
            magnitude += np.abs(addend, out=addend)
        if inputs.bias_numbers is not None:
            bias = inputs.bias_numbers.astype(float)
            bias = bias[rows, None] if problem.epilogue.bias == "row" else bias[columns]
            before += bias
            magnitude += np.abs(bias)
        activated = values = ACTIVATIONS[str(problem.epilogue.activation)](before)
        if problem.epilogue.scale != 1:
            values = scalar(problem, problem.epilogue.scale) * values
        if residual is not None:
            residual = residual[rows][:, columns].astype(float)
            values = values + residual
    return Expected(values, before, magnitude, residual, bias, activated)


def _elementwise(function: Callable[[float], float]) -> Callable[[Numbers], Numbers]:
    return lambda values: np.asarray(np.vectorize(function, otypes=[float])(values))


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x)) if x > -700 else 0.0


ACTIVATIONS: Mapping[str, Callable[[Numbers], Numbers]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": _elementwise(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2),
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": _elementwise(_silu),
}


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
    problem: GemmProblem, rounding: Rounding, result: Numbers, expected: Expected
) -> Comparison:
    """Compare a block of results, decoded, with what it must be.

    A result that is not finite passes only where the exact one is not finite either, or where
    terms of that sign add up to more than the types of the sums or of C hold, so that some order
    of summation overflows.
    """
    if result.size == 0:
        return Comparison(True, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0)
    values = expected.values
    if rounding.exact and rounding.stored is not None:
        values = decode(encode(values, problem.result_dtype), problem.result_dtype)
    with np.errstate(all="ignore"):
        error = np.abs(result - values)
        bound = rounding.bound(
            expected.magnitude,
            expected.before,
            expected.values,
            expected.residual,
            bias=expected.bias,
            activated=expected.activated,
        )
        passed = np.isfinite(error) & (error <= bound)
        ratio = np.where(error == 0, 0.0, error / bound)
        if not passed.all():
            legitimate = ~passed & _legitimate(problem, result, expected, bound)
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
    problem: GemmProblem, result: Numbers, expected: Expected, bound: Numbers
) -> NDArray[np.bool_]:
    """Where a NaN or an infinity is what the kernel's arithmetic may give."""
    before, magnitude, values = expected.before, expected.magnitude, expected.values
    # The sum of the positive terms is (S + D) / 2, of the negative ones (S - D) / 2. A·B may
    # overflow before a small α scales it down; rounding may carry a sum up by a factor below 2.
    unscaled = 1.0
    if 0 < abs(scalar(problem, problem.alpha)) < 1:
        unscaled = 1.0 / abs(scalar(problem, problem.alpha))
    of_sums, of_results = LARGEST[problem.sum_dtype], LARGEST[problem.result_dtype]
    upward = (magnitude + before) * unscaled >= of_sums
    downward = (magnitude - before) * unscaled >= of_sums
    may_be_nan = np.isnan(before) | (upward & downward)
    # Finite sums may exceed what C's type holds.
    finite = magnitude * unscaled < of_sums
    legitimate = (
        (np.isposinf(result) & (upward | (finite & (values + bound >= of_results))))
        | (np.isneginf(result) & (downward | (finite & (values - bound <= -of_results))))
        | (np.isnan(result) & may_be_nan)
    )
    if problem.epilogue.activation == "relu":
        # IEEE 754's maximumNumber(NaN, 0) is 0, its maximum(NaN, 0) is NaN: both are in use.
        legitimate |= (result == 0) & (downward | may_be_nan)
    return legitimate


def _multiply(
    a: Numbers,
    b: Numbers,
    product: NDArray[np.float64],
    magnitude: NDArray[np.float64],
    *,
    precise: bool = False,
) -> None:
    """Add a @ b and |a| @ |b|, panel by panel so that float64 copies stay in the cache."""
    m, k = a.shape
    down_step = max(1, PANEL_ELEMENTS // k)
    along_step = max(1, PANEL_ELEMENTS // max(b.shape[1], 1))
    if precise:
        along_step = min(along_step, REFERENCE_PANEL)
    for row in range(0, m, down_step):
        down = slice(row, row + down_step)
        a_panel = a[down].astype(float)
        a_size = np.abs(a_panel)
        for depth in range(0, k, along_step):
            along = slice(depth, depth + along_step)
            b_panel = b[along].astype(float)
            if precise:
                product[down] += _precise(a_panel[:, along], b_panel)
            else:
                product[down] += a_panel[:, along] @ b_panel
            magnitude[down] += a_size[:, along] @ np.abs(b_panel, out=b_panel)


def _precise(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """a @ b of at most `REFERENCE_PANEL` terms, as if they were added up exactly and rounded."""
    bits = (53 - math.ceil(math.log2(REFERENCE_PANEL))) // 2
    a_head, b_head = _leading(a, bits, axis=1), _leading(b, bits, axis=0)
    tail: NDArray[np.float64] = a_head @ (b - b_head) + (a - a_head) @ b
    return a_head @ b_head + tail


def _leading(values: NDArray[np.float64], bits: int, axis: int) -> NDArray[np.float64]:
    """Values rounded to multiples of 2^-bits of the largest along an axis, rounded up to a power
    of two; what is not finite stays so."""
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0.0)
    _, exponent = np.frexp(largest)
    anchor = np.ldexp(0.75, exponent + 53 - bits)
    return np.asarray((values + anchor) - anchor)


def _count(size: int, selection: Selection) -> int:
    return len(range(*selection.indices(size))) if isinstance(selection, slice) else selection.size
