r"""How far a result may be from the exact one: error bounds from rounding error analysis.

Let u be the unit roundoff of the accumulator type (2⁻²⁴ for fp32, 2⁻⁵³ for fp64) and
γ_n = n·u / (1 − n·u). The activation's input is

    x = α · Σ_p A[i,p]·B[p,j] + β·C[i,j] + bias,

a sum of L = k + t terms, where t counts β·C (if β ≠ 0) and the bias (if there is one). Whatever
the order of the additions (a loop, a tree, k split over blocks), a term passes through at most
L − 1 of them. A product A·B adds one rounding, and so does the multiplication by α unless α = 1; a
fused multiply-add only removes roundings, and additions of zero are exact. So each term is
multiplied by at most n = k + t + [α ≠ 1] factors (1 + δ), |δ| ≤ u, and by Lemma 3.1 of Higham,
*Accuracy and Stability of Numerical Algorithms*, 2nd ed. (the argument of its sections 3.1
and 4.2),

    |fl(x) − x| ≤ e = γ_n · S + underflow,    S = |α| Σ_p |A[i,p]|·|B[p,j]| + |β|·|C[i,j]| + |bias|.

Gradual underflow adds at most half the smallest subnormal number per multiplication, multiplied by
at most the later factors (below 2 here) and |α|. A library's kernel for 16-bit products, whose
instructions are not known, may use tensor cores, which truncate instead of rounding: that doubles u
(Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021; `truncation`
has the bound for a kernel whose instructions are known).

ReLU has slope at most one and keeps the bound. GELU and SiLU have |f(x)| ≤ |x| and a slope of at
most `SLOPE`, and their evaluation adds an error of at most `EVALUATION` roundoffs of x. In fp64,
the error functions and exponentials of CUDA's math library are accurate to 2 units in the last
place (CUDA Programming Guide, "Mathematical Functions Appendix"), and the operations after them add
a few. In fp32, activations are x times a factor s in [0, 1] by ex2.approx and rcp.approx, each
within 2⁻²² of its result. A relative error of GELU's tail, which is at most 1/2, is at most half of
it in s; one of p = exp(−t) is at most a quarter of it in s = 1/(1 + p), and one of t at most 0.23
of it. The scale and the residual each round once. Storing D in a narrower type with unit roundoff v
adds v·|D|, or half that type's smallest subnormal number.

A library may compute D by several kernels in turn, each of which stores its result y in the type of
C. If y is within e of the exact value, the next kernel reads a value within e + v·(|y| + e) plus
half that subnormal number. The later steps propagate this error: adding the bias rounds once more,
the activation multiplies the error by its slope, the scale by itself.

Scales of A and B count as part of their elements: of S, and of the exact product. A kernel rounds
the product of two of them, and that of it and a sum of products: two more factors (1 + δ).

The float64 reference is itself rounded, in D and in S, by γ_n with u = 2⁻⁵³; twice that is added.
The reference of fp64 products is more accurate than that: see `reference`.

If all terms are multiples of one power of two and S fits the bits of the accumulator type, nothing
rounds in any order of summation, and the result is the exact one, rounded once to the type of C. A
kernel that computes in narrower types has another bound, and fewer such bits: see `arithmetic`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gemmkit.epilogue import Custom, Epilogue
from gemmkit.errors import UsageError
from gemmkit.problem import GemmProblem
from gemmkit.verify.arithmetic import FP32, Arithmetic, Format, Step
from gemmkit.verify.encoding import ELEMENTS, Matrix, Numbers, extremes
from gemmkit.verify.inputs import MAX_INTEGER, Inputs, matrices, residual_matrix
from gemmkit.verify.row_blocks import on_all_cores, row_blocks

UNIT_ROUNDOFF_64 = 2.0**-53
# The largest slope of GELU, the steepest of the activations.
SLOPE = 1.13
EVALUATION = 8
# Roundings that the reference adds to an fp64 sum, besides one per panel of k (see `reference`).
REFERENCE_ROUNDINGS = 8
REFERENCE_PANEL = 1024


def gamma(n: int, unit: float) -> float:
    """γ_n = n·unit / (1 − n·unit).

    Raises:
        UsageError: n·unit is 1 or more, so that there is no bound.
    """
    if n * unit >= 1:
        raise UsageError(
            f"k is too large to check: {n} roundings leave no correct digit; check the product "
            "with a smaller k"
        )
    return n * unit / (1 - n * unit)


def scalar(problem: GemmProblem, value: float) -> float:
    """α, β or the scale as the kernel receives it: in fp32, or in fp64 for fp64 accumulators."""
    if problem.sum_dtype == "float64":
        return value
    with np.errstate(over="ignore"):
        return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class Rounding:
    """Error bounds of one problem; before the activation the bound is `relative · S + absolute`.

    Both are 0 if nothing rounds. `of_lines` is added in proportion to |α|·(X·Σ|b| + Y·Σ|a|), see
    `split_products`. `unit` is the roundoff of the epilogue's arithmetic, `stored` the
    type of C if it is narrower than the accumulator type, `between` the steps, except the last,
    after which the result so far is stored in it.
    """

    relative: float
    absolute: float
    unit: float = ELEMENTS["float32"].unit
    epilogue: Epilogue = field(default_factory=Epilogue)
    scale: float = 1.0
    stored: Format | None = None
    between: tuple[Step, ...] = ()
    of_lines: float = 0.0

    @classmethod
    def of(cls, problem: GemmProblem, inputs: Inputs, arithmetic: Arithmetic = FP32) -> Rounding:
        """The bounds for this problem, these input values and a kernel's arithmetic.

        Raises:
            UsageError: k is so large that sums have no correct digit (2²⁴ for fp32), or the
                activation is a custom one, whose slope is unknown.
        """
        epilogue = problem.epilogue
        if isinstance(epilogue.activation, Custom):
            raise UsageError(
                "a custom activation has no known error bound: check the product without it"
            )
        sums, result = ELEMENTS[problem.sum_dtype], ELEMENTS[problem.result_dtype]
        stored = result if result.bits < sums.bits else None
        scale = inputs.scale_of(problem)
        unit = sums.unit * arithmetic.widening
        rest = unit, epilogue, scale, stored, arithmetic.stored
        if arithmetic.tolerance is None and is_exact(problem, inputs, arithmetic):
            return cls(0.0, 0.0, *rest)
        alpha = abs(scalar(problem, problem.alpha))
        k = problem.k if alpha else 0
        others = (problem.beta != 0) + bool(epilogue.bias) + (alpha != 1)
        others += 2 * bool(problem.scales and k)  # their product, and that with a sum
        if result.bits > sums.bits:
            others += 1  # C, the bias and the residual are rounded when they are read
        n = k + others
        of_reference = 2 * gamma(n, UNIT_ROUNDOFF_64)
        if problem.sum_dtype == "float64":
            panels = -(-k // REFERENCE_PANEL) + REFERENCE_ROUNDINGS
            of_reference = 2 * gamma(panels, UNIT_ROUNDOFF_64)
        if problem.item_bytes == 2 and arithmetic.tensor is None:
            unit = 2 * sums.unit
        relative = gamma(n, unit) + of_reference
        absolute = 2 * sums.tiny * arithmetic.widening * (k * alpha + 2)
        a, b, _ = matrices(problem, inputs)
        scaled = max(1.0, _largest_scale(a)) * max(1.0, _largest_scale(b))
        absolute *= scaled
        if arithmetic.plain:
            return cls(relative, absolute, *rest)
        largest, finite = (0.0, 0.0), True
        if k:
            (of_a, finite_a), (of_b, finite_b) = (extremes(replace(x, scales=None)) for x in (a, b))
            largest, finite = (of_a, of_b), finite_a and finite_b
            finite = finite and _has_finite_scales(a, b)
            absolute += scaled * max(alpha, 1.0) * arithmetic.underflow(k, *largest)
        if arithmetic.split is None:
            return cls(arithmetic.relative(k, relative), absolute, *rest)
        found = arithmetic.split.relative(k, others) + of_reference
        if k and (arithmetic.split.may_overflow(k, *largest) or not finite):
            # Fused multiply-adds compute some of the results.
            found = max(found, relative)
        return cls(found, absolute, *rest, of_lines=arithmetic.of_lines if k else 0.0)

    @property
    def exact(self) -> bool:
        """Whether a correct result is the exact one, rounded once to the type of C."""
        return self.relative == 0 and self.absolute == 0

    def before(
        self, magnitude: Numbers, lines: Callable[[], Numbers] | None = None
    ) -> NDArray[np.float64]:
        """The largest allowed error of the activation's input, for each S. `lines` gives what
        `of_lines` is in proportion to."""
        found = self.relative * magnitude + self.absolute
        if self.of_lines and lines is not None:
            found += self.of_lines * lines()
        return found

    def bound(
        self,
        magnitude: Numbers,
        before: Numbers,
        values: Numbers,
        residual: Numbers | None = None,
        *,
        bias: Numbers | None = None,
        activated: Numbers | None = None,
        lines: Callable[[], Numbers] | None = None,
    ) -> NDArray[np.float64]:
        """The largest allowed |D − exact| for each S, x, exact D and residual. `bias` is the bias
        in x, `activated` the activation's result, by default x; `lines` as for `before`."""
        found = self.before(magnitude, lines)
        if self.exact:
            return found
        after = before if activated is None else activated
        if "product" in self.between:
            found = self.kept(before if bias is None else before - bias, found)
            found = found + self.unit * found
        if "bias" in self.between:
            found = self.kept(before, found)
        if self.epilogue.activation not in ("none", "relu"):
            found = SLOPE * found + EVALUATION * self.unit * (np.abs(before) + found)
        if "activation" in self.between:
            found = self.kept(after, found)
        if self.scale != 1:
            # Two scales are multiplied by each other first.
            unit = gamma(2, self.unit) if self.epilogue.scale_result else self.unit
            found = abs(self.scale) * (found + unit * (np.abs(after) + found))
            after = self.scale * after
        if "scale" in self.between:
            found = self.kept(after, found)
        if residual is not None:
            found = found + 2 * self.unit * (np.abs(values) + np.abs(residual) + found)
        return self.kept(values, found)

    def kept(self, values: Numbers, bounds: NDArray[np.float64]) -> NDArray[np.float64]:
        """`bounds` of `values`, enlarged by the rounding to the type of C."""
        if self.stored is None or self.exact:
            return bounds
        return bounds + self.stored.unit * (np.abs(values) + bounds) + self.stored.tiny

    @property
    def of_magnitude(self) -> float:
        """The largest error as a fraction of the largest S, rounding to the type of C included, for
        results without GELU, SiLU, scale or residual."""
        if self.stored is None or self.exact:
            return self.relative
        stores = math.expm1((1 + len(self.between)) * math.log1p(self.stored.unit))
        return self.relative + stores * (1 + self.relative)


