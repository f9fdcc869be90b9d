r"""Freivalds' check: whether a large result is right, in O((m + n)·k + m·n) operations.

For random vectors x with entries ±1, C·x is compared with α·A·(B·x) + β·C₀·x + (bias·x)·1, in
float64 (R. Freivalds, *Probabilistic machines can use less running time*, 1977).

Exact inputs (`bounds.is_exact`): both sides are equal if the result is right. A row of C with one
wrong element is always detected; a row with several is missed with probability at most 2⁻¹⁶ (16
vectors, each of which misses it with probability at most ½).

Other inputs: the elements' rounding errors e_j are fixed before x is drawn, so by Hoeffding's
inequality |Σ_j e_j·x_j| > t·‖e‖₂ has probability at most 2·exp(−t²/2), 3·10⁻¹⁴ for t = 8. The
bound of `bounds` gives ‖e‖₂ ≤ γ_n·(|α|·‖a_i‖₂·‖B‖_F + |β|·‖c_i‖₂ + ‖bias‖₂) for row i, by
Cauchy and Schwarz. So a right result is rejected with negligible probability, and wrong elements
are always detected once their combined error exceeds twice that. Smaller errors are left to the
sampled rows and columns, and to the exact inputs.

What is lost in proportion to the largest elements of lines (`split_products`) adds its own norm:
ν·|α|·(X_i·‖Σ_p|B_p·|‖₂ + Σ_p|A_ip|·‖Y‖₂).

Storing the result in a narrower type than the accumulator's adds a rounding error: ‖e‖₂ grows by
v·‖C_i‖₂, where v is the roundoff of C's type. GELU and SiLU are not linear, so the check does not
apply to them. A ReLU is not linear either, but if every column of the result has one sign before
it, as with "integer" inputs, it multiplies each column by 0 or 1, and x is multiplied by that.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.verify.bounds import UNIT_ROUNDOFF_64, Rounding, scalar
from gemmkit.verify.encoding import LARGEST, Matrix
from gemmkit.verify.inputs import Inputs, has_one_signed_columns, matrices, residual_matrix
from gemmkit.verify.line_sizes import LineSizes
from gemmkit.verify.row_blocks import for_each_row_block

VECTORS = 16
DEVIATIONS = 8.0

Vectors = NDArray[np.float64]


class Freivalds:
    """The right-hand side α·A·(B·x) + β·C₀·x + bias·x of one problem, to check many results.

    It includes the epilogue's scale and residual. Construction takes 2·16·(n + m)·k operations.
    `applies` is False if the identity does not hold: the activation is not linear, or values
    overflow the type of the accumulators or of C.
    """

    def __init__(self, problem: GemmProblem, inputs: Inputs, rounding: Rounding) -> None:
        self.problem, self.inputs = problem, inputs
        rng = np.random.default_rng([inputs.seed, problem.n])
        self.vectors: Vectors = rng.choice((-1.0, 1.0), (problem.n, VECTORS))
        signs = column_signs(problem, inputs)
        kept = self.vectors if signs is None else self.vectors * (signs > 0)[:, None]
        with np.errstate(all="ignore"):
            self._sides(kept, rounding.scale)
            self._tolerate(rounding)
        linear = problem.epilogue.activation == "none" or signs is not None
        limit = min(LARGEST[problem.sum_dtype], LARGEST[problem.result_dtype])
        self.applies = linear and self.largest < limit

    def under(self, rounding: Rounding) -> Freivalds:
        """The same with the bounds of another arithmetic."""
        other = copy(self)
        with np.errstate(all="ignore"):
            other._tolerate(rounding)
        return other

    def _sides(self, kept: Vectors, scale: float) -> None:
        """The sums of both sides' terms, and the Euclidean norms that errors are relative to."""
        problem, inputs = self.problem, self.inputs
        m, n, k = problem.m, problem.n, problem.k
        alpha, beta = scalar(problem, problem.alpha), scalar(problem, problem.beta)
        sums = np.zeros((m, VECTORS))
        norms = np.zeros(m)
        self.largest = 0.0
        a, b, c = matrices(problem, inputs)
        if alpha != 0 and k:
            bx, b_norms = _times(b, kept)
            b_norm = float(np.sqrt(np.sum(b_norms**2)))
            abx, a_norms = _times(a, bx)
            sums += alpha * abx
            norms += abs(alpha) * b_norm * a_norms
            self.largest += float(a_norms.max(initial=0)) * b_norm * max(1.0, abs(alpha))
        if beta != 0:
            cx, c_norms = _times(c, kept)
            sums += beta * cx
            norms += abs(beta) * c_norms
        bias = inputs.bias_numbers
        if bias is not None and problem.epilogue.bias == "row":
            sums += bias.astype(float)[:, None] * kept.sum(axis=0)
            norms += np.abs(bias) * np.sqrt(n)
        elif bias is not None:
            sums += bias.astype(float) @ kept
            norms += np.linalg.norm(bias)
        sums *= scale
        norms *= abs(scale)
        residual = residual_matrix(problem, inputs)
        if residual is not None:
            rx, residual_norms = _times(residual, self.vectors)
            sums += rx
            norms += residual_norms
        self.largest += float(norms.max(initial=0))
        self.sums, self.norms = sums, norms

    def _tolerate(self, rounding: Rounding) -> None:
        """The largest error of each row's sums."""
        problem, norms = self.problem, self.norms
        m, n, k = problem.m, problem.n, problem.k
        if rounding.exact and rounding.stored is None:
            self.tolerance = np.zeros(m)
            return
        alpha, of_lines = scalar(problem, problem.alpha), np.zeros(m)
        if alpha != 0 and k and rounding.of_lines:
            a, b, _ = matrices(problem, self.inputs)
            rows, columns = LineSizes.of_rows(a), LineSizes.of_columns(b)
            of_lines += rows.largest * np.linalg.norm(columns.sums)
            of_lines += rows.sums * np.linalg.norm(columns.largest)
            of_lines *= abs(alpha * rounding.scale) * rounding.of_lines
        # The last roundings are those of the scale and the residual.
        relative = rounding.of_magnitude + (0 if rounding.exact else 4 * rounding.unit)
        if rounding.exact and rounding.stored is not None:
            relative = rounding.stored.unit
        absolute = rounding.absolute * np.sqrt(n) + (1 + relative) * of_lines
        statistical = DEVIATIONS * (relative * norms + absolute)
        # The float64 sums over k and n terms also round: Σ_j |x_j|·S_j ≤ √n·‖S‖₂.
        own = 4 * (n + k + 2) * UNIT_ROUNDOFF_64 * np.sqrt(n) * norms
        self.tolerance = statistical + own

    def suspects(self, result: Matrix) -> NDArray[np.intp]:
        """The rows of C (m × n) that are wrong, the worst first; a row with a NaN is wrong."""
        with np.errstate(all="ignore"):
            residual = np.abs(_times(result, self.vectors)[0] - self.sums).max(axis=1, initial=0)
            residual[np.isnan(residual)] = np.inf
        rows = np.flatnonzero(~(residual <= self.tolerance))
        return rows[np.argsort(-residual[rows], kind="stable")]


def column_signs(problem: GemmProblem, inputs: Inputs) -> NDArray[np.float64] | None:
    """The sign of each column of the result before the ReLU, if the inputs determine it.

    The "integer" inputs of a problem with a ReLU do: see `make_inputs`. None for all others.
    """
    if not has_one_signed_columns(problem) or inputs.kind != "integer" or problem.k == 0:
        return None
    alpha = scalar(problem, problem.alpha)
    if alpha == 0:
        return None
    first_row = matrices(problem, inputs)[1][:1][0].astype(float)
    signs: NDArray[np.float64] = np.sign(alpha * first_row)
    return signs


def _times(values: Matrix, vectors: Vectors) -> tuple[Vectors, Vectors]:
    """values @ vectors in float64, and the Euclidean norm of each row of `values`."""
    product = np.empty((values.shape[0], vectors.shape[1]))
    norms = np.empty(values.shape[0])

    def multiply(rows: slice) -> None:
        panel = values[rows].astype(float)
        np.matmul(panel, vectors, out=product[rows])
        norms[rows] = np.sqrt(np.einsum("ij,ij->i", panel, panel))

    for_each_row_block(values.shape[0], values.shape[1], multiply)
    return product, norms
