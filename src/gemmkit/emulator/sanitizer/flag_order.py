"""`FlagOrder`: fences and flags in the order of a block's accesses."""

from __future__ import annotations

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.codegen.shadow_layout import ORDERED
from gemmkit.emulator.isa.cluster import cluster_address
from gemmkit.emulator.sanitizer.barrier_order import BarrierOrder
from gemmkit.emulator.sanitizer.clocks import Clock
from gemmkit.emulator.sanitizer.cluster_flags import ClusterFlags, Place
from gemmkit.emulator.sanitizer.flag_values import Look, Looks, flag_place
from gemmkit.emulator.sanitizer.flag_windows import FlagWindows
from gemmkit.emulator.sanitizer.granules import instruction_of
from gemmkit.emulator.sanitizer.memory_faults import space_at


class FlagOrder(BarrierOrder):
    """Adds fences, and strong accesses to flags, to the order of accesses."""

    def _begin(self) -> None:
        super()._begin()
        self._begun = int(self._shadow.now[0])
        # Accesses to flags that were reported with the first writes. The flags in shared memory for
        # which threads have waited, and writes to others that may be lost, with the first ones.
        self._early: set[tuple[int, int]] = set()
        self._polled: set[Place] = set()
        self._maybe_lost: dict[Place, tuple[int, int]] = {}
        # Of this block's flags: the value that all writes so far have written, or None. And, by the
        # warp, writes of that value that the first write is not ordered before: when, by whom, and
        # who was first. They are lost on no one unless another value may come before them.
        self._values: dict[Place, int | None] = {}
        self._again: dict[Place, dict[int, tuple[int, int, int]]] = {}
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
        """The running warp executes a fence."""
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
        warp, ordering = self._running(), Ordering.of(action)
        own, in_block = warp - self._first, ".cta" in action.form.opcode
        steps, acquiring = self._shadow.steps(own), 0
        if action.operation != "load" and (ordering.releases or self._flags.releases(warp)):
            fenced = not ordering.releases
            self._released(own, action.number, lanes, flag=True, fenced=fenced)
        known: Clock = self._clocks.of[warp, ORDERED].copy()
        for address, look in looks.items():
            place = self.flag_at(action, address)
            if place[0] >= 0:
                first = self._unordered_first(warp, place)
                if first is not None:
                    self._check_first(action, place, look, first)
                elif look.wait is not None:
                    self._note_wait(place)
                if action.operation != "load":
                    self._note_value(place, look.value)
            acquires = self._flags.access(
                warp,
                place,
                look,
                steps,
                ordering,
                reads=action.operation != "store",
                writes=action.operation != "load",
                in_block=in_block or ordering.scope == "block",
            )
            if acquires:
                acquiring |= -1 if look.lanes is None else look.lanes
        if acquiring:
            alone = None if acquiring == -1 else acquiring
            self._flag_windows.waited(own, alone, known)

    def _check_first(
        self, action: Action, place: Place, look: Look, first: tuple[FlagOrder, int, int]
    ) -> None:
        """The running warp accesses a flag in shared memory. Another thread (`first`: its block's
        order, its number there, and its instruction's record) has written it first, which nothing
        orders before: a read may come too early, and a write may be lost."""
        warp, number, (home, thread, record) = self._running(), action.number, first
        lane = 0 if not look.lanes else (look.lanes & -look.lanes).bit_length() - 1
        who = self._who(number, (warp - self._first) * LANES + lane)
        by = home._who(home._worker.site_at(record), thread)
        at = self._flag_home(place)
        if action.operation != "store" and number not in self._worker.kernel.overwrites:
            self._report_first(who, place, by, writes=False)
        elif at._values.get(place) == look.value:
            now = int(self._shadow.now[0])
            at._again.setdefault(place, {})[warp] = now, who, by
        else:
            self._may_be_lost(place, who, by)

    def _may_be_lost(self, place: Place, who: int, by: int) -> None:
        """One of two writes to a flag, that of `by` the first, may be lost: a finding if a thread
        waits for the flag."""
        if place in self._polled:
            self._report_first(who, place, by, writes=True)
        else:
            self._maybe_lost.setdefault(place, (who, by))

    def _note_value(self, place: Place, value: int) -> None:
        """The running warp has written a value to a flag in shared memory. If it is another than
        before, those who write the first value again, in no order with this, may undo it."""
        at, known = self._flag_home(place), self._clocks.of[self._running(), ORDERED]
        if at._values.setdefault(place, value) == value:
            return
        at._values[place] = None
        for warp, (time, who, by) in at._again.pop(place, {}).items():
            if warp != self._running() and known[warp] < time:
                self._may_be_lost(place, who, by)

    def _note_wait(self, place: Place) -> None:
        """A thread waits for a flag, of which it knows the first value."""
        self._polled.add(place)
        if place in self._maybe_lost:
            who, by = self._maybe_lost.pop(place)
            self._report_first(who, place, by, writes=True)

    def _report_first(self, who: int, place: Place, first: int, *, writes: bool) -> None:
        pair = instruction_of(who), instruction_of(first)
        if pair not in self._early:
            self._early.add(pair)
            address = cluster_address(*place)
            self._found.uninitialized_flag(self._block, who, address, first, writes=writes)

    def _unordered_first(self, warp: int, place: Place) -> tuple[FlagOrder, int, int] | None:
        """The first write to a flag in shared memory, if it is not ordered before what a warp does:
        of which block's order, the thread, and the instruction's record."""
        home, address = self._flag_home(place), place[1]
        thread, record, time = home._shadow.first_write(address >> self._shadow.shift)
        other = home._first + thread // LANES
        if time < home._begun or other == warp or self._clocks.of[warp, ORDERED, other] >= time:
            return None
        return home, thread, record

    def _flag_home(self, place: Place) -> FlagOrder:
        """The order of the block that a flag in shared memory is of."""
        home = self._cluster.orders[place[0]]
        assert isinstance(home, FlagOrder)
        return home

    def flag_at(self, action: Action, address: int) -> Place:
        """Where a flag is that an instruction accesses at an address."""
        if space_at(action, address) != "shared":
            return -1, address
        return flag_place(address, self._rank)
