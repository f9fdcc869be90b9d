"""The bytes of memory that bulk copies and tensor copies touch, as the sanitizers count them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gemmkit.emulator.isa.tensor_copies import CHUNK, Box, chunks_of, swizzled_chunks
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.memory import Bytes, DeviceMemory
from gemmkit.emulator.sanitizer.granules import Numbers


def box_granules(box: Box, address: int, shift: int) -> Numbers:
    """The granules of shared memory, of 2^shift bytes, in which a box lies from an address on."""
    each = box.map
    rows = each.box_bytes // each.row_bytes
    found = _granules(each.swizzle, address % 1024, each.row_bytes, rows, shift)
    return found + (address >> shift)


def box_span(box: Box, address: int, shift: int) -> range | None:
    """The same granules if they follow each other, else None."""
    each = box.map
    rows = each.box_bytes // each.row_bytes
    count = _span(each.swizzle, address % 1024, each.row_bytes, rows, shift)
    return range(address >> shift, (address >> shift) + count) if count else None


def stored_granules(box: Box, address: int, shift: int) -> Numbers:
    """Those granules of a box that is stored which hold elements of the tensor: what lies past its
    edge is read, but written nowhere (or, in the last 16 bytes of a row, to what follows it)."""
    each = box.map
    width = min(box.high[0], each.sizes[0] - box.coordinates[0])
    if box.empty or width <= 0:
        return np.arange(0)
    if box.whole and width == each.counts[0]:
        return box_granules(box, address, shift)
    chunks = chunks_of(box, address).reshape(*each.counts[:0:-1], -1)
    part = chunks[tuple(slice(limit) for limit in box.high[:0:-1])].reshape(-1, chunks.shape[-1])
    found = (part[..., None] * CHUNK + np.arange(0, CHUNK, 1 << shift)) >> shift
    nbytes = width * each.item_bytes
    rows = found.reshape(len(part), -1)[:, : -(-nbytes >> shift)]
    return np.sort(rows.reshape(-1)) + (address >> shift)


@lru_cache(maxsize=256)
def _span(swizzle: int, address: int, row_bytes: int, rows: int, shift: int) -> int:
    """The number of granules if they follow each other, else 0."""
    found = _granules(swizzle, address, row_bytes, rows, shift)
    last = len(found) - 1
    return len(found) if last >= 0 and found[0] == 0 and found[-1] == last else 0


@lru_cache(maxsize=256)
def _granules(swizzle: int, address: int, row_bytes: int, rows: int, shift: int) -> Numbers:
    nbytes = row_bytes * rows
    if not swizzle or (nbytes % 128 == 0 and row_bytes == swizzle):
        return np.arange((nbytes + (1 << shift) - 1) >> shift)
    # A swizzle leaves gaps in rows that are narrower, and may in the last line.
    chunks = np.sort(swizzled_chunks(swizzle, address, row_bytes, rows))
    parts = np.arange(max(CHUNK >> shift, 1))
    return (chunks[:, None] * len(parts) + parts).reshape(-1)


def never_written(memory: DeviceMemory, copy: Copy) -> tuple[str, int] | None:
    """The array, and the byte in it, that a copy reads from global memory although it was never
    written; None if there is none."""
    found = memory.find(copy.start)
    written = memory.written(found.address) if found is not None else None
    if found is None or written is None or (copy.box is not None and copy.box.empty):
        return None
    start = copy.start - found.address
    read = _touched(copy, written[start:])
    if read.all():
        return None
    # The first byte of the box that is missing, and its place in memory.
    place = np.unravel_index(int((read == 0).argmax()), read.shape)
    offset = sum(int(index) * step for index, step in zip(place, read.strides, strict=True))
    return found.name, start + offset


def define_written(memory: DeviceMemory, copy: Copy) -> None:
    """What a copy writes to global memory counts as written."""
    found = memory.find(copy.to)
    written = memory.written(found.address) if found is not None else None
    if found is not None and written is not None and not (copy.box is not None and copy.box.empty):
        _touched(copy, written[copy.to - found.address :])[...] = 1


def _touched(copy: Copy, data: Bytes) -> Bytes:
    """The bytes that a copy touches, of those from its first one on."""
    return data[: copy.nbytes] if copy.box is None else copy.box.inside(data)
