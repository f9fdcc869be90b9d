"""The counting rules, for the requests of many warps at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.counters.rules import (
    LINE_BYTES,
    SECTOR_BYTES,
    TAG_BANK_BITS,
    bypass_sectors,
    bypass_tag_wavefronts,
    bypass_wavefronts,
    copy_wavefronts,
    global_sectors,
    local_sectors,
    shared_wavefronts,
    tag_wavefronts,
)
from gemmkit.emulator.oracle.memory import Addresses, Lanes


def global_counts_of(addresses: Addresses, lanes: Lanes, nbytes: int) -> tuple[int, int, int]:
    """Sectors, the fewest possible sectors, and tag-stage wavefronts of accesses to global memory;
    each access is within one sector, a row is a warp."""
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
    for index, bits in enumerate(TAG_BANK_BITS):
        odd = np.zeros(lines.shape, np.int64)
        for bit in bits:
            odd ^= (lines * np.uint64(LINE_BYTES) >> np.uint64(bit) & np.uint64(1)).astype(np.int64)
        banks |= odd << index
    depth = [np.count_nonzero(new & (banks == bank), axis=1) for bank in range(4)]
    return sectors, ideal, int(np.max(depth, axis=0).sum())


def _new(ordered: Addresses) -> Lanes:
    """Where a number differs from the previous one in its row."""
    found: Lanes = np.ones(ordered.shape, bool)
    found[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return found


def wavefronts_of(addresses: Addresses, lanes: Lanes, nbytes: int, store: bool) -> tuple[int, int]:
    """Wavefronts and bank conflicts of accesses to shared memory; a row is a warp."""
    active = lanes.any(axis=1)
    addresses, lanes = addresses[active], lanes[active]
    if not len(addresses):
        return 0, 0
    # Banks repeat every 128 bytes, so warps that are whole lines apart have the same counts.
    relative = _near(addresses, lanes)
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


def distinct_sectors(addresses: Addresses, lanes: Lanes) -> int:
    """Sectors of accesses that are each within one; a row is a warp."""
    return sum(
        len(set((row[mask] // SECTOR_BYTES).tolist()))
        for row, mask in zip(np.broadcast_to(addresses, lanes.shape), lanes, strict=True)
    )


def local_sectors_of(offsets: Addresses, lanes: Lanes, nbytes: int) -> int:
    """Sectors of accesses to local memory; a row is a warp."""
    return sum(
        local_sectors({int(lane): int(row[lane]) for lane in np.flatnonzero(mask)}, nbytes)
        for row, mask in zip(offsets, lanes, strict=True)
    )


def copy_counts_of(
    to: Addresses, start: Addresses, lanes: Lanes, reading: Lanes, nbytes: int, cached: bool
) -> tuple[int, int, int]:
    """Wavefronts and bank conflicts of cp.async, and the number of sectors that it fetches twice.

    `reading` are those of `lanes` that do not only write zeros; a row is a warp.
    """
    counts = [
        _copy_counts(*(each.tobytes() for each in row), nbytes, cached)
        for row in zip(_near(to, lanes), _near(start, reading), lanes, reading, strict=True)
        if row[2].any()
    ]
    wavefronts, conflicts, again = (sum(each[index] for each in counts) for index in range(3))
    return wavefronts, conflicts, again


def more_tags_of(to: Addresses, start: Addresses, reading: Lanes) -> int:
    """Tag-stage wavefronts of cp.async.cg beyond those of a load; a row is a warp."""
    shape = reading.shape
    rows = zip(np.broadcast_to(to, shape), np.broadcast_to(start, shape), reading, strict=True)
    more = 0
    for there, here, lanes in rows:
        addresses = here[lanes].tolist()
        both = bypass_tag_wavefronts(there.tolist(), here.tolist(), lanes.tolist())
        more += both - tag_wavefronts(addresses, 1)
    return more


def _near(addresses: Addresses, lanes: Lanes) -> NDArray[np.int64]:
    """Addresses minus whole lines, the same for all lanes of a warp; 0 in inactive lanes."""
    found = np.broadcast_to(addresses, lanes.shape)
    first = np.take_along_axis(found, lanes.argmax(axis=1)[:, None], axis=1)
    line = np.uint64(LINE_BYTES)
    return np.where(lanes, found - first // line * line, 0).astype(np.int64)


@lru_cache(maxsize=1 << 16)
def _copy_counts(
    to: bytes, start: bytes, lanes: bytes, reading: bytes, nbytes: int, cached: bool
) -> tuple[int, int, int]:
    there, here = (np.frombuffer(each, np.int64).tolist() for each in (to, start))
    active, reads = (np.frombuffer(each, bool).tolist() for each in (lanes, reading))
    if cached:
        return *copy_wavefronts(there, here, active, nbytes, reads), 0
    plain = global_sectors([source for source, on in zip(here, reads, strict=True) if on], nbytes)
    again = bypass_sectors(there, here, reads) - plain
    return *bypass_wavefronts(there, here, active, nbytes, reads), again
