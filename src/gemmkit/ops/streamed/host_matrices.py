"""`HostStack`: matrices in host memory, and the lines of which their panels and tiles consist."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import Dtype
from gemmkit.ops.streamed.files import MappedFile

# Bytes from a line to the next that a copy engine can take (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
_LONGEST_PITCH = 2**31 - 1


class HostStack:
    """A stack of matrices as NumPy finds them, by their bits; any strides, also of 0.

    `columns` says that columns are contiguous, not rows: panels keep what is contiguous. `shared`
    says that all matrices of the stack are the same one, `pinned` that a device copies from and
    to the memory by itself, `file` is what the memory is mapped from.

    Args:
        array: the stack's dimensions, and rows and columns.
        dtype: the type of its elements.
        by_rows: have panels of rows whatever is contiguous.
        writable: whether it is written, not read.
    """

    def __init__(
        self, array: NDArray[Any], dtype: Dtype, *, by_rows: bool = False, writable: bool = False
    ) -> None:
        *stack, self.rows, self.columns_count = array.shape
        self.batch = prod(stack)
        self.dtype, self.item = dtype, array.itemsize
        down, across = array.strides[-2:]
        self.columns = not by_rows and across != self.item and down == self.item
        self.shared = self.batch > 1 and not any(
            step for size, step in zip(stack, array.strides, strict=False) if size > 1
        )
        if self.shared:
            array = array[(slice(0, 1),) * len(stack)]
        self._array, self._stack = array, array.shape[:-2]
        self._flat = merged(array, 2)
        self.pinned = False
        self.file = MappedFile.of(array, writable=writable)

    @property
    def array(self) -> NDArray[Any]:
        """All matrices, those that are the same once."""
        return self._array

    def close(self) -> None:
        """Close its file, if there is one."""
        if self.file is not None:
            self.file.close()

    def lines(
        self, products: range, rows: range, columns: range
    ) -> Iterator[tuple[NDArray[Any], int]]:
        """A part of some matrices as lines, and the number of the first of them.

        The parts of the matrices follow each other; each has a line for a row, or a column.
        """
        numbers = range(1) if self.shared else products
        count = len(columns) if self.columns else len(rows)
        if self._flat is not None:
            part = self._flat[
                numbers.start : numbers.stop,
                rows.start : rows.stop,
                columns.start : columns.stop,
            ]
            part = part.swapaxes(1, 2) if self.columns else part
            if len(numbers) == 1:
                yield part[0], 0
                return
            if part.strides[0] == count * part.strides[1] or count == 1:
                down = part.strides[0] if count == 1 else part.strides[1]
                shape = (len(numbers) * count, part.shape[2])
                yield np.lib.stride_tricks.as_strided(part, shape, (down, part.strides[2])), 0
                return
        for place, number in enumerate(numbers):
            index = np.unravel_index(number, self._stack) if self._stack else ()
            matrix = self._array[index][rows.start : rows.stop, columns.start : columns.stop]
            yield (matrix.T if self.columns else matrix), place * count

    def is_direct(self, lines: NDArray[Any]) -> bool:
        """Whether a device copies these lines from or to the memory itself."""
        if not self.pinned or self.file is not None:
            return False
        count, length = lines.shape
        width = length * self.item
        contiguous = lines.strides[1] == self.item or length == 1
        in_order = count == 1 or width <= lines.strides[0] <= _LONGEST_PITCH
        return contiguous and in_order and lines.dtype.isnative

    def read(self, lines: NDArray[Any], into: NDArray[Any]) -> None:
        """Copy lines of `lines` to staging memory, in this machine's byte order; bits of 16 become
        those of the same numbers in fp32 where that is what there is room for.

        Raises:
            FileError: their file cannot be read.
        """
        if into.itemsize > self.item:
            own = np.empty(lines.shape, f"u{self.item}")
            self.read(lines, own)
            into[...] = widened(own, self.dtype)
        elif self.file is not None and _is_plain(lines):
            self.file.read(lines, into)
        else:
            into[...] = lines

    def write(self, lines: NDArray[Any], source: NDArray[Any]) -> None:
        """Copy from staging memory to lines of `lines`.

        Raises:
            FileError: their file cannot be written.
        """
        if self.file is not None and _is_plain(lines):
            self.file.write(lines, source)
        else:
            lines[...] = source


def merged(array: NDArray[Any], left: int) -> NDArray[Any] | None:
    """A view of which all dimensions but the last `left` are one; None if there is no such view."""
    sizes, step = array.shape[: array.ndim - left], 0
    reach = None
    for size, stride in zip(reversed(sizes), reversed(array.strides[: len(sizes)]), strict=True):
        if size == 1:
            continue
        if reach is None:
            step = stride
        elif stride != reach:
            return None
        reach = size * stride
    shape = (prod(sizes), *array.shape[array.ndim - left :])
    return np.lib.stride_tricks.as_strided(array, shape, (step, *array.strides[len(sizes) :]))


def widened(numbers: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """The bits in fp32 of numbers of 16 bits, given by their bits."""
    if dtype == "bfloat16":
        return numbers.astype(np.uint32) << np.uint32(16)
    return numbers.view(np.float16).astype(np.float32).view(np.uint32)


def _is_plain(lines: NDArray[Any]) -> bool:
    """Whether each line is contiguous, in this machine's byte order."""
    contiguous = lines.strides[1] == lines.itemsize or lines.shape[1] == 1
    return contiguous and lines.dtype.isnative
