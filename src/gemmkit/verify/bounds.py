r"""How far a result may lie from the exact one: error bounds from rounding theory.

Let u be the unit roundoff of the sums' type (2⁻²⁴ for fp32, 2⁻⁵³ for fp64) and
γ_n = n·u / (1 − n·u). What the activation gets is

    x = α · Σ_p A[i,p]·B[p,j] + β·C[i,j] + bias,

a sum of L = k + t terms, where t counts β·C (if β ≠ 0) and the bias (if there is one). Whatever
the order of the additions (a loop, a tree, k split over blocks), a term passes through at most
L − 1 of them. A product A·B adds one rounding, and so does the multiplication by α unless α = 1;
a fused multiply-add only leaves roundings out, and additions of zero are exact. So each term is
multiplied by at most n = k + t + [α ≠ 1] factors (1 + δ), |δ| ≤ u, and by Lemma 3.1 of Higham,
*Accuracy and Stability of Numerical Algorithms*, 2nd ed. (the argument of its sections 3.1
and 4.2),

    |fl(x) − x| ≤ e = γ_n · S + underflow,    S = |α| Σ_p |A[i,p]|·|B[p,j]| + |β|·|C[i,j]| + |bias|.

Gradual underflow adds at most half the smallest subnormal number for each multiplication, enlarged
by no more than the later factors (below 2 here) and |α|. Tensor cores may cut sums of 16-bit
products off instead of rounding them, which doubles u (Fasi, Higham, Mikaitis and Pranesh,
"Numerical behavior of NVIDIA tensor cores", 2021).

ReLU has slope at most one and keeps the bound. GELU and SiLU have |f(x)| ≤ |x| and a slope of at
most `SLOPE`, and their own evaluation errs by at most `EVALUATION` roundoffs of x: the error
functions and exponentials of CUDA's mathematical library are right to 2 units in the last place
(CUDA Programming Guide, "Mathematical Functions Appendix"), and what follows them adds a few. The
scale and the residual round once each. A result D stored in a narrower type with unit roundoff v
is off by v·|D| more, or by half that type's smallest subnormal number.

A library may compute D by several kernels in turn, each of which stores its result y in C's type.
If y is within e of the exact one, then what the next kernel reads is within e + v·(|y| + e) and
half that subnormal number. What follows carries this on: the addition of the bias rounds once
more, the activation multiplies by its slope, the scale by itself.

The reference is float64 and itself rounded, by γ_n with u = 2⁻⁵³, in D and in S; twice that is
added. Of fp64 products the reference is better than that: see `reference`.

Where all terms are multiples of one power of two and S stays within the bits of the sums' type,
nothing rounds in any order, and the result is the exact one, rounded once to the type of C. A
kernel that computes in narrower types has another bound, and fewer bits for that: see `arithmetic`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gemmkit.epilogue import Custom, Epilogue
from gemmkit.errors import UsageError
from gemmkit.problem import GemmProblem
from gemmkit.verify.arithmetic import FP32, Arithmetic, Format, Step
from gemmkit.verify.bands import over_bands
from gemmkit.verify.encoding import ELEMENTS, Numbers
from gemmkit.verify.inputs import MAX_INTEGER, Inputs, matrices, residual_numbers

UNIT_ROUNDOFF_64 = 2.0**-53
# Of the slope of GELU, which is the steepest of the activations.
SLOPE = 1.13
EVALUATION = 8
# Roundings that the reference adds to an fp64 sum, beside one for each panel of k (`reference`).
REFERENCE_ROUNDINGS = 8
REFERENCE_PANEL = 1024


def gamma(n: int, unit: float) -> float:
    """γ_n = n·unit / (1 − n·unit).

    Raises:
        UsageError: n·unit is 1 or more, so no bound follows.
    """
    if n * unit >= 1:
        raise UsageError(
            f"k is too large: {n} roundings leave no correct digit; split k up to check it"
        )
    return n * unit / (1 - n * unit)


def scalar(problem: GemmProblem, value: float) -> float:
    """The number that a kernel is given for α, β or the scale: fp32, of fp64 sums fp64."""
    if problem.sum_dtype == "float64":
        return value
    with np.errstate(over="ignore"):
        return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class Rounding:
    """Bounds of a problem's errors: before the activation, `relative · S + absolute`.

    Both are 0 where nothing rounds. `unit` is the roundoff of the epilogue's arithmetic, `stored`
    the type of C where it is narrower than that of the sums, `between` the steps after which the
    result so far is stored in it, before the last.
    """

    relative: float
    absolute: float
    unit: float = ELEMENTS["float32"].unit
    epilogue: Epilogue = field(default_factory=Epilogue)
    scale: float = 1.0
    stored: Format | None = None
    between: tuple[Step, ...] = ()

    @classmethod
    def of(cls, problem: GemmProblem, inputs: Inputs, arithmetic: Arithmetic = FP32) -> Rounding:
        """The bounds for this problem, these values and a kernel's arithmetic.

        Raises:
            UsageError: k is so large that sums have no correct digit (2²⁴ for fp32), or the
                activation is the user's own, whose slope nobody knows.
        """
        epilogue = problem.epilogue
        if isinstance(epilogue.activation, Custom):
            raise UsageError(
                "a custom activation has no known error bound: check the product without it"
            )
        sums, result = ELEMENTS[problem.sum_dtype], ELEMENTS[problem.result_dtype]
        stored = result if result.bits < sums.bits else None
        scale = scalar(problem, epilogue.scale)
        rest = sums.unit, epilogue, scale, stored, arithmetic.stored
        if arithmetic.tolerance is None and is_exact(problem, inputs, arithmetic):
            return cls(0.0, 0.0, *rest)
        alpha = abs(scalar(problem, problem.alpha))
        k = problem.k if alpha else 0
        n = k + (problem.beta != 0) + bool(epilogue.bias) + (alpha != 1)
        if result.bits > sums.bits:
            n += 1  # C, the bias and the residual are rounded when they are read
        of_reference = 2 * gamma(n, UNIT_ROUNDOFF_64)
        if problem.sum_dtype == "float64":
            panels = -(-k // REFERENCE_PANEL) + REFERENCE_ROUNDINGS
            of_reference = 2 * gamma(panels, UNIT_ROUNDOFF_64)
        tensor = 2 if problem.item_bytes == 2 and not arithmetic.tensor else 1
        relative = gamma(n, tensor * sums.unit) + of_reference
        absolute = 2 * sums.tiny * (k * alpha + 2)
        if arithmetic.plain:
            return cls(relative, absolute, *rest)
        if k:
            largest = (_largest(x) for x in matrices(problem, inputs)[:2])
            absolute += max(alpha, 1.0) * arithmetic.underflow(k, *largest)
        return cls(arithmetic.relative(k, relative), absolute, *rest)

    @property
    def exact(self) -> bool:
        """Whether a right result is the exact one, rounded once to the type of C."""
        return self.relative == 0 and self.absolute == 0

    def before(self, magnitude: Numbers) -> NDArray[np.float64]:
        """The largest allowed error of what the activation gets, for each S."""
        return self.relative * magnitude + self.absolute

    def bound(
        self,
        magnitude: Numbers,
        before: Numbers,
        values: Numbers,
        residual: Numbers | None = None,
        *,
        bias: Numbers | None = None,
        activated: Numbers | None = None,
    ) -> NDArray[np.float64]:
        """The largest allowed |D − exact|, for each S, x, exact D and residual; `bias` is the part
        of x that is the bias, `activated` what the activation makes of x, by default x."""
        found = self.before(magnitude)
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
            found = abs(self.scale) * (found + self.unit * (np.abs(after) + found))
            after = self.scale * after
        if "scale" in self.between:
            found = self.kept(after, found)
        if residual is not None:
            found = found + 2 * self.unit * (np.abs(values) + np.abs(residual) + found)
        return self.kept(values, found)

    def kept(self, values: Numbers, bounds: NDArray[np.float64]) -> NDArray[np.float64]:
        """The bounds of values that lie within `bounds`, once they are stored in C's type."""
        if self.stored is None or self.exact:
            return bounds
        return bounds + self.stored.unit * (np.abs(values) + bounds) + self.stored.tiny

    @property
    def of_magnitude(self) -> float:
        """The most that an error may be as a share of the largest S, rounding to C's type and all,
        of results without GELU, SiLU, scale or residual."""
        if self.stored is None or self.exact:
            return self.relative
        stores = math.expm1((1 + len(self.between)) * math.log1p(self.stored.unit))
        return self.relative + stores * (1 + self.relative)