def is_exact(problem: GemmProblem, inputs: Inputs, arithmetic: Arithmetic = FP32) -> bool:
    """Whether no operation before the final rounding rounds, in any order of summation; see the
    last paragraph of the module's docstring."""
    epilogue = problem.epilogue
    scale = inputs.scale_of(problem)
    # Only powers of two scale without rounding.
    if epilogue.activation not in ("none", "relu") or abs(math.frexp(scale)[0]) != 0.5:
        return False
    alpha, beta = scalar(problem, problem.alpha), scalar(problem, problem.beta)
    widest = ELEMENTS[problem.sum_dtype].bits
    operands = 2 ** min(arithmetic.operand_bits, widest)
    magnitude = 0.0
    a, b, c = matrices(problem, inputs)
    terms: list[tuple[float, Matrix | Numbers]] = []
    if alpha != 0 and problem.k:
        largest_a, largest_b = _largest_integer(a), _largest_integer(b)
        terms_of_a_sum: float = problem.k
        if not arithmetic.plain:
            if max(largest_a, largest_b) > operands:
                return False
            terms_of_a_sum = float(_most_terms(a))
        product = terms_of_a_sum * largest_a * largest_b
        if problem.scales:
            # Sums are scaled, in their own type, when they are complete, or those of a chunk are.
            unscaled = (_largest_integer(replace(x, scales=None)) for x in (a, b))
            if terms_of_a_sum * math.prod(unscaled) > 2**arithmetic.sum_bits:
                return False
        # A kernel may sum before it scales by α, or scale first: both must fit.
        magnitude += max(1.0, abs(alpha)) * product
    if beta != 0:
        terms.append((beta, c))
    if inputs.bias_numbers is not None:
        terms.append((1.0, inputs.bias_numbers[None]))
    magnitude += sum(abs(factor) * _largest_integer(values) for factor, values in terms)
    residual = residual_matrix(problem, inputs)
    if residual is not None:
        magnitude = max(1.0, abs(scale)) * magnitude + _largest_integer(residual)
    # α = p / q with q a power of two: every term is a multiple of 1 / q.
    if not (np.isfinite(alpha) and np.isfinite(beta)):
        return False
    steps = steps_of(problem) * scale.as_integer_ratio()[1]
    whole = bool(steps * max(abs(alpha), abs(beta)) <= operands)
    narrow = problem.sum_dtype == "float32" and not problem.scales
    bits = arithmetic.sum_bits if narrow else widest
    return whole and bool(magnitude * steps <= 2**bits)


