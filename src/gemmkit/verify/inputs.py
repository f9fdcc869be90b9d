"""Inputs for a check: seeded random matrices laid out with their leading dimensions.

Storage is exactly as long as BLAS asks for, so an access past the end is one past an allocation,
and everything in it that is no element holds a NaN with a payload that shows who touched it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.verify.bands import bands, over_bands

InputKind = Literal["normal", "integer"]

# A quiet NaN whose payload random data does not hold.
CANARY_BITS = np.uint32(0x7FC0DEAD)

MAX_INTEGER = 4
# Leaves four of fp32's 24 bits for α, β·C and the bias.
INTEGER_SUM_LIMIT = 2**20

# A matrix with more elements is drawn in bands of rows, each from a stream of its own.
ONE_STREAM_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a kernel is given: row-major storage of A, B and C, each 1-D float32, and the bias.

    Element (row, col) of X lies at `row * ldx + col`. `c` holds the canary everywhere if β = 0
    (so an element that is read or left unwritten shows) and in its padding always. `bias` has n
    elements, or is None if the epilogue has none. `kind` and `seed` reproduce all of it.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    c: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    kind: InputKind
    seed: int


def make_inputs(problem: GemmProblem, seed: int = 0, kind: InputKind = "normal") -> Inputs:
    """Random inputs for a problem, the same for the same arguments.

    "normal" draws from N(0, 1). "integer" draws non-zero integers so small that every partial sum
    of A·B is an integer that fp32 represents: the product is exact in any order of summation.
    With a ReLU each column of B, C and the bias then has one sign, chosen so that whole columns
    of the result are cut to zero and the others are not: that makes the result a linear function
    of its inputs, which `freivalds` needs.
    """
    rng = np.random.default_rng(seed)
    limit = min(MAX_INTEGER, max(1, math.isqrt(INTEGER_SUM_LIMIT // max(problem.k, 1))))
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

    m, n, k = problem.m, problem.n, problem.k
    # α·A·B, β·C and the bias take the sign of their column whatever the signs of α and β.
    alpha_sign, beta_sign = (np.int8(-1 if x < 0 else 1) for x in (problem.alpha, problem.beta))
    a = _laid_out(draw(m, k, np.ones(k, np.int8)), problem.lda)
    b = _laid_out(draw(k, n, signs * alpha_sign), problem.ldb)
    c = canaries(storage_size(m, n, problem.ldc))
    if problem.beta != 0:
        c = _laid_out(draw(m, n, signs * beta_sign), problem.ldc)
    bias = draw(1, n, signs)[0] if problem.epilogue.bias else None
    return Inputs(a, b, c, bias, kind, seed)


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
    if storage.size < storage_size(rows, columns, ld):
        raise ValueError(f"{storage.size} elements do not hold {rows}x{columns} rows of {ld}")
    if rows == 0 or columns == 0:
        return np.empty((rows, columns), np.float32)
    return np.lib.stride_tricks.as_strided(storage, (rows, columns), (4 * ld, 4))


def padding(storage: NDArray[np.float32], rows: int, columns: int, ld: int) -> NDArray[np.float32]:
    """What lies between the rows' ends and the next rows' starts: (rows - 1) × (ld - columns)."""
    if rows == 0 or columns == 0:
        return np.empty((0, 0), np.float32)
    return storage[: (rows - 1) * ld].reshape(rows - 1, ld)[:, columns:]


def _laid_out(values: NDArray[np.float32], ld: int) -> NDArray[np.float32]:
    rows, columns = values.shape
    if columns == ld:
        return values.ravel()
    storage = canaries(storage_size(rows, columns, ld))
    matrix(storage, rows, columns, ld)[:] = values
    return storage
