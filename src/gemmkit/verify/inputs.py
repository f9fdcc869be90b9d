"""Inputs for a check: seeded random matrices laid out with their leading dimensions.

Storage is exactly as long as BLAS asks for, so an access past the end is one past an allocation,
and everything in it that is not an element holds a NaN with a payload that shows who touched it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemmkit.errors import UsageError
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.verify.bands import bands, over_bands

InputKind = Literal["normal", "integer"]
Matrix = NDArray[np.float32]

# A signaling NaN: copies keep it, and all arithmetic turns it into a quiet one, so that it shows
# what was never written.
CANARY_BITS = np.uint32(0x7FA0DEAD)

MAX_INTEGER = 4
# Leaves four of fp32's 24 bits for α, β·C and the bias.
INTEGER_SUM_LIMIT = 2**20

# A matrix with more elements is drawn in bands of rows, each from a stream of its own.
ONE_STREAM_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a kernel is given: storage of A, B and C as the problem lays them out, and the bias.

    Each is 1-D float32. Element (row, col) of X lies at `row * ldx + col`, of a transposed X at
    `col * ldx + row`; that of product i of a batch `i * stride_x` further. `c` holds the canary
    everywhere if β = 0 (so an element that is read or left unwritten shows) and in its padding
    always. `bias` has n elements, or is None if the epilogue has none. `kind` and `seed` reproduce
    all of it.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    c: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    kind: InputKind
    seed: int

    def of_product(self, problem: GemmProblem, number: int) -> Inputs:
        """Views of what one product of the problem's batch is given, as of a single product."""
        if problem.batch == 1:
            return self
        storages = []
        for storage, layout in zip((self.a, self.b, self.c), layouts(problem), strict=True):
            start = number * layout.stride
            storages.append(storage[start : start + layout.matrix_size])
        return replace(self, a=storages[0], b=storages[1], c=storages[2])


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

    def gaps(self, storage: NDArray[np.float32]) -> NDArray[np.float32]:
        """What of a storage is not an element: the ends of rows, and what lies between matrices."""
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


def matrices(problem: GemmProblem, inputs: Inputs) -> tuple[Matrix, Matrix, Matrix]:
    """The elements of A (m×k), B (k×n) and C (m×n) of a single product, as views."""
    a, b, c = (
        layout.view(storage)[0]
        for layout, storage in zip(layouts(problem), (inputs.a, inputs.b, inputs.c), strict=True)
    )
    return a, b, c


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

    Raises:
        UsageError: the problem is none that is checked and timed here.
    """
    _refuse_others(problem)
    rng = np.random.default_rng(seed)
    limit = min(MAX_INTEGER, max(1, math.isqrt(sum_limit // max(problem.k, 1))))
    signs = np.ones(problem.n, np.int8)
    one_signed = kind == "integer" and problem.epilogue.activation == "relu"
    if one_signed:
        signs -= 2 * rng.integers(0, 2, problem.n, np.int8)

    def fill(out: NDArray[np.float32], rng: np.random.Generator, sign: NDArray[np.int8]) -> None:
        if kind == "normal":
            rng.standard_normal(dtype=np.float32, out=out)
            return
        values = rng.integers(1, limit, out.shape, np.int8, endpoint=True)
        if not one_signed:
            values *= 1 - 2 * rng.integers(0, 2, out.shape, np.int8)
        np.multiply(values, sign, out=out, casting="unsafe")

    def draw(rows: int, columns: int, sign: NDArray[np.int8]) -> NDArray[np.float32]:
        values = np.empty((rows, columns), np.float32)
        _fill_all(values, rng, lambda out, stream: fill(out, stream, sign))
        return values

    def laid_out(layout: Layout, sign: NDArray[np.int8]) -> NDArray[np.float32]:
        values = draw(layout.count * layout.rows, layout.columns, sign)
        if layout.gapless and not layout.transposed:
            return values.ravel()
        storage = canaries(layout.size)
        layout.view(storage)[:] = values.reshape(layout.count, layout.rows, layout.columns)
        return storage

    # α·A·B, β·C and the bias take the sign of their column whatever the signs of α and β.
    alpha_sign, beta_sign = (np.int8(-1 if x < 0 else 1) for x in (problem.alpha, problem.beta))
    in_a, in_b, in_c = layouts(problem)
    a = laid_out(in_a, np.ones(problem.k, np.int8))
    if kind == "integer" and sum_limit < min(problem.k, INTEGER_SUM_LIMIT):
        _thin_out(in_a.view(a).reshape(-1, problem.k), sum_limit, rng)
    b = laid_out(in_b, signs * alpha_sign)
    c = canaries(in_c.size) if problem.beta == 0 else laid_out(in_c, signs * beta_sign)
    bias = draw(1, problem.n, signs)[0] if problem.epilogue.bias else None
    return Inputs(a, b, c, bias, kind, seed)


def _thin_out(rows: NDArray[np.float32], kept: int, rng: np.random.Generator) -> None:
    """Leave so many elements of each row, at random, and make the others zero."""
    for row in rows:
        row[rng.permutation(row.size)[kept:]] = 0.0


def _refuse_others(problem: GemmProblem) -> None:
    """What the reference and the bounds of kernels under test do not know."""
    epilogue = problem.epilogue
    plain = epilogue.activation in ("none", "relu") and epilogue.bias != "row"
    floats = {problem.dtype, problem.out_dtype} == {"float32"}
    if not floats or not plain or epilogue.takes_matrices:
        raise UsageError(
            "kernels are checked and timed on float32 matrices, with a bias for each column, relu, "
            "both or none; gemmkit.matmul computes other products"
        )


def _fill_all(
    values: NDArray[np.float32],
    rng: np.random.Generator,
    fill: Callable[[NDArray[np.float32], np.random.Generator], None],
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


def canaries(size: int) -> NDArray[np.float32]:
    """That many canary NaNs."""
    return np.full(size, CANARY_BITS, np.uint32).view(np.float32)


def matrix(storage: NDArray[np.float32], rows: int, columns: int, ld: int) -> NDArray[np.float32]:
    """The rows × columns elements of a storage, as a view."""
    found: NDArray[np.float32] = Layout(1, rows, columns, ld, 0).view(storage)[0]
    return found
