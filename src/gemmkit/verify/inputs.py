"""Inputs for a check: seeded random matrices of any type, in the problem's layout.

Storage is exactly as long as BLAS requires, so that an access past its end is past an allocation.
Padding is filled with a NaN whose payload shows whether it was overwritten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import Dtype, bias_type
from gemmkit.epilogue import Epilogue
from gemmkit.float8_products import CHUNK
from gemmkit.problem import GemmProblem
from gemmkit.scales import ScaleKind
from gemmkit.storage import (
    STORAGE,
    GroupLayout,
    Layout,
    Placement,
    Stored,
    dtype_of,
    further_layouts,
    layouts,
    placements,
    scale_layouts,
)
from gemmkit.verify.encoding import Matrix, Numbers, canaries, decode, encode
from gemmkit.verify.row_blocks import of_products, on_all_cores, row_blocks

InputKind = Literal["normal", "integer", "non-finite"]
"""What inputs are drawn: see `make_inputs`."""

MAX_INTEGER = 4
# That of the largest scale that integers have.
LARGEST_EXPONENT = 1
# Leaves four of the 24 bits of fp32 for α, β·C and the bias.
INTEGER_SUM_LIMIT = 2**20

# A matrix with more elements is drawn in row blocks, each from its own random stream.
ONE_STREAM_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class Inputs:
    """The storage of A, B and C, and the epilogue's operands, as a kernel receives them.

    Each is 1-D, of the problem's types as `storage.STORAGE` holds them. Element (row, col) of X is
    at `row * ldx + col`, of a transposed X at `col * ldx + row`, plus `i * stride_x` for product i
    of a batch; `storage.placements` says where the matrices of groups are. `c` holds the canary in
    its padding, between the matrices of groups and, if β = 0, everywhere, which shows elements that
    are read, or not written. `bias` has n elements, or m for a row bias. `residual` and `auxiliary`
    have the layouts of `further_layouts`; `auxiliary` is filled with canaries. Operands that the
    epilogue does not have are None. `kind` and `seed` reproduce everything. `out_dtype` is the type
    of C. `scale_a` and `scale_b` have the layouts of `scale_layouts`; `scale_result` is one number.
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
    scale_a: Stored | None = None
    scale_b: Stored | None = None
    scale_result: Stored | None = None

    def of_product(
        self,
        problem: GemmProblem,
        number: int,
        placed: Mapping[str, Placement] | None = None,
    ) -> Inputs:
        """Views of the inputs of product `number` of the problem, as those of a single product.

        `placed` are the problem's `placements`, to be given if many products are asked for.
        """
        if problem.batch == 1 and problem.groups is None:
            return self
        found = self.arrays
        parts: dict[str, Any] = {
            name: each.part(found[name], number)
            for name, each in (placed or placements(problem)).items()
            if name in found
        }
        for name in filter(lambda each: _lies_otherwise(problem, each), parts):
            own = scale_layouts(problem.product(number))[name]
            scales = np.empty(own.size, np.float32)
            where = (placed or placements(problem))[name]
            own.view(scales)[0][...] = _matrix(where, number).view(parts[name])[0]
            parts[name] = scales
        return replace(self, **parts)

    def for_epilogue(self, epilogue: Epilogue) -> Inputs:
        """The same inputs without the operands that `epilogue` does not have."""
        return replace(
            self,
            bias=self.bias if epilogue.bias else None,
            residual=self.residual if epilogue.residual else None,
            auxiliary=self.auxiliary if epilogue.auxiliary else None,
            scale_result=self.scale_result if epilogue.scale_result else None,
        )

    def scale_of(self, problem: GemmProblem) -> float:
        """What the activation's result is multiplied by.

        That is the scale of the problem's epilogue, as the kernel gets it, times the one in memory.
        """
        scale = problem.epilogue.scale
        if problem.sum_dtype == "float32":
            scale = float(np.float32(scale))
        return scale if self.scale_result is None else scale * float(self.scale_result[0])

    @property
    def bias_numbers(self) -> Numbers | None:
        """The bias as numbers, or None."""
        return None if self.bias is None else decode(self.bias, bias_type(self.out_dtype))

    @property
    def arrays(self) -> dict[str, Stored]:
        """The storage of each operand that is present, by name."""
        names = (
            *("a", "b", "c", "bias", "residual", "auxiliary"),
            *("scale_a", "scale_b", "scale_result"),
        )
        found = {name: getattr(self, name) for name in names}
        return {name: storage for name, storage in found.items() if storage is not None}

    @property
    def nbytes(self) -> int:
        """The total size of the storage, in bytes."""
        return sum(each.nbytes for each in self.arrays.values())