def is_exact(problem: GemmProblem, inputs: Inputs, arithmetic: Arithmetic = FP32) -> bool:
    """Whether no operation before the last rounding rounds, in any order: see the module's last
    paragraph."""
    epilogue = problem.epilogue
    scale = scalar(problem, epilogue.scale)
    # Only powers of two scale without rounding.
    if epilogue.activation not in ("none", "relu") or abs(math.frexp(scale)[0]) != 0.5:
        return False
    alpha, beta = scalar(problem, problem.alpha), scalar(problem, problem.beta)
    widest = ELEMENTS[problem.sum_dtype].bits
    operands = 2 ** min(arithmetic.operand_bits, widest)
    terms: list[tuple[float, Numbers]] = []
    magnitude = 0.0
    a, b, c = matrices(problem, inputs)
    if alpha != 0 and problem.k:
        largest_a, largest_b = _largest_integer(a), _largest_integer(b)
        terms_of_a_sum: float = problem.k
        if not arithmetic.plain:
            terms_of_a_sum = float(np.count_nonzero(a, axis=1).max(initial=0))
            if max(largest_a, largest_b) > operands:
                return False
        product = terms_of_a_sum * largest_a * largest_b
        # The product is summed first, or scaled first: both must fit.
        magnitude += max(1.0, abs(alpha)) * product
    if beta != 0:
        terms.append((beta, c))
    if inputs.bias_numbers is not None:
        terms.append((1.0, inputs.bias_numbers))
    magnitude += sum(abs(factor) * _largest_integer(values) for factor, values in terms)
    residual = residual_numbers(problem, inputs)
    if residual is not None:
        magnitude = max(1.0, abs(scale)) * magnitude + _largest_integer(residual)
    # α = p / q with q a power of two: every term is a multiple of the smallest step 1 / q.
    if not (np.isfinite(alpha) and np.isfinite(beta)):
        return False
    steps = steps_of(problem) * scale.as_integer_ratio()[1]
    whole = bool(steps * max(abs(alpha), abs(beta)) <= operands)
    bits = arithmetic.sum_bits if problem.sum_dtype == "float32" else widest
    return whole and bool(magnitude * steps <= 2**bits)


