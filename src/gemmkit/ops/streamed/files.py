"""Matrices in files, read and written by system calls: a mapping's errors would end the process."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.errors import FileError

_MAPS = Path("/proc/self/maps")


class MappedFile:
    """The file that shared memory is mapped from: `address` is that of its byte `offset`."""

    def __init__(self, path: str, descriptor: int, address: int, offset: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._start = address - offset

    @classmethod
    def of(cls, array: NDArray[Any], *, writable: bool) -> MappedFile | None:
        """The file of a NumPy array, such as a `numpy.memmap` or a view of one.

        None for memory of other kinds, and for what can be reached by its mapping alone: copied on
        write, or of a file that has been removed or replaced.
        """
        if not array.size or not _is_mapped(array):
            return None
        address = array.ctypes.data
        try:
            lines = _MAPS.read_text("utf-8", errors="surrogateescape").splitlines()
        except OSError:
            return None
        for line in lines:
            fields = line.split(maxsplit=5)
            first, _, last = fields[0].partition("-")
            if not int(first, 16) <= address < int(last, 16):
                continue
            permissions, offset, inode = fields[1], int(fields[2], 16), int(fields[4])
            if not permissions.endswith("s") or len(fields) < 6:
                return None
            return cls._opened(fields[5], inode, int(first, 16), offset, writable)
        return None

    @classmethod
    def _opened(
        cls, path: str, inode: int, address: int, offset: int, writable: bool
    ) -> MappedFile | None:
        try:
            descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        except OSError:
            return None
        if os.fstat(descriptor).st_ino != inode:
            os.close(descriptor)
            return None
        return cls(path, descriptor, address, offset)

    def close(self) -> None:
        """Close it; the mapping stays."""
        os.close(self._descriptor)

    def read(self, lines: NDArray[Any], into: NDArray[Any]) -> None:
        """Fill a contiguous array with elements of the mapping, each line of which is contiguous.

        Raises:
            FileError: the file cannot be read, or ends before.
        """
        for source, target in _runs(lines, into):
            place, missing = self._place(source), memoryview(target.data)
            while missing:
                try:
                    count = os.preadv(self._descriptor, [missing], place)
                except OSError as error:
                    raise self._failed("reading", place, error) from error
                if not count:
                    raise FileError(
                        f"reading {self._path} failed: the matrix goes on past byte {place:,}, "
                        "where the file ends"
                    )
                missing, place = missing[count:], place + count

    def write(self, lines: NDArray[Any], source: NDArray[Any]) -> None:
        """Write a contiguous array to the elements of the mapping.

        Raises:
            FileError: the file cannot be written, such as on a full disk.
        """
        for target, own in _runs(lines, source):
            place, missing = self._place(target), memoryview(own.data)
            while missing:
                try:
                    count = os.pwritev(self._descriptor, [missing], place)
                except OSError as error:
                    raise self._failed("writing", place, error) from error
                missing, place = missing[count:], place + count

    def _place(self, part: NDArray[Any]) -> int:
        return int(part.ctypes.data) - self._start

    def _failed(self, doing: str, place: int, error: OSError) -> FileError:
        return FileError(
            f"{doing} {self._path} failed at byte {place:,}: {error.strerror or error}"
        )


def _is_mapped(array: NDArray[Any]) -> bool:
    """Whether a file is mapped where the array is, as far as the array tells."""
    base: object = array
    while True:
        if isinstance(base, mmap.mmap):
            return True
        found = getattr(base, "base", None)
        if found is None:
            # An array that only has another's memory keeps the object that has the array.
            found = getattr(base, "kept", None)
        if found is None and isinstance(base, memoryview):
            found = base.obj
        if found is None:
            return False
        base = found


def _runs(lines: NDArray[Any], other: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[np.uint8]]]:
    """Parts that are contiguous in both arrays: all, or each line."""
    flat = other.reshape(-1).view(np.uint8)
    width = lines.shape[1] * lines.itemsize
    if len(lines) == 1 or lines.strides[0] == width:
        return [(lines, flat)]
    return [(lines[each], flat[each * width : (each + 1) * width]) for each in range(len(lines))]