def matrices(problem: GemmProblem, inputs: Inputs) -> tuple[Matrix, Matrix, Matrix]:
    """A (m×k), B (k×n) and C (m×n) of a single product, as views of their storage; A and B with
    their scales."""
    a, b, c = (
        Matrix(layout.view(storage)[0], dtype)
        for layout, storage, dtype in zip(
            layouts(problem),
            (inputs.a, inputs.b, inputs.c),
            (problem.dtype, problem.dtype, problem.result_dtype),
            strict=True,
        )
    )
    if problem.scales:
        places = scale_layouts(problem)
        if inputs.scale_a is not None:
            own = places["scale_a"].view(inputs.scale_a)[0]
            shared = _shared(problem.scales.a, problem.m, problem.k)
            a = replace(a, scales=own, shared=shared)
        if inputs.scale_b is not None:
            own = places["scale_b"].view(inputs.scale_b)[0]
            shared = _shared(problem.scales.b, problem.n, problem.k)
            b = replace(b, scales=own, shared=shared[::-1])
    return a, b, c


def _shared(kind: ScaleKind, lines: int, k: int) -> tuple[int, int]:
    """The lines, and the elements along k, that share a scale."""
    return kind.lines or max(lines, 1), CHUNK if kind.of_chunks else max(k, 1)


def residual_matrix(problem: GemmProblem, inputs: Inputs) -> Matrix | None:
    """The residual (m×n) of a single product, as a view of its storage, or None."""
    if inputs.residual is None:
        return None
    return Matrix(further_layouts(problem)[0].view(inputs.residual)[0], problem.result_dtype)


def make_inputs(
    problem: GemmProblem,
    seed: int = 0,
    kind: InputKind = "normal",
    sum_limit: int = INTEGER_SUM_LIMIT,
) -> Inputs:
    """Draw random inputs for a problem, the same for the same arguments.

    "normal" draws from N(0, 1). "integer" draws non-zero integers so small that fp32 represents
    every partial sum of A·B: the product is exact in any order of summation. `sum_limit` lowers the
    limit of Σ|A|·|B|: if k is larger, most of A is zero. With a ReLU, the integers in each column
    of B, C and the bias have one sign, so that the ReLU sets whole columns of the result to zero
    and leaves the others. The result is then linear in the inputs, as `freivalds` requires. Each of
    several groups is drawn independently. "non-finite" is "normal" with a NaN and two infinities in
    A, and as many in B: see `_place`.

    Args:
        problem: gives shapes, types and layouts.
        seed: seed of the random numbers.
        kind: "normal", "integer" or "non-finite".
        sum_limit: for "integer", the largest Σ|A|·|B| of an element.

    Returns:
        the storage of every operand.
    """
    rng = np.random.default_rng(seed)
    if problem.groups is not None:
        return _grouped(problem, rng, seed, kind, sum_limit)
    return _drawn(problem, rng, seed, kind, sum_limit)


def _grouped(
    problem: GemmProblem, rng: np.random.Generator, seed: int, kind: InputKind, sum_limit: int
) -> Inputs:
    """The inputs of each product, with canaries between them."""
    placed = placements(problem)
    storage = {
        name: np.empty(each.size, STORAGE[dtype_of(problem, name)])
        if each.covered
        else canaries(each.size, dtype_of(problem, name))
        for name, each in placed.items()
    }

    def fill(product: tuple[int, np.random.Generator]) -> None:
        number, stream = product
        drawn = _drawn(problem.product(number), stream, seed, kind, sum_limit).arrays
        for name, each in placed.items():
            part = each.part(storage[name], number)
            if _lies_otherwise(problem, name):
                own = scale_layouts(problem.product(number))[name]
                _matrix(each, number).view(part)[0][...] = own.view(drawn[name])[0]
            else:
                part[:] = drawn[name]

    of_products(fill, enumerate(rng.spawn(problem.count)))
    given: dict[str, Any] = {"bias": None, **storage}
    return Inputs(**given, kind=kind, seed=seed, out_dtype=problem.result_dtype)


def _lies_otherwise(problem: GemmProblem, name: str) -> bool:
    """Whether what a product has of an operand lies otherwise than that of a single product: scales
    of rows and chunks of ragged groups do, in one matrix of all rows."""
    return problem.ragged and name == "scale_a" and problem.scales.a.of_chunks


def _matrix(where: Placement, number: int) -> Layout:
    """The layout of one product's matrix."""
    return where.matrices[number] if isinstance(where, GroupLayout) else where


