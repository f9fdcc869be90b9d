"""The state spaces as arrays of bytes: address translation, loads and stores of lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gemmkit.errors import DeviceError

Bytes = NDArray[np.uint8]
Lanes = NDArray[np.bool_]
Addresses = NDArray[np.uint64]
Indices = NDArray[np.int64]

# Where generic addresses of shared and local memory begin, far from any host address.
SHARED_WINDOW = 1 << 60
LOCAL_WINDOW = 1 << 61
WINDOW_BYTES = 1 << 32


class Allocation(Protocol):
    """An allocation in global memory."""

    @property
    def address(self) -> int:
        """Its first byte."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""


class GlobalMemory(Protocol):
    """Global memory by address."""

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds an address."""

    def view(self, address: int, nbytes: int) -> Bytes:
        """Its bytes, to read and write."""


@dataclass(frozen=True, slots=True)
class Span:
    """Lanes of one access to one array of bytes, each from `index` on."""

    data: Bytes
    index: Indices
    lanes: Lanes

    def load(self, nbytes: int) -> NDArray[np.unsignedinteger]:
        """One number per lane, 0 in other lanes."""
        numbers = self._numbers(nbytes)
        if self.lanes.all():
            return numbers.take(self.index // nbytes)
        values = np.zeros(self.lanes.shape, numbers.dtype)
        values[self.lanes] = numbers[self.index[self.lanes] // nbytes]
        return values

    def store(self, values: NDArray[np.unsignedinteger]) -> None:
        """One number from each lane; of several lanes at one address the last one wins."""
        numbers = self._numbers(values.itemsize)
        values = np.broadcast_to(values, self.lanes.shape)
        numbers[self.index[self.lanes] // values.itemsize] = values[self.lanes]

    def _numbers(self, nbytes: int) -> NDArray[np.unsignedinteger]:
        whole = len(self.data) // nbytes * nbytes
        return self.data[:whole].view(f"u{nbytes}")

    def moved(self, nbytes: int) -> Span:
        """The same lanes, some bytes further on."""
        return Span(self.data, self.index + nbytes, self.lanes)


class Fault(Exception):
    """An access that is not allowed."""

    def __init__(self, what: str, address: int, lanes: Lanes) -> None:
        super().__init__(f"{what} at address {address:#x}")
        self.row, self.lane = (int(each[0]) for each in np.nonzero(lanes))


class PrivateSpace:
    """Memory that each block (shared) or thread (local) has for itself, one after the other.

    `base` is the address of its first byte.
    """

    def __init__(self, name: str, owners: int, nbytes: int, base: int = 0) -> None:
        self.name = name
        self.nbytes = nbytes
        self.base = base
        self._base = np.uint64(base)
        self._stride = -(-nbytes // 256) * 256
        self._data = np.zeros(owners * self._stride, np.uint8)

    def spans(
        self, owners: Indices, addresses: Addresses, lanes: Lanes, nbytes: int
    ) -> Iterator[Span]:
        """Where an access goes; owners broadcast to lanes."""
        offsets = addresses - self._base
        beyond = lanes & ((offsets > self.nbytes) | (offsets + nbytes > self.nbytes))
        _refuse(f"out of bounds in {self.name} memory", addresses, beyond)
        yield Span(self._data, owners * self._stride + offsets.astype(np.int64), lanes)

    @property
    def held(self) -> Bytes:
        """The bytes of all owners."""
        return self._data

    def view(self, owner: int, address: int, nbytes: int) -> Bytes:
        """Bytes of one owner, which must exist, to read and write."""
        start = owner * self._stride + address - self.base
        return self._data[start : start + nbytes]

    def text(self, owner: int, address: int, nbytes: int) -> bytes:
        """Bytes of one owner, as many as there are."""
        start = owner * self._stride + address - int(self._base)
        return self._data[start : min(start + nbytes, (owner + 1) * self._stride)].tobytes()


def global_spans(
    memory: GlobalMemory, addresses: Addresses, lanes: Lanes, nbytes: int
) -> Iterator[Span]:
    """The memory of an access to global memory, in one or more allocations."""
    left = lanes.copy()
    while left.any():
        lowest = int(addresses[left].min())
        found = memory.find(lowest)
        if found is None:
            _refuse("out of bounds in global memory", addresses, left & (addresses == lowest))
            return
        start, size = np.uint64(found.address), np.uint64(found.nbytes)
        inside = left & (addresses - start < size)
        beyond = inside & (addresses - start + np.uint64(nbytes) > size)
        _refuse("out of bounds in global memory", addresses, beyond)
        data = memory.view(found.address, found.nbytes)
        yield Span(data, (addresses - start).astype(np.int64), inside)
        left &= ~inside


def check_aligned(addresses: Addresses, lanes: Lanes, nbytes: int) -> None:
    """Check that an access is aligned to its size.

    Raises:
        Fault: it does not.
    """
    _refuse("misaligned", addresses, lanes & (addresses % np.uint64(nbytes) != 0))


def _refuse(what: str, addresses: Addresses, lanes: Lanes) -> None:
    if lanes.any():
        raise Fault(what, int(addresses[lanes][0]), lanes)


def window_of(addresses: Addresses, space: str) -> Lanes:
    """Which generic addresses are in shared or local memory, or in neither (global)."""
    shared = addresses - np.uint64(SHARED_WINDOW) < WINDOW_BYTES
    local = addresses - np.uint64(LOCAL_WINDOW) < WINDOW_BYTES
    return {"shared": shared, "local": local, "global": ~shared & ~local}[space]


def text_at(memory: GlobalMemory, address: int) -> str:
    """A string that ends in a zero byte, in global memory.

    Raises:
        DeviceError: there is no memory at the address.
    """
    found = memory.find(address)
    if found is None:
        raise DeviceError(f"printf reads a string at {address:#x}, where there is no memory")
    data = memory.view(address, found.address + found.nbytes - address).tobytes()
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")