def steps_of(problem: GemmProblem) -> int:
    """The power of two by which α and β become integers."""
    return max(scalar(problem, x).as_integer_ratio()[1] for x in (problem.alpha, problem.beta))


def exact_sums(problem: GemmProblem, arithmetic: Arithmetic) -> int:
    """The largest Σ|A|·|B| for which a kernel's arithmetic stays exact on small integers.

    C and the bias are taken to be as large as `make_inputs` makes them. 0 if there is no such sum.
    """
    alpha, beta = (abs(scalar(problem, x)) for x in (problem.alpha, problem.beta))
    steps = steps_of(problem)
    if steps * max(alpha, beta) > 2**arithmetic.operand_bits:
        return 0
    others = MAX_INTEGER * (beta + bool(problem.epilogue.bias) + problem.epilogue.residual)
    left = 2**arithmetic.sum_bits / steps - others
    return max(0, int(left / max(1.0, alpha)))


def _most_terms(values: Matrix) -> int:
    """The most elements of a row that are not zero."""

    def of_rows(rows: slice) -> int:
        return int(np.count_nonzero(values[rows], axis=1).max(initial=0))

    return max(on_all_cores(of_rows, row_blocks(*values.shape)), default=0)


def _has_finite_scales(*operands: Matrix) -> bool:
    """Whether elements that are finite are so with their scales."""
    scales = (each.scales for each in operands if each.scales is not None)
    return all(bool(np.isfinite(each).all()) for each in scales)


def _largest_scale(values: Matrix) -> float:
    """The largest scale of a matrix; 1 of one that has none."""
    if values.scales is None or not values.scales.size:
        return 1.0
    return float(np.abs(values.scales).max())


def _largest_integer(table: Matrix | Numbers) -> float:
    """The largest magnitude if all values of a 2-D table are integers, else infinity."""
    if 0 in table.shape:
        return 0.0
    # Test the first row alone first: random reals then need no pass over the whole matrix.
    if not bool(np.all(np.rint(table[:1]) == table[:1])):
        return float("inf")

    def of_rows(rows: slice) -> float:
        block = table[rows]
        whole = bool(np.all(np.rint(block) == block))
        return float(max(block.max(), -block.min())) if whole else float("inf")

    return max(on_all_cores(of_rows, row_blocks(*table.shape)))
