"""`FlagOrder`: fences and flags in the order of a block's accesses."""

from __future__ import annotations

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.sanitizer.barrier_order import BarrierOrder
from gemmkit.emulator.sanitizer.cluster_flags import ClusterFlags, Place
from gemmkit.emulator.sanitizer.flag_values import Looks, flag_place
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

    def fenced(self, *, in_block: bool) -> None:
        """The running warp executes a fence, or an access that has one."""
        self.look()
        warp = self._running()
        self._lane_windows.fenced(warp - self._first)
        self._flags.fence(warp, in_block=in_block)

    def flagged(self, action: Action, looks: Looks, lanes: int) -> None:
        """Lanes of the running warp have performed strong accesses."""
        self.look()
        warp, in_block = self._running(), ".cta" in action.form.opcode
        if action.operation != "load" and self._flags.releases(warp):
            self._released(warp - self._first, action.number, lanes, flag=True)
        for address, look in looks.items():
            self._flags.access(
                warp,
                self.flag_at(action, address),
                look,
                reads=action.operation != "store",
                writes=action.operation != "load",
                in_block=in_block or Ordering.of(action).scope == "block",
            )

    def flag_at(self, action: Action, address: int) -> Place:
        """Where a flag is that an instruction accesses at an address."""
        if space_at(action, address) != "shared":
            return -1, address
        return flag_place(address, self._rank)
