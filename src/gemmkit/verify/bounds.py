r"""How far an fp32 result may lie from the exact one: error bounds from rounding theory.

Let u = 2⁻²⁴ be fp32's unit roundoff and γ_n = n·u / (1 − n·u). An element of the result is

    D = act(α · Σ_p A[i,p]·B[p,j] + β·C[i,j] + bias[j]),

a sum of L = k + t terms, where t counts β·C (if β ≠ 0) and the bias (if there is one). Whatever
the order of the additions (a loop, a tree, k split over blocks), a term passes through at most
L − 1 of them. A product A·B adds one rounding, and so does the multiplication by α unless α = 1;
a fused multiply-add only leaves roundings out, and additions of zero are exact. So each term is
multiplied by at most n = k + t + [α ≠ 1] factors (1 + δ), |δ| ≤ u, and by Lemma 3.1 of Higham,
*Accuracy and Stability of Numerical Algorithms*, 2nd ed. (the argument of its sections 3.1
and 4.2),

    |D − exact| ≤ γ_n · S + underflow,    S = |α| Σ_p |A[i,p]|·|B[p,j]| + |β|·|C[i,j]| + |bias[j]|.

The activations have slope at most one and so keep the bound. Gradual underflow adds at most
2⁻¹⁵⁰ for each multiplication, enlarged by no more than the later factors (below 2 here) and |α|.
The float64 reference is itself rounded, by γ_n with u = 2⁻⁵³, in D and in S; twice that is added.

Where all terms are multiples of one power of two and S stays within 24 bits of it, nothing rounds
in any order, and the bound is zero. A kernel that computes in narrower types has another bound, and
fewer bits for that: see `arithmetic`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.errors import UsageError
from gemmkit.problem import GemmProblem
from gemmkit.verify.arithmetic import FP32, Arithmetic
from gemmkit.verify.bands import over_bands
from gemmkit.verify.inputs import MAX_INTEGER, Inputs, matrices

UNIT_ROUNDOFF = 2.0**-24
UNIT_ROUNDOFF_64 = 2.0**-53
HALF_SMALLEST = 2.0**-150


def gamma(n: int, unit: float) -> float:
    """γ_n = n·unit / (1 − n·unit).

    Raises:
        UsageError: n·unit is 1 or more, so no bound follows.
    """
    if n * unit >= 1:
        raise UsageError(f"k = {n} roundings leave fp32 no correct digit: split k up to check it")
    return n * unit / (1 - n * unit)


def single(value: float) -> float:
    """The fp32 number that a kernel is given for α or β."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class Rounding:
    """The bound of an element is `relative · S + absolute`; both are 0 where nothing rounds."""

    relative: float
    absolute: float

    @classmethod
    def of(cls, problem: GemmProblem, inputs: Inputs, arithmetic: Arithmetic = FP32) -> Rounding:
        """The bound's two factors for this problem, these values and a kernel's arithmetic.

        Raises:
            UsageError: k is 2²⁴ or more.
        """
        if arithmetic.tolerance is None and is_exact(problem, inputs, arithmetic):
            return cls(0.0, 0.0)
        alpha = abs(single(problem.alpha))
        k = problem.k if alpha else 0
        n = k + (problem.beta != 0) + bool(problem.epilogue.bias) + (alpha != 1)
        relative = gamma(n, UNIT_ROUNDOFF) + 2 * gamma(n, UNIT_ROUNDOFF_64)
        absolute = 2 * HALF_SMALLEST * (k * alpha + 2)
        if arithmetic.plain:
            return cls(relative, absolute)
        if k:
            largest = (float(np.nanmax(np.abs(x), initial=0.0)) for x in (inputs.a, inputs.b))
            absolute += max(alpha, 1.0) * arithmetic.underflow(k, *largest)
        return cls(arithmetic.relative(k, relative), absolute)

    def bound(self, magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest allowed |D − exact| for each S."""
        return self.relative * magnitude + self.absolute


def is_exact(problem: GemmProblem, inputs: Inputs, arithmetic: Arithmetic = FP32) -> bool:
    """Whether no operation of the kernel rounds, in any order: see the module's last paragraph."""
    alpha, beta = single(problem.alpha), single(problem.beta)
    operands = 2**arithmetic.operand_bits
    terms: list[tuple[float, NDArray[np.float32]]] = []
    magnitude = 0.0
    if alpha != 0 and problem.k:
        a, b, _ = matrices(problem, inputs)
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
        terms.append((beta, matrices(problem, inputs)[2]))
    if inputs.bias is not None:
        terms.append((1.0, inputs.bias))
    magnitude += sum(abs(factor) * _largest_integer(values) for factor, values in terms)
    # α = p / q with q a power of two: every term is a multiple of the smallest step 1 / q.
    if not (np.isfinite(alpha) and np.isfinite(beta)):
        return False
    steps = steps_of(problem)
    whole = bool(steps * max(abs(alpha), abs(beta)) <= operands)
    return whole and bool(magnitude * steps <= 2**arithmetic.sum_bits)


def steps_of(problem: GemmProblem) -> int:
    """The power of two that makes α and β whole numbers."""
    return max(single(x).as_integer_ratio()[1] for x in (problem.alpha, problem.beta))


def exact_sums(problem: GemmProblem, arithmetic: Arithmetic) -> int:
    """The largest Σ|A|·|B| for which a kernel's arithmetic stays exact on small integers.

    C and the bias are taken to be as large as `make_inputs` makes them; 0 where there is none.
    """
    alpha, beta = abs(single(problem.alpha)), abs(single(problem.beta))
    steps = steps_of(problem)
    if steps * max(alpha, beta) > 2**arithmetic.operand_bits:
        return 0
    others = MAX_INTEGER * (beta + bool(problem.epilogue.bias))
    left = 2**arithmetic.sum_bits / steps - others
    return max(0, int(left / max(1.0, alpha)))


def _largest_integer(values: NDArray[np.float32]) -> float:
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
