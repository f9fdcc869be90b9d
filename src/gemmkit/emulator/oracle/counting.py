"""The counting rules, for the requests of many warps at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.counters.rules import (
    LINE_BYTES,
    SECTOR_BYTES,
    TAG_BANK_BITS,
    local_sectors,
    shared_wavefronts,
)
from gemmkit.emulator.oracle.memory import Addresses, Lanes


def global_counts_of(addresses: Addresses, lanes: Lanes, nbytes: int) -> tuple[int, int, int]:
    """Sectors, the fewest that could have done, and tag-stage wavefronts of accesses to global
    memory; each lies within one sector, a row is a warp."""
    active = lanes.any(axis=1)
    addresses, lanes = addresses[active], lanes[active]
    if not len(addresses):
        return 0, 0, 0
    first = np.take_along_axis(addresses, lanes.argmax(axis=1)[:, None], axis=1)
    ordered: Addresses = np.sort(np.where(lanes, addresses, first), axis=1)
    places = np.count_nonzero(_new(ordered), axis=1)
    ideal = int((-(-places * nbytes // SECTOR_BYTES)).sum())
    lines = ordered // LINE_BYTES
    new = _new(lines)
    sectors = int(np.count_nonzero(_new(ordered // SECTOR_BYTES)))
    if not new[:, 1:].any():
        return sectors, ideal, len(lines)
    banks = np.zeros(lines.shape, np.int64)
    for place, bits in enumerate(TAG_BANK_BITS):
        odd = np.zeros(lines.shape, np.int64)
        for bit in bits:
            odd ^= (lines * np.uint64(LINE_BYTES) >> np.uint64(bit) & np.uint64(1)).astype(np.int64)
        banks |= odd << place
    depth = [np.count_nonzero(new & (banks == bank), axis=1) for bank in range(4)]
    return sectors, ideal, int(np.max(depth, axis=0).sum())


def _new(ordered: Addresses) -> Lanes:
    """Where a number is not the one before it in its row."""
    found: Lanes = np.ones(ordered.shape, bool)
    found[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return found


def wavefronts_of(addresses: Addresses, lanes: Lanes, nbytes: int, store: bool) -> tuple[int, int]:
    """Wavefronts and bank conflicts of accesses to shared memory; a row is a warp."""
    active = lanes.any(axis=1)
    addresses, lanes = addresses[active], lanes[active]
    if not len(addresses):
        return 0, 0
    # Banks repeat every 128 bytes, so warps that are whole lines apart cost the same.
    first = np.take_along_axis(addresses, lanes.argmax(axis=1)[:, None], axis=1)
    relative = np.where(lanes, addresses - first // LINE_BYTES * LINE_BYTES, 0).astype(np.int64)
    if (relative == relative[0]).all() and (lanes == lanes[0]).all():
        one = _wavefronts(relative[0].tobytes(), lanes[0].tobytes(), nbytes, store)
        return one[0] * len(relative), one[1] * len(relative)
    counts = [
        _wavefronts(row.tobytes(), mask.tobytes(), nbytes, store)
        for row, mask in zip(relative, lanes, strict=True)
    ]
    return sum(each[0] for each in counts), sum(each[1] for each in counts)


@lru_cache(maxsize=1 << 16)
def _wavefronts(relative: bytes, lanes: bytes, nbytes: int, store: bool) -> tuple[int, int]:
    addresses: NDArray[np.int64] = np.frombuffer(relative, np.int64)
    return shared_wavefronts(addresses.tolist(), np.frombuffer(lanes, bool).tolist(), nbytes, store)


def local_sectors_of(offsets: Addresses, lanes: Lanes, nbytes: int) -> int:
    """Sectors of accesses to local memory; a row is a warp."""
    return sum(
        local_sectors({int(lane): int(row[lane]) for lane in np.flatnonzero(mask)}, nbytes)
        for row, mask in zip(offsets, lanes, strict=True)
    )
