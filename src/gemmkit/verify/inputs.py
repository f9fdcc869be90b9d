"""Inputs for a check: seeded random matrices of any type, laid out as the problem says.

Storage is exactly as long as BLAS asks for, so an access past the end is one past an allocation,
and everything in it that is no element holds a NaN with a payload that shows who touched it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import BROADCAST, Dtype, GemmProblem
from gemmkit.verify.bands import bands, over_bands
from gemmkit.verify.elements import Numbers, Stored, canaries, decode, encode

InputKind = Literal["normal", "integer"]

MAX_INTEGER = 4
# Leaves four of fp32's 24 bits for α, β·C and the bias.
INTEGER_SUM_LIMIT = 2**20

# A matrix with more elements is drawn in bands of rows, each from a stream of its own.
ONE_STREAM_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a kernel is given: storage of A, B and C, and the operands of the epilogue.

    Each is 1-D, of the problem's types as `elements.STORAGE` holds them. Element (row, col) of X
    lies at `row * ldx + col`, of a transposed X at `col * ldx + row`; that of product i of a batch
    `i * stride_x` further. `c` holds the canary everywhere if β = 0 (so an element that is read or
    left unwritten shows) and in its padding always. `bias` has n elements, or m for a row bias.
    `residual` and `auxiliary` lie as `further_layouts` says, `auxiliary` full of canaries. Operands
    that the epilogue does not have are None. `kind` and `seed` reproduce all of it.
    """

    a: Stored
    b: Stored
    c: Stored
    bias: Stored | None
    kind: InputKind
    seed: int
    residual: Stored | None = None
    auxiliary: Stored | None = None
    out_dtype: Dtype = "float32"

    def of_product(self, problem: GemmProblem, number: int) -> Inputs:
        """Views of what one product of the problem's batch is given, as of a single product."""
        if problem.batch == 1:
            return self

        def part(storage: Stored | None, layout: Layout) -> Any:
            if storage is None:
                return None
            start = number * layout.stride
            return storage[start : start + layout.matrix_size]

        in_a, in_b, in_c = layouts(problem)
        of_residual, of_auxiliary = further_layouts(problem)
        return replace(
            self,
            a=part(self.a, in_a),
            b=part(self.b, in_b),
            c=part(self.c, in_c),
            residual=part(self.residual, of_residual),
            auxiliary=part(self.auxiliary, of_auxiliary),
        )

    @property
    def bias_numbers(self) -> Numbers | None:
        """The bias as numbers, or None."""
        return None if self.bias is None else decode(self.bias, self.out_dtype)

    @property
    def epilogue_operands(self) -> dict[str, Stored]:
        """Storage of the bias, the residual and the auxiliary output, those that there are."""
        named = {"bias": self.bias, "residual": self.residual, "auxiliary": self.auxiliary}
        return {name: storage for name, storage in named.items() if storage is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of all that a launch reads or writes."""
        operands = (self.a, self.b, self.c, *self.epilogue_operands.values())
        return sum(each.nbytes for each in operands)


@dataclass(frozen=True, slots=True)
class Layout:
    """How `count` matrices of rows × columns lie in memory, each `stride` after the one before.

    Where they are `transposed`, memory holds columns `ld` apart.
    """

    count: int
    rows: int
    columns: int
    ld: int
    stride: int
    transposed: bool = False

    @property
    def matrix_size(self) -> int:
        """Elements from the first to the last of one matrix; 0 if it has none."""
        rows, columns = (self.rows, self.columns)[:: -1 if self.transposed else 1]
        return storage_size(rows, columns, self.ld)

    @property
    def size(self) -> int:
        """Elements from the first to the last of all."""
        if not (self.count and self.matrix_size):
            return 0
        return (self.count - 1) * self.stride + self.matrix_size

    @property
    def gapless(self) -> bool:
        """Whether every element of the storage belongs to a matrix."""
        row = self.rows if self.transposed else self.columns
        return row == self.ld and (self.count <= 1 or self.stride == self.rows * self.columns)

    def view(self, storage: NDArray[Any]) -> NDArray[Any]:
        """The elements, as a view of count × rows × columns."""
        if storage.size < self.size:
            raise ValueError(f"{storage.size} elements do not hold {self}")
        shape = (self.count, self.rows, self.columns)
        if not self.size:
            return np.empty(shape, storage.dtype)
        width = storage.itemsize
        down, along = (1, self.ld) if self.transposed else (self.ld, 1)
        steps = (width * self.stride, width * down, width * along)
        return np.lib.stride_tricks.as_strided(storage, shape, steps)

    def gaps(self, storage: Stored) -> Stored:
        """What of a storage is no element: the ends of rows, and what lies between matrices."""
        if self.gapless:
            return storage[:0]
        outside = np.ones(self.size, bool)
        self.view(outside)[:] = False
        return storage[: self.size][outside]


def layouts(problem: GemmProblem) -> tuple[Layout, Layout, Layout]:
    """Those of A, B and C; of an operand that a batch shares there is one."""
    p = problem
    stride_a, stride_b, stride_c = p.strides
    once = min(p.batch, 1)
    count_a, count_b = (
        once if stride == BROADCAST else p.batch for stride in (p.stride_a, p.stride_b)
    )
    return (
        Layout(count_a, p.m, p.k, p.lda, stride_a, p.transa),
        Layout(count_b, p.k, p.n, p.ldb, stride_b, p.transb),
        Layout(p.batch, p.m, p.n, p.ldc, stride_c, p.transc),
    )


def further_layouts(problem: GemmProblem) -> tuple[Layout, Layout]:
    """Those of the residual and of the auxiliary output: row-major, shaped like C.

    Where C's rows are padded, these are too, each by more, so that none passes for another.
    """
    tight = max(problem.n, 1)
    padding = problem.ldc - problem.tight[2]
    lds = tight + 2 * padding, tight + 3 * padding
    residual, auxiliary = (
        Layout(problem.batch, problem.m, problem.n, ld, problem.m * ld) for ld in lds
    )
    return residual, auxiliary


def matrices(problem: GemmProblem, inputs: Inputs) -> tuple[Numbers, Numbers, Numbers]:
    """The numbers of A (m×k), B (k×n) and C (m×n) of a single product; views where float32."""
    a, b, c = (
        decode(layout.view(storage)[0], dtype)
        for layout, storage, dtype in zip(
            layouts(problem),
            (inputs.a, inputs.b, inputs.c),
            (problem.dtype, problem.dtype, problem.result_dtype),
            strict=True,
        )
    )
    return a, b, c


def residual_numbers(problem: GemmProblem, inputs: Inputs) -> Numbers | None:
    """The numbers of a single product's residual (m×n), or None."""
    if inputs.residual is None:
        return None
    stored = further_layouts(problem)[0].view(inputs.residual)[0]
    return decode(stored, problem.result_dtype)


def make_inputs(
    problem: GemmProblem,
    seed: int = 0,
    kind: InputKind = "normal",
    sum_limit: int = INTEGER_SUM_LIMIT,
) -> Inputs:
    """Random inputs for a problem, the same for the same arguments.

    "normal" draws from N(0, 1). "integer" draws non-zero integers so small that every partial sum
    of A·B is an integer that fp32 represents: the product is exact in any order of summation.
    With a smaller `sum_limit`, Σ|A|·|B| is that at most: if k is larger, most of A is zero.
    With a ReLU each column of B, C and the bias then has one sign, chosen so that whole columns
    of the result are cut to zero and the others are not: that makes the result a linear function
    of its inputs, which `freivalds` needs.
    """
    rng = np.random.default_rng(seed)
    epilogue, out_dtype = problem.epilogue, problem.result_dtype
    limit = min(MAX_INTEGER, max(1, math.isqrt(sum_limit // max(problem.k, 1))))
    signs = np.ones(problem.n, np.int8)
    one_signed = kind == "integer" and has_one_signed_columns(problem)
    if one_signed:
        signs -= 2 * rng.integers(0, 2, problem.n, np.int8)

    def fill(out: Numbers, rng: np.random.Generator, sign: NDArray[np.int8]) -> None:
        if kind == "normal":
            rng.standard_normal(dtype=out.dtype, out=out)
            return
        values = rng.integers(1, limit, out.shape, np.int8, endpoint=True)
        if not one_signed:
            values *= 1 - 2 * rng.integers(0, 2, out.shape, np.int8)
        np.multiply(values, sign, out=out, casting="unsafe")

    def draw(rows: int, columns: int, sign: NDArray[np.int8], dtype: Dtype) -> Stored:
        values = np.empty((rows, columns), np.float64 if dtype == "float64" else np.float32)
        _fill_all(values, rng, lambda out, stream: fill(out, stream, sign))
        return encode(values, dtype)

    def laid_out(layout: Layout, sign: NDArray[np.int8], dtype: Dtype) -> Stored:
        values = draw(layout.count * layout.rows, layout.columns, sign, dtype)
        if layout.gapless and not layout.transposed:
            return values.ravel()
        storage = canaries(layout.size, dtype)
        layout.view(storage)[:] = values.reshape(layout.count, layout.rows, layout.columns)
        return storage

    # α·A·B, β·C and the bias take the sign of their column whatever the signs of α and β.
    alpha_sign, beta_sign = (np.int8(-1 if x < 0 else 1) for x in (problem.alpha, problem.beta))
    in_a, in_b, in_c = layouts(problem)
    a = laid_out(in_a, np.ones(problem.k, np.int8), problem.dtype)
    if kind == "integer" and sum_limit < min(problem.k, INTEGER_SUM_LIMIT):
        _thin_out(in_a.view(a).reshape(-1, problem.k), sum_limit, rng)
    b = laid_out(in_b, signs * alpha_sign, problem.dtype)
    c = canaries(in_c.size, out_dtype)
    if problem.beta != 0:
        c = laid_out(in_c, signs * beta_sign, out_dtype)
    bias = None
    if epilogue.bias == "column":
        bias = draw(1, problem.n, signs, out_dtype)[0]
    elif epilogue.bias == "row":
        bias = draw(1, problem.m, np.ones(problem.m, np.int8), out_dtype)[0]
    of_residual, of_auxiliary = further_layouts(problem)
    residual = laid_out(of_residual, signs, out_dtype) if epilogue.residual else None
    auxiliary = canaries(of_auxiliary.size, out_dtype) if epilogue.auxiliary else None
    return Inputs(a, b, c, bias, kind, seed, residual, auxiliary, out_dtype)


def has_one_signed_columns(problem: GemmProblem) -> bool:
    """Whether integer inputs give each column of the result one sign, for the ReLU's sake; a bias
    by row has no sign for a column."""
    return problem.epilogue.activation == "relu" and problem.epilogue.bias != "row"


def _thin_out(rows: Stored, kept: int, rng: np.random.Generator) -> None:
    """Leave so many elements of each row, at random, and make the others zero."""
    for row in rows:
        row[rng.permutation(row.size)[kept:]] = 0


def _fill_all(
    values: Numbers,
    rng: np.random.Generator,
    fill: Callable[[Numbers, np.random.Generator], None],
) -> None:
    """Fill from one stream, or a large matrix from as many as it has bands, on all cores."""
    if values.size <= ONE_STREAM_ELEMENTS:
        fill(values, rng)
        return
    rows, columns = values.shape
    starts = [band.start for band in bands(rows, columns)]
    streams = dict(zip(starts, rng.spawn(len(starts)), strict=True))
    over_bands(rows, columns, lambda band: fill(values[band], streams[band.start]))


def storage_size(rows: int, columns: int, ld: int) -> int:
    """Elements from the first to the last of a row-major matrix; 0 if it has none."""
    return (rows - 1) * ld + columns if rows and columns else 0


def matrix(storage: Stored, rows: int, columns: int, ld: int) -> Stored:
    """The rows × columns elements of a storage, as a view."""
    found: Stored = Layout(1, rows, columns, ld, 0).view(storage)[0]
    return found