def steps_of(problem: GemmProblem) -> int:
    """The power of two that makes α and β whole numbers."""
    return max(scalar(problem, x).as_integer_ratio()[1] for x in (problem.alpha, problem.beta))


def exact_sums(problem: GemmProblem, arithmetic: Arithmetic) -> int:
    """The largest Σ|A|·|B| for which a kernel's arithmetic stays exact on small integers.

    C and the bias are taken to be as large as `make_inputs` makes them; 0 where there is none.
    """
    alpha, beta = (abs(scalar(problem, x)) for x in (problem.alpha, problem.beta))
    steps = steps_of(problem)
    if steps * max(alpha, beta) > 2**arithmetic.operand_bits:
        return 0
    others = MAX_INTEGER * (beta + bool(problem.epilogue.bias) + problem.epilogue.residual)
    left = 2**arithmetic.sum_bits / steps - others
    return max(0, int(left / max(1.0, alpha)))


def _largest(values: Numbers) -> float:
    return float(np.nanmax(np.abs(values), initial=0.0))


def _largest_integer(values: Numbers) -> float:
    """The largest magnitude if all values are integers, else infinity."""
    if values.size == 0:
        return 0.0
    table = np.atleast_2d(values)
    # A cheap look at a corner first: random reals are recognized without a pass over them.
    if not bool(np.all(np.rint(table[:1]) == table[:1])):
        return float("inf")
    found: list[float] = []

    def look(rows: slice) -> None:
        band = table[rows]
        whole = bool(np.all(np.rint(band) == band))
        found.append(float(max(band.max(), -band.min())) if whole else float("inf"))

    over_bands(table.shape[0], table.shape[1], look)
    return max(found)
