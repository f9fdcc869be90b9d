"""The counting rules, for the requests of many warps at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.counters.rules import (
    LINE_BYTES,
    SECTOR_BYTES,
    local_sectors,
    shared_wavefronts,
)
from gemmkit.emulator.oracle.memory import Addresses, Lanes


def sectors_of(addresses: Addresses, lanes: Lanes) -> int:
    """Sectors of aligned accesses to global memory, none larger than a sector; a row is a warp."""
    active = lanes.any(axis=1)
    numbers, lanes = addresses[active] // SECTOR_BYTES, lanes[active]
    if not len(numbers):
        return 0
    first = np.take_along_axis(numbers, lanes.argmax(axis=1)[:, None], axis=1)
    numbers = np.sort(np.where(lanes, numbers, first), axis=1)
    return len(numbers) + int(np.count_nonzero(np.diff(numbers, axis=1)))


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
