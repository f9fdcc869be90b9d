"""Device memory of the emulated GPU: host memory, aligned as large allocations on a GPU are."""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.cluster import WINDOW_BYTES
from gemmkit.errors import DeviceError

# cudaMalloc aligns to at least 256 bytes, and large allocations to 2 MiB. The bank of a line in the
# L1's tag stage depends on that many low bits.
ALIGNMENT = 512 << 10
# The alignment if nothing is counted.
LEAST_ALIGNMENT = 256
# Native code may read (and discards), but never writes, this many bytes past the end of an
# allocation.
PADDING = 64

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Allocation:
    """A range of device memory; sizes in bytes."""

    address: int
    nbytes: int
    name: str = ""


def aligned_bytes(nbytes: int, alignment: int = 64) -> Bytes:
    """Zeroed bytes that begin at a multiple of the alignment and may be read past their end.

    Raises:
        DeviceError: there is not enough memory.
    """
    return _aligned(nbytes, alignment, lambda size: np.zeros(size, np.uint8))


def device_bytes(nbytes: int, alignment: int) -> Bytes:
    """The same above 4 GiB, below which a 64-bit address is one of shared memory: the heap of some
    interpreters is down there, but not what the system maps."""
    found = aligned_bytes(nbytes, alignment)
    if found.ctypes.data >= WINDOW_BYTES:
        return found
    return _aligned(nbytes, alignment, lambda size: np.frombuffer(mmap.mmap(-1, size), np.uint8))


def _aligned(nbytes: int, alignment: int, make: Callable[[int], Bytes]) -> Bytes:
    try:
        whole = make(nbytes + alignment + PADDING)
    except (MemoryError, ValueError, OSError, OverflowError):
        raise DeviceError(f"the host has no {nbytes:,} bytes free for device memory") from None
    start = -whole.ctypes.data % alignment
    return whole[start : start + nbytes]


class DeviceMemory:
    """Allocations by address; addresses are the host's, and multiples of `alignment`."""

    def __init__(self, alignment: int = ALIGNMENT) -> None:
        self._alignment = alignment
        self._starts: list[int] = []
        self._allocations: dict[int, tuple[Allocation, Bytes]] = {}
        self._written: dict[int, Bytes] = {}

    def allocate(self, nbytes: int, name: str = "", *, initialized: bool = True) -> Allocation:
        """Allocate zeroed memory; the name is for messages.

        Without `initialized` its bytes count as never written.

        Raises:
            DeviceError: there is not enough memory.
        """
        # An empty allocation has an address too, at which nothing may be read.
        data = device_bytes(max(nbytes, 1), self._alignment)
        allocation = Allocation(data.ctypes.data, nbytes, name)
        self._allocations[allocation.address] = allocation, data
        bisect.insort(self._starts, allocation.address)
        if not initialized:
            self._written[allocation.address] = aligned_bytes(max(nbytes, 1), self._alignment)
        return allocation

    def divide(self, allocation: Allocation, parts: Iterable[Allocation]) -> None:
        """Replace an allocation by parts within it. The gaps between them are out of bounds from
        then on, and the allocation as a whole cannot be freed."""
        _, data = self._allocations.pop(allocation.address)
        self._starts.remove(allocation.address)
        for part in parts:
            start = part.address - allocation.address
            self._allocations[part.address] = part, data[start : start + part.nbytes]
            bisect.insort(self._starts, part.address)

    def free(self, allocation: Allocation) -> None:
        """Free memory; later kernels cannot access it."""
        if self._allocations.pop(allocation.address, None) is None:
            raise DeviceError(f"there is no allocation at {allocation.address:#x} to free")
        self._written.pop(allocation.address, None)
        self._starts.remove(allocation.address)

    def rename(self, address: int, name: str) -> None:
        """Rename the allocation that begins at an address, if there is one."""
        if address in self._allocations:
            allocation, data = self._allocations[address]
            self._allocations[address] = Allocation(address, allocation.nbytes, name), data

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds an address, or None."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        allocation = self._allocations[self._starts[index]][0]
        return allocation if address < allocation.address + allocation.nbytes else None

    def names(self) -> frozenset[str]:
        """The names of the allocations."""
        return frozenset(allocation.name for allocation, _ in self._allocations.values())

    def nearest(self, address: int) -> Allocation | None:
        """The allocation that holds an address or is closest to it."""
        index = bisect.bisect_right(self._starts, address)
        near = [
            self._allocations[start][0] for start in self._starts[max(index - 1, 0) : index + 1]
        ]

        def distance(each: Allocation) -> int:
            return max(each.address - address, address - each.address - each.nbytes + 1, 0)

        return min(near, key=distance, default=None)

    def view(self, address: int, nbytes: int) -> Bytes:
        """Bytes of one allocation, readable and writable.

        Raises:
            DeviceError: they do not lie in one allocation.
        """
        found = self.find(address)
        if found is None and nbytes == 0:
            return np.zeros(0, np.uint8)
        if found is None or address + nbytes > found.address + found.nbytes:
            raise DeviceError(f"{nbytes} bytes at {address:#x} are not device memory")
        start = address - found.address
        return self._allocations[found.address][1][start : start + nbytes]

    def written(self, address: int) -> Bytes | None:
        """One byte per byte of the allocation that begins at an address: 1 if it was written.

        None if all of it counts as written.
        """
        return self._written.get(address)

    def snapshot(self) -> list[tuple[Bytes, Bytes]]:
        """The contents of all memory, and which of it was written; for `restore`."""
        held = [data for _, data in self._allocations.values()] + list(self._written.values())
        return [(data, data.copy()) for data in held]

    def restore(self, snapshot: list[tuple[Bytes, Bytes]]) -> None:
        """Restore the contents of a snapshot; the allocations must be the same."""
        for data, before in snapshot:
            data[:] = before

    def regions(self) -> NDArray[np.int64]:
        """(first byte, size) of every allocation that is not empty, sorted."""
        found = [
            (start, self._allocations[start][0].nbytes)
            for start in self._starts
            if self._allocations[start][0].nbytes
        ]
        return np.array(found, np.int64).reshape(-1, 2)
