"""`FlagOrder`: fences and flags in the order of a block's accesses."""

from __future__ import annotations

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.codegen.shadow_layout import ORDERED
from gemmkit.emulator.sanitizer.barrier_order import BarrierOrder
from gemmkit.emulator.sanitizer.clocks import Clock
from gemmkit.emulator.sanitizer.cluster_flags import ClusterFlags, Place
from gemmkit.emulator.sanitizer.flag_values import Looks, flag_place
from gemmkit.emulator.sanitizer.flag_windows import FlagWindows
from gemmkit.emulator.sanitizer.memory_faults import space_at


class FlagOrder(BarrierOrder):
    """Adds fences, and strong accesses to flags, to the order of accesses."""

    def _begin(self) -> None:
        super()._begin()
        if self._rank == 0:
            self._flags = ClusterFlags(self._clocks, self._cluster.scope)
        else:
            first = self._cluster.orders[0]
            assert isinstance(first, FlagOrder)
            self._flags = first._flags
        self._flag_windows = FlagWindows(
            self._shadow, self._clocks, self._granules, self._lane_windows, self._first
        )

    def look(self) -> None:
        """Examine what was logged, as `AccessOrder` does; first what lanes did too early."""
        for each in self._flag_windows.compare() if self._flag_windows.some else ():
            self._found.lanes_ahead(self._block, each.granule << self._shadow.shift, each)
        super().look()

    def _waited_alone(self, warp: int, lanes: int, known: Clock) -> None:
        self._flag_windows.waited(warp, lanes, known)

    def is_ahead(self, warp: int) -> bool:
        """Whether some lanes of a warp of this block know of more than others."""
        return self._flag_windows.has(warp)

    def known_to(self, warp: int, lane: int, other: int) -> int | None:
        """The time up to which another warp's accesses are ordered before those of a lane, if other
        lanes of its warp know of more."""
        return self._flag_windows.limit(warp, lane, other)

    def fenced(self, *, in_block: bool) -> None:
        """The running warp executes a fence, or an access that has one."""
        self.look()
        warp = self._running()
        self._lane_windows.fenced(warp - self._first)
        own = warp - self._first
        waited, lanes = self._flags.waiting(warp, self._shadow.steps(own), in_block=in_block)
        known: Clock = self._clocks.of[warp, ORDERED].copy()
        self._flags.fence(warp, in_block=in_block)
        if waited:
            self._flag_windows.waited(own, lanes, known)

    def flagged(self, action: Action, looks: Looks, lanes: int) -> None:
        """Lanes of the running warp have performed strong accesses."""
        self.look()
        warp, in_block = self._running(), ".cta" in action.form.opcode
        steps = self._shadow.steps(warp - self._first)
        if action.operation != "load" and self._flags.releases(warp):
            self._released(warp - self._first, action.number, lanes, flag=True)
        for address, look in looks.items():
            self._flags.access(
                warp,
                self.flag_at(action, address),
                look,
                steps,
                reads=action.operation != "store",
                writes=action.operation != "load",
                in_block=in_block or Ordering.of(action).scope == "block",
            )

    def flag_at(self, action: Action, address: int) -> Place:
        """Where a flag is that an instruction accesses at an address."""
        if space_at(action, address) != "shared":
            return -1, address
        return flag_place(address, self._rank)
