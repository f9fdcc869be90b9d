"""The float64 reference by the BLAS rules, with the magnitudes that its error bound needs.

The reference of an fp64 product has to be more accurate than fp64. A and B are split, A = A₁ + A₂,
such that A₁ and B₁ have few enough bits for sums of `REFERENCE_PANEL` of their products to be exact
in fp64 (the error-free transformation of Ozaki, Ogita, Oishi and Rump, "Error-free transformations
of matrix multiplication", 2012). A·B = A₁·B₁ + (A₁·B₂ + A₂·B), and the rounding errors of the terms
in parentheses are smaller than u·|A|·|B|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import is_narrow
from gemmkit.problem import GemmProblem
from gemmkit.verify.bounds import REFERENCE_PANEL, Rounding, scalar
from gemmkit.verify.encoding import LARGEST, Matrix, Numbers, decode, encode
from gemmkit.verify.inputs import Inputs, matrices, residual_matrix
from gemmkit.verify.line_sizes import of_lines
from gemmkit.verify.row_blocks import on_all_cores
from gemmkit.verify.tally import Tally

Selection = slice | NDArray[np.intp]
EVERYTHING = slice(None)

# Elements per panel of A or B held in float64, 16 MiB; and per panel of B that is needed once.
PANEL_ELEMENTS, ONCE_ELEMENTS = 2**21, 2**19
# The most rows or columns that count as few.
FEW_LINES = 64


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected values of rows × columns of the result.

    `before` is x = α·A·B + β·C + bias and `magnitude` is S, the sum of its terms' magnitudes (see
    `bounds`). `activated` is the activation's result, `values` the whole epilogue's. `bias` is the
    bias in x, as a row or a column, and `residual` the residual in the values; both are None if
    there is none. `lines` computes |α|·(X·Σ|b| + Y·Σ|a|) for the row of A and the column of B of
    each element, see `split_products`; it is None where these are not read.
    """

    values: NDArray[np.float64]
    before: NDArray[np.float64]
    magnitude: NDArray[np.float64]
    residual: Numbers | None = None
    bias: Numbers | None = None
    activated: Numbers | None = None
    lines: Callable[[], Numbers] | None = None

    @property
    def auxiliary(self) -> Expected:
        """The expected auxiliary output: x."""
        return Expected(self.before, self.before, self.magnitude, bias=self.bias, lines=self.lines)


def evaluate(
    problem: GemmProblem,
    inputs: Inputs,
    rows: Selection = EVERYTHING,
    columns: Selection = EVERYTHING,
) -> Expected:
    """Compute the chosen rows and columns of the result: 4 · rows · columns · k operations.

    fp64 takes 8 · rows · columns · k. With β = 0 C is not read, with α = 0 neither A nor B.
    """
    m, n, k = problem.m, problem.n, problem.k
    alpha, beta = scalar(problem, problem.alpha), scalar(problem, problem.beta)
    shape = (_count(m, rows), _count(n, columns))
    before, magnitude = np.zeros(shape), np.zeros(shape)
    a, b, c = matrices(problem, inputs)
    stored_residual = residual_matrix(problem, inputs)
    residual = bias = lines = None
    with np.errstate(all="ignore"):
        if alpha != 0 and k:
            precise = problem.sum_dtype == "float64"
            chosen_a, chosen_b = a.part(rows, EVERYTHING), b.part(EVERYTHING, columns)
            _multiply(chosen_a, chosen_b, before, magnitude, precise=precise)
            before *= alpha
            magnitude *= abs(alpha)
            lines = cache(lambda: abs(alpha) * of_lines(chosen_a, chosen_b))
        if beta != 0:
            addend = beta * c.part(rows, columns)[:].astype(float)
            before += addend
            magnitude += np.abs(addend, out=addend)
        if inputs.bias_numbers is not None:
            bias = inputs.bias_numbers.astype(float)
            bias = bias[rows, None] if problem.epilogue.bias == "row" else bias[columns]
            before += bias
            magnitude += np.abs(bias)
        activated = values = ACTIVATIONS[str(problem.epilogue.activation)](before)
        if (scale := inputs.scale_of(problem)) != 1:
            values = scale * values
        if stored_residual is not None:
            residual = stored_residual.part(rows, columns)[:].astype(float)
            values = values + residual
    return Expected(values, before, magnitude, residual, bias, activated, lines)


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
    """The two extreme elements of a compared block: by error, and by error relative to its bound.

    `max_error` and `max_error_bound` belong to the element with the largest error. `ratio`,
    `error`, `bound`, `row` and `column` belong to the one with the largest error / bound (a NaN
    counts as infinite). `wrong` marks the wrong elements; it is None if there are none. `tally`
    counts the errors by size; it is None if there are no elements, or none is `fresh`.
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
    tally: Tally | None = None


# The rows and the columns of a block whose elements no other block has.
Fresh = tuple[NDArray[np.bool_], NDArray[np.bool_]]


def compare(
    problem: GemmProblem,
    rounding: Rounding,
    result: Numbers,
    expected: Expected,
    accepted: NDArray[np.bool_] | None = None,
    fresh: Fresh | None = None,
) -> Comparison:
    """Compare a block of decoded results with the expected values.

    Elements that `accepted` marks count as right, without an error. Of a block that shares elements
    with others, only the `fresh` ones are tallied.

    A result that is not finite is accepted only if the exact one is not finite either, or if the
    terms of that sign add up to more than the type of the accumulators or of C holds, so that some
    order of summation overflows. Results of 8 bits saturate: in place of an infinity they hold
    the largest number of their type.
    """
    if result.size == 0:
        return Comparison(True, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0)
    infinite = None
    if is_narrow(problem.result_dtype):
        infinite, largest_number = np.isinf(expected.values), LARGEST[problem.result_dtype]
        within = np.clip(expected.values, -largest_number, largest_number)
        expected = replace(expected, values=within)
    values = expected.values
    if rounding.exact and rounding.stored is not None:
        values = decode(encode(values, problem.result_dtype), problem.result_dtype)
    with np.errstate(all="ignore"):
        difference = result - values
        error = np.abs(difference)
        bound = rounding.bound(
            expected.magnitude,
            expected.before,
            expected.values,
            expected.residual,
            bias=expected.bias,
            activated=expected.activated,
            lines=expected.lines,
        )
        if infinite is not None:
            bound[infinite] = 0.0
        passed = np.isfinite(error) & (error <= bound)
        ratio = np.where(error == 0, 0.0, error / bound)
        if not passed.all():
            legitimate = ~passed & _legitimate(problem, result, expected, bound)
            if accepted is not None:
                legitimate |= ~passed & accepted
            passed |= legitimate
            error[legitimate] = 0.0
            ratio[legitimate] = 0.0
    # A NaN fails every comparison and counts as an infinite error.
    ratio[np.isnan(ratio)] = np.inf
    error[np.isnan(error)] = np.inf
    parts = [difference, error, ratio]
    if fresh is not None:
        parts = [each[np.ix_(*fresh)] for each in parts]
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
        tally=Tally.of(*parts) if parts[0].size else None,
    )


def _legitimate(
    problem: GemmProblem, result: Numbers, expected: Expected, bound: Numbers
) -> NDArray[np.bool_]:
    """Where the kernel's arithmetic may legitimately give a NaN or an infinity."""
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
    # A finite sum may exceed the range of C's type.
    finite = magnitude * unscaled < of_sums
    overflown = of_results if is_narrow(problem.result_dtype) else np.inf
    legitimate: NDArray[np.bool_] = (
        ((result == overflown) & (upward | (finite & (values + bound >= of_results))))
        | ((result == -overflown) & (downward | (finite & (values - bound <= -of_results))))
        | (np.isnan(result) & may_be_nan)
    )
    if problem.epilogue.activation == "relu":
        # IEEE 754's maximumNumber(NaN, 0) is 0 and its maximum(NaN, 0) is NaN; both are in use.
        legitimate |= (result == 0) & (downward | may_be_nan)
    return legitimate


