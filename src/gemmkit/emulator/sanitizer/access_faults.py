"""`AccessFaults`: the faults at the memory instructions of one worker.

Native code reports the first ones of each instruction in a block, and counts the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import access_bytes
from gemmkit.emulator.codegen.ordering import ATOMICS
from gemmkit.emulator.codegen.shadow_layout import (
    BOUNDS,
    LANES_RACE,
    LOADED,
    RACE,
    STORED,
    UNINITIALIZED,
    UPDATED,
)
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.collection import Collection, Key
from gemmkit.emulator.sanitizer.memory_faults import outside, space_at, unwritten
from gemmkit.emulator.sanitizer.races import Access, Races
from gemmkit.emulator.sanitizer.shadow import BlockShadow, Pattern
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import Finding

_RACES = (RACE, LANES_RACE)
# So many races of an instruction are explained; those of other blocks alike are only counted.
_MOST_EXPLAINED = 4


class AccessFaults:
    """Explains them, and adds findings to a collection."""

    def __init__(
        self,
        names: Names,
        worker: Worker,
        shadow: BlockShadow,
        collection: Collection,
        origin: Callable[[int, Finding], None],
        *,
        by_clocks: bool,
    ) -> None:
        """`origin` is told of loads of undefined values, by the instruction. `by_clocks`: vector
        clocks find the races between warps."""
        self._names, self._worker, self._shadow = names, worker, shadow
        self._collection, self._origin, self._by_clocks = collection, origin, by_clocks
        self._races = Races(names, worker, shadow)
        # The last finding for each memory record and class; later unreported faults belong to it.
        self._last: dict[tuple[int, int], Key] = {}
        # How many races were explained at each memory instruction, by class and edges of the grid.
        self._explained: defaultdict[tuple[int, int, tuple[bool, ...]], int] = defaultdict(int)

    def finish(self) -> None:
        """Collect what native code has counted."""
        for (place, what), key in self._last.items():
            self._take_unreported(place, what, key)

    def reported(self, what: int, site: int, pattern: int, base: int, more: int) -> int:
        """Native code reports a fault of a class at a memory record; 1 if it is one."""
        number = self._worker.site_number(site)
        alike = number, what, self._at_edges()
        if what in _RACES and self._explained[alike] >= _MOST_EXPLAINED:
            # Blocks that are no different race by the same lines.
            place = self._worker.kernel.areas.sites[number]
            self._collection.more(self._last[place, what], 1)
            return 1
        finding = self._explain(what, number, Pattern(pattern), base, more)
        if finding is None:
            return 0
        self._explained[alike] += 1
        if what == UNINITIALIZED and self._names.actions[number].operation == "load":
            self._origin(number, finding)
        else:
            self.keep(number, what, finding)
        return 1

    def _at_edges(self) -> tuple[bool, ...]:
        """At which edges of the grid the block is, where others may do something else."""
        names = self._names
        block = names.block(self._worker.field("block"))
        return tuple(at == end - 1 for at, end in zip(block, names.request.grid, strict=True))

    def keep(self, number: int, what: int, finding: Finding) -> None:
        """Add a finding at a memory instruction; faults that native code counts from then on belong
        to it."""
        place = self._worker.kernel.areas.sites[number]
        earlier = self._last.get((place, what))
        if earlier is not None:
            self._take_unreported(place, what, earlier)
        block = self._worker.field("block")
        self._last[place, what] = self._collection.add(finding, block)

    def _take_unreported(self, index: int, what: int, key: Key) -> None:
        unreported = self._shadow.take_unreported(index, what)
        if unreported:
            self._collection.more(key, unreported)

    def _explain(
        self, what: int, number: int, pattern: Pattern, base: int, more: int
    ) -> Finding | None:
        names, worker = self._names, self._worker
        action = names.actions[number]
        warp = worker.warp_number(worker.field("running"))
        if what == BOUNDS:
            lane = more & 31
            address = (base + int(pattern.offsets[lane])) % (1 << 64)
            space = "shared" if more >> 8 else space_at(action, address)
            return outside(names, worker, number, warp * LANES + lane, address, space)
        nbytes = more & 255 if what != LANES_RACE else access_bytes(action)
        row = self._races.row(number, nbytes, access_bytes(action))
        if what == UNINITIALIZED:
            return unwritten(names, worker, self._shadow, row, pattern, base, nbytes)
        kind = LOADED if action.operation == "load" else STORED
        if action.operation in ATOMICS:
            kind = UPDATED
        access = Access(row, pattern, base, nbytes, warp, kind)
        if what == RACE:
            return None if self._by_clocks else self._races.between_warps(access)
        return self._races.between_lanes(access, more)
