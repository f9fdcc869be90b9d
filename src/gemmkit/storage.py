"""The storage of a problem's matrices: types, leading dimensions, batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import BROADCAST, Dtype, GemmProblem

Stored = NDArray[Any]

# NumPy has no bfloat16: its bits are stored as uint16.
STORAGE: Mapping[Dtype, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
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


def layouts(problem: GemmProblem) -> tuple[Layout, Layout, Layout]:
    """The storage of A, B and C; an operand that a batch shares is stored once."""
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


def storage_size(rows: int, columns: int, ld: int) -> int:
    """Elements from the first to the last of a row-major matrix; 0 if it has none."""
    return (rows - 1) * ld + columns if rows and columns else 0


def matrix(storage: Stored, rows: int, columns: int, ld: int) -> Stored:
    """The rows × columns elements of a storage, as a view."""
    found: Stored = Layout(1, rows, columns, ld, 0).view(storage)[0]
    return found
