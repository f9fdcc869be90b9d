"""Inputs for a check: seeded random matrices of any type, laid out as the problem says.

Storage is exactly as long as BLAS asks for, so an access past the end is one past an allocation,
and everything in it that is not an element holds a NaN with a payload that shows who touched it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemmkit.epilogue import Epilogue
from gemmkit.problem import Dtype, GemmProblem
from gemmkit.storage import Layout, Placement, Stored, further_layouts, layouts, placements
from gemmkit.verify.bands import bands, over_bands
from gemmkit.verify.encoding import Numbers, canaries, decode, encode

InputKind = Literal["normal", "integer"]

MAX_INTEGER = 4
# Leaves four of fp32's 24 bits for α, β·C and the bias.
INTEGER_SUM_LIMIT = 2**20

# A matrix with more elements is drawn in bands of rows, each from a stream of its own.
ONE_STREAM_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a kernel is given: storage of A, B and C, and the operands of the epilogue.

    Each is 1-D, of the problem's types as `storage.STORAGE` holds them. Element (row, col) of X
    lies at `row * ldx + col`, of a transposed X at `col * ldx + row`; that of product i of a batch
    `i * stride_x` further, and that of groups where `storage.placements` says. `c` holds the canary
    everywhere if β = 0 (so an element that is read or left unwritten shows), in its padding and
    between the matrices of groups always. `bias` has n elements, or m for a row bias.
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

    def of_product(
        self,
        problem: GemmProblem,
        number: int,
        placed: Mapping[str, Placement] | None = None,
    ) -> Inputs:
        """Views of what one of the problem's products is given, as of a single product.

        `placed` are the problem's `placements`, for who asks for many products.
        """
        if problem.batch == 1 and problem.groups is None:
            return self
        found = self.arrays
        parts: dict[str, Any] = {
            name: each.part(found[name], number)
            for name, each in (placed or placements(problem)).items()
            if name in found
        }
        return replace(self, **parts)

    def for_epilogue(self, epilogue: Epilogue) -> Inputs:
        """The same without the operands that an epilogue does not have."""
        return replace(
            self,
            bias=self.bias if epilogue.bias else None,
            residual=self.residual if epilogue.residual else None,
            auxiliary=self.auxiliary if epilogue.auxiliary else None,
        )

    @property
    def bias_numbers(self) -> Numbers | None:
        """The bias as numbers, or None."""
        return None if self.bias is None else decode(self.bias, self.out_dtype)

    @property
    def arrays(self) -> dict[str, Stored]:
        """Storage by name, of the operands that there are."""
        names = ("a", "b", "c", "bias", "residual", "auxiliary")
        found = {name: getattr(self, name) for name in names}
        return {name: storage for name, storage in found.items() if storage is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of all that a launch reads or writes."""
        return sum(each.nbytes for each in self.arrays.values())


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
    of its inputs, which `freivalds` needs. Each of several groups is drawn by itself.
    """
    rng = np.random.default_rng(seed)
    if problem.groups is not None:
        return _grouped(problem, rng, seed, kind, sum_limit)
    return _drawn(problem, rng, seed, kind, sum_limit)


def _grouped(
    problem: GemmProblem, rng: np.random.Generator, seed: int, kind: InputKind, sum_limit: int
) -> Inputs:
    """Those of each product, with canaries between them."""
    placed = placements(problem)
    storage = {
        name: canaries(each.size, problem.dtype if name in "ab" else problem.result_dtype)
        for name, each in placed.items()
    }
    for number, stream in enumerate(rng.spawn(problem.count)):
        drawn = _drawn(problem.product(number), stream, seed, kind, sum_limit).arrays
        for name, each in placed.items():
            each.part(storage[name], number)[:] = drawn[name]
    given: dict[str, Any] = {"bias": None, **storage}
    return Inputs(**given, kind=kind, seed=seed, out_dtype=problem.result_dtype)


def _drawn(
    problem: GemmProblem, rng: np.random.Generator, seed: int, kind: InputKind, sum_limit: int
) -> Inputs:
    """Those of products of one shape."""
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