def _drawn(
    problem: GemmProblem, rng: np.random.Generator, seed: int, kind: InputKind, sum_limit: int
) -> Inputs:
    """The inputs of products of one shape."""
    epilogue, out_dtype = problem.epilogue, problem.result_dtype
    if problem.scales:
        sum_limit = max(1, sum_limit >> 2 * LARGEST_EXPONENT)
    limit = min(MAX_INTEGER, max(1, math.isqrt(sum_limit // max(problem.k, 1))))
    signs = np.ones(problem.n, np.int8)
    one_signed = kind == "integer" and has_one_signed_columns(problem)
    if one_signed:
        signs -= 2 * rng.integers(0, 2, problem.n, np.int8)

    def fill(out: Numbers, rng: np.random.Generator, sign: NDArray[np.int8]) -> None:
        if kind != "integer":
            rng.standard_normal(dtype=out.dtype, out=out)
            return
        if one_signed:
            values = rng.integers(1, limit, out.shape, np.int8, endpoint=True)
        else:
            values = rng.integers(-limit, limit, out.shape, np.int8)
            values += values >= 0
        np.multiply(values, sign, out=out, casting="unsafe")

    def draw(rows: int, columns: int, sign: NDArray[np.int8], dtype: Dtype) -> Stored:
        found = np.empty((rows, columns), STORAGE[dtype])
        numbers = np.float64 if dtype == "float64" else np.float32

        def fill_rows(block: slice, stream: np.random.Generator) -> None:
            # Numbers that are stored as they are need no other memory.
            part = found[block]
            drawn = part if found.dtype == numbers else np.empty(part.shape, numbers)
            fill(drawn, stream, sign)
            if drawn is not part:
                part[...] = encode(drawn, dtype)

        _fill_all(rows, columns, rng, fill_rows)
        return found

    def laid_out(layout: Layout, sign: NDArray[np.int8], dtype: Dtype) -> Stored:
        values = draw(layout.count * layout.rows, layout.columns, sign, dtype)
        if layout.gapless and not layout.transposed:
            return values.ravel()
        storage = canaries(layout.size, dtype)
        layout.view(storage)[:] = values.reshape(layout.count, layout.rows, layout.columns)
        return storage

    # α·A·B, β·C and the bias have the sign of their column for any signs of α and β.
    alpha_sign, beta_sign = (np.int8(-1 if x < 0 else 1) for x in (problem.alpha, problem.beta))
    in_a, in_b, in_c = layouts(problem)
    a = laid_out(in_a, np.ones(problem.k, np.int8), problem.dtype)
    if kind == "integer" and sum_limit < min(problem.k, INTEGER_SUM_LIMIT):
        _thin_out(in_a.view(a).reshape(-1, problem.k), sum_limit, rng)
    b = laid_out(in_b, signs * alpha_sign, problem.dtype)
    if kind == "non-finite":
        for number in range(in_a.count):
            _place(in_a.view(a)[number], problem.dtype)
        for number in range(in_b.count):
            _place(in_b.view(b)[number].T, problem.dtype)
    c = canaries(in_c.size, out_dtype)
    if problem.beta != 0:
        c = laid_out(in_c, signs * beta_sign, out_dtype)
    bias = None
    if epilogue.bias == "column":
        bias = draw(1, problem.n, signs, bias_type(out_dtype))[0]
    elif epilogue.bias == "row":
        bias = draw(1, problem.m, np.ones(problem.m, np.int8), bias_type(out_dtype))[0]
    of_residual, of_auxiliary = further_layouts(problem)
    residual = laid_out(of_residual, signs, out_dtype) if epilogue.residual else None
    auxiliary = canaries(of_auxiliary.size, out_dtype) if epilogue.auxiliary else None
    scales = {name: _scales(place, rng, kind) for name, place in scale_layouts(problem).items()}
    if epilogue.scale_result:
        scales["scale_result"] = _scales(Layout(1, 1, 1, 1, 0), rng, kind)
    return Inputs(a, b, c, bias, kind, seed, residual, auxiliary, out_dtype, **scales)


def _scales(layout: Layout, rng: np.random.Generator, kind: InputKind) -> Stored:
    """Scales of an operand, positive and unlike each other: powers of two beside integers, which
    they keep exact, else numbers as those that quantization finds."""
    size = layout.size
    if kind == "integer":
        return np.asarray(2.0 ** rng.integers(0, LARGEST_EXPONENT + 1, size), np.float32)
    return rng.uniform(0.25, 2.0, size).astype(np.float32)


def has_one_signed_columns(problem: GemmProblem) -> bool:
    """Whether integer inputs give each column of the result one sign, for the ReLU; a row bias
    has no sign per column."""
    return problem.epilogue.activation == "relu" and problem.epilogue.bias != "row"


def _place(rows: Stored, dtype: Dtype) -> None:
    """Put NaN and -inf at the start of two rows of A, and +inf at the very end; likewise in the
    columns of B.

    Where rows are contiguous, a kernel that reads past the end of the row before, and multiplies by
    zero, makes that row's results NaN; one that stays at the last element of a row or of the matrix
    instead makes those NaN that are to be infinite. Most rows keep finite elements alone.
    """
    count, length = rows.shape
    if not rows.size:
        return
    for row, column, value in (
        (count // 3, 0, np.nan),
        (2 * count // 3, 0, -np.inf),
        (count - 1, length - 1, np.inf),
    ):
        rows[row, column] = encode(np.array([value], np.float32), dtype)[0]


def _thin_out(rows: Stored, kept: int, rng: np.random.Generator) -> None:
    """Keep `kept` random elements of each row and set the others to zero."""
    for row in rows:
        row[rng.permutation(row.size)[kept:]] = 0


def _fill_all(
    rows: int,
    columns: int,
    rng: np.random.Generator,
    fill: Callable[[slice, np.random.Generator], None],
) -> None:
    """Fill the row blocks of a matrix from one random stream, or those of a large one from a stream
    each."""
    blocks = row_blocks(rows, columns)
    if rows * columns <= ONE_STREAM_ELEMENTS:
        for block in blocks:
            fill(block, rng)
        return
    on_all_cores(lambda pair: fill(*pair), zip(blocks, rng.spawn(len(blocks)), strict=True))
