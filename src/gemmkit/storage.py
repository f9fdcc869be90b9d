"""The storage of a problem's matrices: types, leading dimensions, batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import ITEM_BYTES, Dtype, bias_type
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.scales import BLOCKS, NONE, ScaleKind

Stored = NDArray[Any]

# NumPy has no bfloat16, nor types of 8 bits: their bits are stored as integers.
STORAGE: Mapping[Dtype, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float8_e4m3": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The storage of `count` matrices of rows × columns with batch stride `stride`.

    If they are `transposed`, columns are contiguous and `ld` apart.
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
        """The number of elements from the first to the last."""
        if not (self.count and self.matrix_size):
            return 0
        return (self.count - 1) * self.stride + self.matrix_size

    @property
    def gapless(self) -> bool:
        """Whether every element of the storage belongs to a matrix."""
        row = self.rows if self.transposed else self.columns
        return row == self.ld and (self.count <= 1 or self.stride == self.rows * self.columns)

    @property
    def covered(self) -> bool:
        """The same as `gapless`, which `GroupLayout` is only told of one matrix."""
        return self.gapless

    def view(self, storage: NDArray[Any]) -> NDArray[Any]:
        """The elements, as a view of count × rows × columns."""
        if storage.size < self.size:
            raise ValueError(f"{storage.size} elements are too few for {self}")
        shape = (self.count, self.rows, self.columns)
        if not self.size:
            return np.empty(shape, storage.dtype)
        width = storage.itemsize
        down, along = (1, self.ld) if self.transposed else (self.ld, 1)
        steps = (width * self.stride, width * down, width * along)
        return np.lib.stride_tricks.as_strided(storage, shape, steps)

    def gaps(self, storage: Stored) -> Stored:
        """A mask of the storage that belongs to no matrix: row padding and gaps between
        matrices."""
        if self.gapless:
            return storage[:0]
        outside = np.ones(self.size, bool)
        self.view(outside)[:] = False
        return storage[: self.size][outside]

    def offsets(self, count: int) -> NDArray[np.int64]:
        """The offset of the matrix of each of `count` products, in elements."""
        return np.arange(count, dtype=np.int64) * self.stride

    def part(self, storage: Stored, number: int) -> Stored:
        """The storage of one product's matrix."""
        start = number * self.stride
        return storage[start : start + self.matrix_size]


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """The layout of matrices of different shapes in one storage, each from its `start`.

    Between two of them is at least one element that belongs to neither, unless they lie
    `end_to_end`.
    """

    matrices: tuple[Layout, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, matrices: Iterable[Layout], unit: int) -> GroupLayout:
        """The matrices in sequence, each at a multiple of `unit` elements."""
        found = tuple(matrices)
        sizes = np.array([each.size for each in found], np.int64)
        places = (sizes // unit + 1) * unit
        return cls(found, tuple((np.cumsum(places) - places).tolist()))

    @classmethod
    def end_to_end(cls, matrices: Iterable[Layout]) -> GroupLayout:
        """The matrices in sequence, each from where the rows of the one before end."""
        found = tuple(matrices)
        # Without elements, as a bias of no rows, a matrix takes no place.
        places = np.array(
            [each.ld * (each.columns if each.transposed else each.rows) for each in found], np.int64
        ) * [bool(each.rows and each.columns) for each in found]
        return cls(found, tuple((np.cumsum(places) - places).tolist()))

    def of_rows(self) -> GroupLayout:
        """The same matrices, in columns, as the rows of one matrix in columns."""
        rows = sum(each.rows for each in self.matrices)
        found = tuple(replace(each, ld=max(rows, 1)) for each in self.matrices)
        starts = accumulate((each.rows for each in self.matrices[:-1]), initial=0)
        return GroupLayout(found, tuple(starts) if found else ())

    @property
    def size(self) -> int:
        """The number of elements from the first to the last."""
        ends = (start + each.size for start, each in zip(self.starts, self.matrices, strict=True))
        return max(ends, default=0)

    @property
    def gapless(self) -> bool:
        """Whether every element of the storage is known to belong to a matrix."""
        return len(self.matrices) <= 1 and all(each.gapless for each in self.matrices)

    @property
    def covered(self) -> bool:
        """Whether every element of the storage belongs to a matrix."""
        gapless = all(each.gapless for each in self.matrices)
        return gapless and sum(each.size for each in self.matrices) == self.size

    def view(self, storage: NDArray[Any]) -> list[NDArray[Any]]:
        """The elements of each matrix, as a view of rows × columns."""
        return [each.view(self.part(storage, i))[0] for i, each in enumerate(self.matrices)]

    def gaps(self, storage: Stored) -> Stored:
        """The padding: ends of rows, and the gaps between matrices."""
        outside = np.ones(self.size, bool)
        for matrix in self.view(outside):
            matrix[...] = False
        return storage[: self.size][outside]

    def offsets(self, count: int) -> NDArray[np.int64]:  # noqa: ARG002 (the same number)
        """The offset of the matrix of each product, in elements."""
        return np.array(self.starts, np.int64)

    def part(self, storage: Stored, number: int) -> Stored:
        """The storage of one product's matrix."""
        start = self.starts[number]
        return storage[start : start + self.matrices[number].size]


# The layout of one operand's matrices, for all products.
Placement = Layout | GroupLayout


def placements(problem: GemmProblem) -> dict[str, Placement]:
    """The layouts of a, b, c, bias, residual, auxiliary, scale_result, scale_a and scale_b, as far
    as the problem has them.

    A bias is a matrix of one row, shared by the products of a batch, and the scale of the results
    one of one element. The matrices of groups start at multiples of the problem's alignment, those
    of ragged groups where those before end; scales of their A are one matrix of all rows.
    """
    epilogue = problem.epilogue
    wanted = ["a", "b", "c"]
    further = ("bias", "residual", "auxiliary", "scale_result")
    wanted += [x for x in further if getattr(epilogue, x)]
    if problem.groups is None:
        found = _of_product(problem)
        return {**{name: found[name] for name in wanted}, **scale_layouts(problem)}
    products = [problem.product(number) for number in range(problem.count)]
    parts = [{**_of_product(each), **scale_layouts(each)} for each in products]
    wanted += [name for name, kind in _scale_kinds(problem) if kind != NONE]

    def together(name: str) -> Placement:
        if problem.ragged:
            found = GroupLayout.end_to_end(each[name] for each in parts)
            return found.of_rows() if name == "scale_a" and problem.scales.a.of_chunks else found
        item = ITEM_BYTES[dtype_of(problem, name)]
        return GroupLayout.of((each[name] for each in parts), max(problem.alignment // item, 1))

    return {name: together(name) for name in wanted}


def _of_product(problem: GemmProblem) -> dict[str, Layout]:
    """The layouts for one product or a batch."""
    a, b, c = layouts(problem)
    residual, auxiliary = further_layouts(problem)
    length = problem.m if problem.epilogue.bias == "row" else problem.n
    bias = Layout(1, 1, length, max(length, 1), 0)
    found = {"a": a, "b": b, "c": c, "bias": bias, "residual": residual, "auxiliary": auxiliary}
    return {**found, "scale_result": Layout(1, 1, 1, 1, 0)}


def layouts(problem: GemmProblem) -> tuple[Layout, Layout, Layout]:
    """The storage of A, B and C; an operand that a batch shares is stored once.

    Raises:
        ValueError: the problem has groups; use `placements`.
    """
    if problem.groups is not None:
        raise ValueError("groups have no layout in common")
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
    """The storage of residual and auxiliary output: row-major, shaped like C.

    If C's rows are padded, these have more padding, so that mixing them up is detected.
    """
    tight = max(problem.n, 1)
    padding = problem.ldc - problem.tight[2]
    lds = tight + 2 * padding, tight + 3 * padding
    residual, auxiliary = (
        Layout(problem.batch, problem.m, problem.n, ld, problem.m * ld) for ld in lds
    )
    return residual, auxiliary


def scale_layouts(problem: GemmProblem) -> dict[str, Layout]:
    """The storage of scale_a, of lines by chunks of k, and of scale_b, of chunks by lines, as far
    as the problem has them; those of an operand that a batch shares are stored once.

    Lines are contiguous, but of blocks of 128 lines chunks are, as `torch._scaled_mm` wants them.
    """
    if not problem.scales:
        return {}
    found = {}
    in_a, in_b, _ = layouts(problem)
    for (name, kind), count, (lines, chunks) in zip(
        _scale_kinds(problem), (in_a.count, in_b.count), problem.scale_shapes, strict=True
    ):
        if kind == NONE:
            continue
        of_lines = name == "scale_a"
        rows, columns = (lines, chunks) if of_lines else (chunks, lines)
        ld = max(chunks if kind == BLOCKS else lines, 1)
        stride = rows * columns if count > 1 else 0
        transposed = of_lines == (kind != BLOCKS)
        found[name] = Layout(count, rows, columns, ld, stride, transposed)
    return found


def scale_pitches(problem: GemmProblem, name: str, place: Layout) -> tuple[int, int]:
    """Elements from the scales of a line of A or B, or of a block of lines, to those of the next,
    and from those of a chunk of k to those of the next; 0 where all share them.

    Args:
        problem: whose they are.
        name: `scale_a` or `scale_b`.
        place: how those of a product lie.
    """
    kind = dict(_scale_kinds(problem))[name]
    down, across = (1, place.ld) if place.transposed else (place.ld, 1)
    along_lines, along_k = (down, across) if name == "scale_a" else (across, down)
    return along_lines if kind.lines else 0, along_k if kind.of_chunks else 0


def _scale_kinds(problem: GemmProblem) -> tuple[tuple[str, ScaleKind], tuple[str, ScaleKind]]:
    return ("scale_a", problem.scales.a), ("scale_b", problem.scales.b)


def dtype_of(problem: GemmProblem, name: str) -> Dtype:
    """The type of the elements of an operand of `placements`."""
    if name in ("scale_a", "scale_b", "scale_result"):
        return "float32"
    if name == "bias":
        return bias_type(problem.result_dtype)
    return problem.dtype if name in ("a", "b") else problem.result_dtype


def storage_size(rows: int, columns: int, ld: int) -> int:
    """Elements from the first to the last of a row-major matrix; 0 if it has none."""
    return (rows - 1) * ld + columns if rows and columns else 0


def matrix(storage: Stored, rows: int, columns: int, ld: int) -> Stored:
    """The rows × columns elements of a storage, as a view."""
    found: Stored = Layout(1, rows, columns, ld, 0).view(storage)[0]
    return found
