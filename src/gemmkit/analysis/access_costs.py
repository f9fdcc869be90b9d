"""The cost of each memory instruction of a kernel in the L1 and in shared memory.

The rules were measured on an H100; costs are means over the requests of one traced block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from gemmkit.analysis.trace import Trace
from gemmkit.emulator.counters.rules import (
    SECTOR_BYTES,
    copy_wavefronts,
    global_sectors,
    shared_phases,
    shared_wavefronts,
    tag_wavefronts,
)
from gemmkit.emulator.isa.matrix_access import is_matrix, pieces
from gemmkit.emulator.isa.table import form_of
from gemmkit.emulator.watching import WatchedAccess

# Minimum L1 cycles of an access of 32, 64 or 128 bits per lane, measured on an H100.
_LOAD_FLOOR = {4: 1.1, 8: 2.1, 16: 4.1}
_STORE_FLOOR = {4: 2.06, 8: 3.06, 16: 5.06}
_DATA_PATH_BYTES = 128


@dataclass(frozen=True, slots=True)
class AccessCost:
    """The mean cost of one memory instruction per execution by a warp.

    `data_cycles` is the time in the data path that shared memory and L1 share, `tag_cycles` that in
    the L1's tag stage, in cycles of an SM. `sectors` are 32-byte sectors of global memory.
    `first_touch` is the share of its executions that need a sector which no warp of the block has
    requested before. `written` says whether the block stores to the same array, so that no other
    block has read it before.
    """

    space: str
    kind: str
    data_cycles: float
    tag_cycles: float
    sectors: float
    first_touch: float
    written: bool


def access_costs(seen: Trace, widths: Mapping[int, int]) -> dict[int, AccessCost]:
    """The cost of each memory instruction that the traced block executed, by its number.

    Args:
        seen: all requests of the block.
        widths: bytes per lane, for accesses that the machine code widens.
    """
    requests: defaultdict[int, list[WatchedAccess]] = defaultdict(list)
    touched: set[tuple[str, int]] = set()
    # Executions of an instruction, per warp, in which some warp requested a new sector.
    fresh: defaultdict[int, set[int]] = defaultdict(set)
    turns: defaultdict[tuple[int, int], int] = defaultdict(int)
    for access in seen.accesses:
        if access.space == "shared" and access.kind == "copy":
            continue
        requests[access.number].append(access)
        each = requests_each(access.opcode)
        turn = turns[access.number, access.warp] // each
        turns[access.number, access.warp] += 1
        if access.space == "global" and access.kind in ("load", "copy"):
            wanted = {(access.array, each) for each in units(access, SECTOR_BYTES)}
            if wanted - touched:
                fresh[access.number].add(turn)
            touched |= wanted
    copies = _copy_targets(seen)
    stored = {each.array for each in seen.accesses if each.kind in ("store", "atomic")}
    costs = {}
    for number, accesses in requests.items():
        first = accesses[0]
        cycles = [
            _cycles(each, widths.get(number, each.bytes_per_lane), copies.get((number, place)))
            for place, each in enumerate(accesses)
        ]
        each = requests_each(first.opcode)
        executions = max(turns[number, warp] for warp in range(seen.warps)) / each
        costs[number] = AccessCost(
            space=first.space,
            kind=first.kind,
            data_cycles=float(np.mean([data for data, _, _ in cycles])) * each,
            tag_cycles=float(np.mean([tag for _, tag, _ in cycles])) * each,
            sectors=float(np.mean([sectors for _, _, sectors in cycles])) * each,
            first_touch=len(fresh[number]) / executions if executions else 0.0,
            written=first.space == "global" and first.array in stored,
        )
    return costs


@cache
def requests_each(opcode: str) -> int:
    """The requests of one execution: a load or store of a `wmma` fragment may make several."""
    form = form_of(opcode)
    return len(pieces(form)) if form is not None and is_matrix(form) else 1


def _cycles(
    access: WatchedAccess, nbytes: int, target: WatchedAccess | None
) -> tuple[float, float, int]:
    """Cycles of the data path and of the tag stage, and sectors, of one request."""
    addresses, active = addresses_of(access), [each is not None for each in access.offsets]
    store = access.kind in ("store", "atomic")
    if access.space == "shared":
        phases = len(shared_phases(addresses, active, nbytes, access.apart))
        banks = shared_wavefronts(addresses, active, nbytes, access.apart)[0]
        return float(max(phases, banks)), 0.0, 0
    if access.space != "global":
        return 1.0, 1.0, 0
    lanes = [each for each, takes in zip(addresses, active, strict=True) if takes]
    sectors, tags = global_sectors(lanes, nbytes), tag_wavefronts(lanes, nbytes)
    if access.kind == "copy":
        # The rule is known for accesses through the L1; others take what their bytes need.
        passes = nbytes * len(lanes) / _DATA_PATH_BYTES
        if target is not None and ".ca." in access.opcode:
            passes = copy_wavefronts(addresses_of(target), addresses, active, nbytes)[0]
        return float(passes), float(tags), sectors
    # The L1's data has the same banks as shared memory, but lanes are not merged.
    banks = shared_wavefronts(addresses, active, nbytes, store=True)[0]
    floor = (_STORE_FLOOR if store else _LOAD_FLOOR).get(nbytes, 1.1)
    return max(float(banks), floor), float(tags), sectors


def addresses_of(access: WatchedAccess) -> list[int]:
    """The lanes' addresses; for global arrays offsets from their start, so that
    launches are reproducible."""
    if access.space == "global":
        return [offset or 0 for offset in access.offsets]
    return [0 if offset is None else access.base + offset for offset in access.offsets]


def _copy_targets(seen: Trace) -> dict[tuple[int, int], WatchedAccess]:
    """The shared side of each cp.async, by instruction and index among its requests."""
    places: defaultdict[int, int] = defaultdict(int)
    found = {}
    for access in seen.accesses:
        if access.kind == "copy" and access.space == "shared":
            found[access.number, places[access.number]] = access
            places[access.number] += 1
    return found


def units(access: WatchedAccess, unit: int) -> Iterator[int]:
    """The aligned units of memory that the lanes access, by index from the array's start."""
    nbytes = access.bytes_per_lane
    for offset in access.offsets:
        if offset is not None:
            yield from range(offset // unit, (offset + nbytes - 1) // unit + 1)