def _multiply(
    a: Matrix,
    b: Matrix,
    product: NDArray[np.float64],
    magnitude: NDArray[np.float64],
    *,
    precise: bool = False,
) -> None:
    """Add a @ b and |a| @ |b|, panel by panel, so that the float64 copies stay in the cache.

    Of a few rows or columns the copies take most of the time: the other side is then divided among
    all cores. Products of large panels are on all cores anyway.
    """
    (m, k), n = a.shape, b.shape[1]
    if min(m, n) <= FEW_LINES < max(m, n) and k:
        parts = [(a, b.part(EVERYTHING, each), (EVERYTHING, each)) for each in _shares(n, k)]
        if n < m:
            parts = [(a.part(each, EVERYTHING), b, (each, EVERYTHING)) for each in _shares(m, k)]
        if len(parts) > 1:
            on_all_cores(
                lambda part: _multiply(
                    part[0], part[1], product[part[2]], magnitude[part[2]], precise=precise
                ),
                parts,
            )
            return
    down_step = max(1, PANEL_ELEMENTS // k)
    along_step = max(1, (ONCE_ELEMENTS if m <= down_step else PANEL_ELEMENTS) // max(n, 1))
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


def _shares(lines: int, k: int) -> list[slice]:
    """Lines of k elements, in shares of about a panel each."""
    step = max(FEW_LINES, ONCE_ELEMENTS // k)
    return [slice(start, min(start + step, lines)) for start in range(0, lines, step)]


def _precise(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """a @ b with at most `REFERENCE_PANEL` terms per sum, as if summed exactly, then rounded."""
    bits = (53 - math.ceil(math.log2(REFERENCE_PANEL))) // 2
    a_head, b_head = _leading(a, bits, axis=1), _leading(b, bits, axis=0)
    tail: NDArray[np.float64] = a_head @ (b - b_head) + (a - a_head) @ b
    found: NDArray[np.float64] = a_head @ b_head + tail
    # The difference of two infinities is NaN, which the product itself need not be.
    return found if np.isfinite(found).all() else np.where(np.isfinite(found), found, a @ b)


def _leading(values: NDArray[np.float64], bits: int, axis: int) -> NDArray[np.float64]:
    """Values rounded to multiples of 2^-bits times the power of two above the largest magnitude
    along an axis; values that are not finite are kept."""
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0.0)
    _, exponent = np.frexp(largest)
    anchor = np.ldexp(0.75, exponent + 53 - bits)
    return np.asarray((values + anchor) - anchor)


def _count(size: int, selection: Selection) -> int:
    return len(range(*selection.indices(size))) if isinstance(selection, slice) else selection.size
