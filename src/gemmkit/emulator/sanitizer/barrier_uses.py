"""`BarrierUses`: lanes that reach barriers of their warp or block without the others."""

from __future__ import annotations

from gemmkit.emulator.codegen.shadow_layout import (
    BARRIER_DIVERGENT,
    BARRIER_SITES,
    MEMBERS,
    WARP_BARRIER,
)
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer import synccheck
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.sites import Names


class BarrierUses:
    """The uses of barriers in the blocks of one worker."""

    def __init__(self, names: Names, worker: Worker, collection: Collection) -> None:
        self._names, self._worker, self._collection = names, worker, collection
        # Lanes that wait for others of their warp: (block, warp, mask, instruction, lanes).
        self._waiting: tuple[int, int, int, int, int] | None = None

    def reached(self, what: int, number: int, more: int) -> int:
        """Native code reports that lanes reach a barrier in a way that looks wrong; 1 if it is."""
        worker, names = self._worker, self._names
        warp = worker.warp_number(worker.field("running"))
        lanes, members = more & 0xFFFFFFFF, more >> 32 & 0xFFFFFFFF
        if what == WARP_BARRIER:
            self._at_warp_barrier(warp, number, lanes, members)
        elif what == MEMBERS:
            members &= ~self._returned(warp) | lanes
            living = self._living(warp)
            if not (members & living & ~lanes or lanes & ~members):
                return 0
            found = synccheck.absent_members(names, worker, number, lanes, members, warp)
            self._collection.add(found, worker.field("block"))
        elif self._allowed(what, number, more, warp):
            return 0
        else:
            found = synccheck.barrier(names, worker, what, number, more)
            self._collection.add(found, worker.field("block"))
        return 1

    def _allowed(self, what: int, number: int, more: int, warp: int) -> bool:
        """Whether a barrier of the block is used correctly, although it looks wrong."""
        if what == BARRIER_DIVERGENT:
            return not self._living(warp) & ~self._returned(warp) & ~more
        return what == BARRIER_SITES and (
            synccheck.is_named(self._names, number) or synccheck.copies(self._names, number, more)
        )

    def _at_warp_barrier(self, warp: int, number: int, lanes: int, members: int) -> None:
        """Lanes may arrive at a barrier of their warp at different times and lines."""
        worker = self._worker
        block = worker.field("block")
        here = (block, warp, members)
        if self._waiting is not None and self._waiting[:3] == here:
            lanes |= self._waiting[4]
        else:
            self.nobody_came()
        self._waiting = None
        living = self._living(warp) & ~self._returned(warp)
        if members & living & ~lanes or lanes & ~members:
            self._waiting = (*here, number, lanes)

    def _living(self, warp: int) -> int:
        """Lanes that exist and have not exited."""
        fields = (int(self._worker.warp_fields(name)[warp]) for name in ("initial", "exited"))
        initial, exited = fields
        return initial & ~exited & 0xFFFFFFFF

    def _returned(self, warp: int) -> int:
        """Lanes that wait for the others only before the end of the kernel, where a GPU does not
        make them wait."""
        names, returned, seen = self._names, 0, 0
        for block, lanes in reversed(self._worker.waiting_lanes(warp)):
            start = names.flow.blocks[block].start if block < len(names.flow.blocks) else -1
            ends = start >= 0 and names.actions[start].operation == "exit"
            if ends and names.actions[start].guard is None:
                returned |= lanes & ~seen
            seen |= lanes
        return returned

    def nobody_came(self) -> None:
        """The lanes that still wait at a barrier of their warp are alone."""
        if self._waiting is None:
            return
        block, warp, members, number, lanes = self._waiting
        self._waiting = None
        found = synccheck.absent_members(self._names, self._worker, number, lanes, members, warp)
        self._collection.add(found, block)
