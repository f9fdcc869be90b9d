"""`Mismatch`: the wrong elements of one result, and the values that other formulas give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import Dtype
from gemmkit.problem import GemmProblem
from gemmkit.storage import Stored, layouts
from gemmkit.verify.bounds import Rounding, scalar
from gemmkit.verify.encoding import decode
from gemmkit.verify.inputs import Inputs

Numbers = NDArray[np.float64]
Indices = NDArray[np.intp]

# The most float64 numbers held at a time while products of single elements are computed.
CHUNK = 2**21
# Elements that a hypothesis is compared with before it is compared with all.
SAMPLE = 256
# A hypothesis must fit by chance with a probability below 1 in 1000.
LOG_CHANCE = -3.0
# The most elements counted as evidence.
COUNTED = 64


def explainable(problem: GemmProblem) -> bool:
    """Whether the formulas of `Mismatch` cover the problem: they have no GELU, SiLU, row bias,
    scale or residual."""
    epilogue = problem.epilogue
    plain = epilogue.activation in ("none", "relu") and epilogue.bias != "row"
    return plain and not epilogue.residual and epilogue.scale == 1


@dataclass(frozen=True, eq=False)
class Mismatch:
    """One wrong product of a problem: positions, values found and expected values.

    `rows`, `columns` and `found` are the finite wrong elements, `right` their expected values.
    `stored` is all of C, m × n, as the kernel left it.
    """

    problem: GemmProblem
    inputs: Inputs
    rounding: Rounding
    rows: Indices
    columns: Indices
    found: Numbers
    right: Numbers
    stored: Numbers
    alpha: float = field(init=False)
    beta: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", scalar(self.problem, self.problem.alpha))
        object.__setattr__(self, "beta", scalar(self.problem, self.problem.beta))

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.problem.m, self.problem.n, self.problem.k

    @cached_property
    def a(self) -> Numbers:
        """A, m × k."""
        return self._elements(0, self.inputs.a, self.problem.dtype)

    @cached_property
    def b(self) -> Numbers:
        """B, k × n."""
        return self._elements(1, self.inputs.b, self.problem.dtype)

    @cached_property
    def sample(self) -> Indices:
        """Indices of some wrong elements, spread evenly over all of them."""
        count = min(self.rows.size, SAMPLE)
        return np.linspace(0, self.rows.size - 1, count).astype(np.intp)

    @cached_property
    def tolerance(self) -> float:
        """The largest rounding error of an element relative to a formula's value.

        It is the bound for the largest |α|·‖a_i‖·‖b_j‖ + |β·C| + |bias|, which is at least S of
        `bounds` (Cauchy and Schwarz). If nothing rounds, it is the error of float64 sums.
        """
        largest = 0.0
        if self.shape[2]:
            norms = np.linalg.norm(self.a, axis=1).max(), np.linalg.norm(self.b, axis=0).max()
            largest += max(abs(self.alpha), 1.0) * float(norms[0] * norms[1])
        if self.beta:
            largest += max(abs(self.beta), 1.0) * float(np.abs(self.c).max())
        bias = self.inputs.bias_numbers
        if bias is not None:
            largest += float(np.abs(bias).max())
        return max(self.rounding.of_magnitude, 2.0**-40) * largest + self.rounding.absolute

    @cached_property
    def c(self) -> Numbers:
        """C before the launch, m × n."""
        return self._elements(2, self.inputs.c, self.problem.result_dtype)

    def _elements(self, number: int, storage: Stored, dtype: Dtype) -> Numbers:
        stored = layouts(self.problem)[number].view(storage)[0]
        return np.asarray(decode(stored, dtype), float)

    @cached_property
    def _log_chance(self) -> float:
        """log₁₀ of the probability that a wrong formula gives one of the wrong elements."""
        # The probability that a number of the problem's kind is this close to a given one.
        step = 1.0 if self.inputs.kind == "integer" else 2 * self.tolerance
        spread = max(float(np.std(self.found)), float(np.abs(self.found).max()) / 2, 1e-300)
        return min(0.0, float(np.log10(step / spread)))

    def convincing(self, tried: float = 1.0, *, free: int = 0) -> bool:
        """Whether a fit of all wrong elements is unlikely to be a coincidence.

        `tried` is the number of formulas of that kind, `free` the number of parameters that were
        fitted to the elements.
        """
        counted = min(self.rows.size - free, COUNTED)
        return counted * self._log_chance + float(np.log10(tried)) <= LOG_CHANCE

    @cached_property
    def whole(self) -> Numbers:
        """The expected values of all m × n elements, in row-major order."""
        m, n, _ = self.shape
        rows, columns = np.divmod(np.arange(m * n), n)
        return self.finished((self.a @ self.b).ravel(), rows, columns)

    def products(
        self, rows: Indices, columns: Indices, a: Numbers | None = None, b: Numbers | None = None
    ) -> Numbers:
        """Σ_p A[row, p]·B[p, column] for single elements, of other matrices if given."""
        a, b = self.a if a is None else a, self.b if b is None else b
        by_column = np.ascontiguousarray(b.T) if rows.size > b.shape[1] else b.T
        values = np.zeros(rows.size)
        step = max(1, CHUNK // max(a.shape[1], 1))
        for start in range(0, rows.size, step):
            part = slice(start, start + step)
            values[part] = np.einsum("ij,ij->i", a[rows[part]], by_column[columns[part]])
        return values

    def finished(
        self,
        product: Numbers,
        rows: Indices,
        columns: Indices,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        bias: float = 1.0,
        relu: bool = True,
    ) -> Numbers:
        """act(α·product + β·C + bias) for single elements, with other factors if given."""
        values = (self.alpha if alpha is None else alpha) * product
        beta = self.beta if beta is None else beta
        # C is NaN if the problem's β is 0, and no formula reads it then.
        if beta and self.beta:
            values = values + beta * self.c[rows, columns]
        added = self.inputs.bias_numbers
        if added is not None and bias:
            values = values + bias * added[columns].astype(float)
        if relu and self.problem.epilogue.activation == "relu":
            values = np.maximum(values, 0.0)
        return values

    def fits(self, values: Numbers, chosen: Indices | slice = slice(None)) -> bool:
        """Whether the chosen wrong elements equal these values up to rounding.

        A NaN is an unknown value; at most half of them may be unknown.
        """
        unknown = np.isnan(values)
        if 2 * np.count_nonzero(unknown) > values.size:
            return False
        return bool((unknown | (np.abs(self.found[chosen] - values) <= self.tolerance)).all())

    def parts(self) -> Iterator[tuple[Indices, Indices, slice]]:
        """Rows, columns and slices of the wrong elements, a chunk at a time."""
        step = max(1, CHUNK // max(self.shape[2], 1))
        for start in range(0, self.rows.size, step):
            part = slice(start, start + step)
            yield self.rows[part], self.columns[part], part


Formula = Callable[[Indices, Indices], Numbers]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hypothesis that fits: its name, a clause about C, and advice, which may be empty.

    The clause continues "In these elements".
    """

    name: str
    clause: str
    advice: str = ""


def explains(mismatch: Mismatch, formula: Formula, tried: float = 1.0) -> bool:
    """Whether a formula gives all wrong elements, and is unlikely to do so by chance."""
    if not mismatch.convincing(tried):
        return False
    chosen = mismatch.sample
    if not mismatch.fits(formula(mismatch.rows[chosen], mismatch.columns[chosen]), chosen):
        return False
    return all(
        mismatch.fits(formula(rows, columns), part) for rows, columns, part in mismatch.parts()
    )
