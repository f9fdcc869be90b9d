"""What a traced block reads and writes, and how evenly its warps share the loads."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.access_costs import units
from gemmkit.analysis.trace import Trace
from gemmkit.emulator.counters.rules import SECTOR_BYTES

# Arrays that the write-back reads, not the loop along k.
ADDED = ("C", "bias", "residual")


def loaded_bytes(seen: Trace) -> tuple[int, int]:
    """Distinct bytes that the block reads from global memory, in whole sectors: along k, and once
    in the write-back of a tile."""
    sectors = {
        (access.array, each)
        for access in seen.accesses
        if access.space == "global" and access.kind in ("load", "copy")
        for each in units(access, SECTOR_BYTES)
    }
    once = sum(array in ADDED for array, _ in sectors)
    return SECTOR_BYTES * (len(sectors) - once), SECTOR_BYTES * once


def copied_bytes(seen: Trace) -> tuple[int, int]:
    """Bytes that the TMA reads, in whole sectors: along k, and for the write-back of a tile. What
    several blocks get at once counts once."""
    operands = once = 0
    for copy in seen.copies:
        if copy.kind == "load":
            nbytes = sum(SECTOR_BYTES * len(_sectors(*span)) for span in copy.spans)
            if copy.array in ADDED:
                once += nbytes
            else:
                operands += nbytes
    return operands, once


def _sectors(offset: int, nbytes: int) -> range:
    """The sectors in which so many bytes from an offset on lie."""
    return range(offset // SECTOR_BYTES, (offset + nbytes - 1) // SECTOR_BYTES + 1)


def turns(seen: Trace, schedulers: int) -> tuple[float, float]:
    """The most shared loads that one warp and one scheduler make between barriers, over the mean.

    Warps that load the next tile while others multiply make no such loads.
    """
    most_warps = 1 + max((access.warp for access in seen.accesses), default=0)
    warps = max(seen.warps, most_warps)
    loads: defaultdict[int, NDArray[np.float64]] = defaultdict(lambda: np.zeros(warps))
    for access in seen.accesses:
        if access.space == "shared" and access.kind == "load":
            loads[access.barriers][access.warp] += 1
    total = sum(float(each.sum()) for each in loads.values())
    if not total:
        return 1.0, 1.0

    def most(shares: int) -> float:
        """The imbalance if this many units share the work, warp by warp."""
        busiest = sum(
            max(float(each[place::shares].sum()) for place in range(shares))
            for each in loads.values()
        )
        return busiest * shares / total

    return most(seen.warps), most(min(schedulers, seen.warps))


def written(seen: Trace) -> tuple[int, int, float]:
    """Rows and columns of C that the block writes, and the bytes of all arrays, in whole
    sectors."""
    rows: set[int] = set()
    columns: set[int] = set()
    sectors: set[tuple[str, int]] = set()
    item = seen.problem.out_item_bytes
    for access in seen.accesses:
        if access.space != "global" or access.kind not in ("store", "atomic"):
            continue
        sectors.update((access.array, each) for each in units(access, SECTOR_BYTES))
        for unit in units(access, item):
            place = seen.element(access.array, unit * item)
            if place is not None:
                rows.add(place[0])
                columns.add(place[1])
    for copy in seen.copies:
        if copy.kind == "load":
            continue
        for offset, nbytes in copy.spans:
            sectors.update((copy.array, each) for each in _sectors(offset, nbytes))
            for start in range(offset, offset + nbytes, item):
                place = seen.element(copy.array, start) if copy.array == "C" else None
                if place is not None:
                    rows.add(place[0])
                    columns.add(place[1])
    return max(len(rows), 1), max(len(columns), 1), float(SECTOR_BYTES * len(sectors))
