"""`Watch`: what native code tells the sanitizers of one worker, and who is to hear it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES, WINDOW_BYTES
from gemmkit.emulator.codegen.shadow_layout import (
    ABSENT,
    AHEAD_OF_WAIT,
    ARRIVES,
    BEGINS,
    FENCE_LANES,
    FENCES,
    FIRST_THREAD,
    FIRST_WRITE,
    GLOBAL_RACE,
    KEPT,
    LOADS_WANTED,
    REACHED_BYTES,
    REACHED_KIND,
    REACHES,
    USED,
    USED_SHIFT,
)
from gemmkit.emulator.machine.scratch import lanes_of
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.access_faults import AccessFaults
from gemmkit.emulator.sanitizer.asynchronous import Order
from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings
from gemmkit.emulator.sanitizer.barrier_uses import BarrierUses
from gemmkit.emulator.sanitizer.block_barriers import BarrierFindings, BlockBarriers
from gemmkit.emulator.sanitizer.global_order import EVENTS, GlobalOrder
from gemmkit.emulator.sanitizer.launch_state import LaunchState
from gemmkit.emulator.sanitizer.launch_waits import LaunchWaits, Unchanged
from gemmkit.emulator.sanitizer.memory_faults import uninitialized_flag
from gemmkit.emulator.sanitizer.recording import (
    RecordedFindings,
    RecordedOrder,
)
from gemmkit.emulator.sanitizer.shadow import (
    BlockShadow,
    Event,
    Pattern,
)
from gemmkit.emulator.sanitizer.tensor_maps import MapOrder
from gemmkit.emulator.sanitizer.undefined import UndefinedUses, Use, absent_lane
from gemmkit.findings import Finding


class Watch:
    """The sanitizers' view of one worker."""

    def __init__(self, state: LaunchState, worker: Worker) -> None:
        self._state, self._worker = state, worker
        self._names = state.names
        for number in state.areas.sites:
            worker.limit_shared(number, *self._names.part(number))
        self._event = Event(self._on_event)
        self._shadow = BlockShadow(worker, state.traits, state.known, self._event)
        self._undefined = UndefinedUses(state.names, state.collection)
        barriers = BarrierFindings(self._names, state.collection)
        self._arrivals = BlockBarriers(worker, self._shadow, barriers)
        # In asynchronous kernels vector clocks find the races between warps.
        self._order: Order | None = None
        if state.traits.asynchronous:
            self._order = worker.observer = self._new_order()
        self._global_order = GlobalOrder(state.order, worker, self._shadow, self._order)
        self._faults = AccessFaults(
            self._names,
            worker,
            self._shadow,
            state.collection,
            self._note_origin,
            by_clocks=self._order is not None,
        )
        self._barriers = BarrierUses(state.names, worker, state.collection)
        unchanged = Unchanged(self._names, state.variables)
        self._launch_waits = LaunchWaits(
            self._names, worker, self._shadow, state.collection, self._order, unchanged
        )
        if self._order is not None:
            self._order.follow_launches(self._launch_waits)

    def _new_order(self) -> Order:
        state, worker, shadow = self._state, self._worker, self._shadow
        names, collection, trace = self._names, state.collection, state.trace
        if trace is None:
            found = AsynchronousFindings(names, collection)
            maps = MapOrder(found, state.maps)
            return Order(names, worker, shadow, found, maps, state.warpgroups, self._arrivals)
        noting = RecordedFindings(names, collection, trace)
        maps = MapOrder(noting, state.maps)
        recorder = RecordedOrder(
            names, worker, shadow, noting, maps, state.warpgroups, self._arrivals, trace
        )
        state.recorders.append(recorder)
        return recorder

    def print_if_of(
        self, worker: Worker, number: int, thread: int, index: int, taken: Sequence[tuple[int, int]]
    ) -> None:
        """If the thread is one of this worker, it prints arguments from its local memory."""
        if worker is not self._worker:
            return
        for start, size in taken:
            if not self._shadow.local_is_set(worker, thread, index + start, size):
                self._undefined.printed(number, worker.field("block"), thread)
                return

    def regions(self) -> dict[int, int]:
        """The allocation (its first byte) that each instruction accessed last."""
        return self._worker.regions()

    def executed(self) -> NDArray[np.int64]:
        """How often warps executed each instruction."""
        return self._worker.tally().executed

    @property
    def awaited(self) -> bool:
        """Whether a thread has waited for earlier launches."""
        return self._shadow.field("launch_waits") > 0

    def finish(self) -> None:
        """Collect what remains."""
        self._faults.finish()
        self._barriers.nobody_came()
        if self._order is not None:
            self._order.finish()
        self._event = Event()

    def _on_event(
        self, what: int, site: int | None, pattern: int | None, base: int, more: int
    ) -> int:
        """Native code reports something that looks wrong; 1 if it is."""
        try:
            if what == LOADS_WANTED:
                self._state.order.want_loads(base)
                return 0
            if what == USED:
                self._note_use(base, more)
                return 1
            if what == KEPT:
                number = base & (1 << USED_SHIFT) - 1
                self._undefined.keep(number, self._worker.field("block"))
                return 1
            if what == ABSENT:
                self._note_absence(base, more)
                return 1
            if ARRIVES <= what <= BEGINS:
                follows = self._order if self._order is not None else self._arrivals
                follows.told(what, base)
                if what == FENCES:
                    kind = base & (1 << FENCE_LANES) - 1
                    self._global_order.fence_proxy(kind, int(self._shadow.now[0]))
                return 0
            if what == REACHES and site is not None and pattern is not None:
                self._on_reach(site, Pattern(pattern), base, more)
                return 0
            if what == AHEAD_OF_WAIT and site is not None and pattern is not None:
                self._on_ahead(site, Pattern(pattern), base, more)
                return 0
            if what == FIRST_WRITE and site is not None and pattern is not None:
                self._on_first_write(site, more)
                return 0
            if what in EVENTS:
                return self._on_global_order(what, site, pattern, base, more)
            if site is None or pattern is None:
                return self._barriers.reached(what, base, more)
            return self._faults.reported(what, site, pattern, base, more)
        except BaseException as error:
            self._worker.fail(error)
            return 0

    def _on_first_write(self, site: int, more: int) -> None:
        """A thread reads a flag (`more` has the granule); no barrier comes after the first write
        to it."""
        thread, granule = more >> FIRST_THREAD, more & (1 << FIRST_THREAD) - 1
        first, record, _ = self._shadow.first_write(granule)
        numbers = self._worker.site_number(site), self._worker.site_at(record)
        block, address = self._worker.field("block"), granule << self._shadow.shift
        found = uninitialized_flag(self._names, block, (thread, first), numbers, address)
        self._state.add(self._worker, found)

    def _on_ahead(self, site: int, pattern: Pattern, base: int, lanes: int) -> None:
        """The first of these lanes accesses global memory ahead of a wait for earlier launches."""
        lane = (lanes & -lanes).bit_length() - 1
        warp = self._worker.warp_number(self._worker.field("running"))
        address = base + int(pattern.offsets[lane])
        number, thread = self._worker.site_number(site), warp * LANES + lane
        together = any(not lanes >> each & 1 for each in pattern.lanes.tolist())
        self._launch_waits.access(number, thread, address, together=together)

    def _note_use(self, number: int, lanes: int) -> None:
        warp = self._worker.warp_number(self._worker.field("running"))
        operand, number = number >> USED_SHIFT, number & (1 << USED_SHIFT) - 1
        block = self._worker.field("block")
        self._undefined.use(Use(number, operand, block, warp, lanes & 0xFFFFFFFF))

    def _note_absence(self, number: int, more: int) -> None:
        warp = self._worker.warp_number(self._worker.field("running"))
        lanes, other, block = more & 0xFFFFFFFF, more >> 32, self._worker.field("block")
        self._note_origin(number, absent_lane(self._names, number, block, warp, lanes, other))

    def _note_origin(self, number: int, finding: Finding) -> None:
        """An undefined value appears; it is a fault only if it is used."""
        if self._state.trace is not None:
            return
        if self._state.tracks:
            self._undefined.read(number, self._worker.field("block"), finding)
        else:
            self._state.tracking_wanted = True
            self._state.stop()

    def _on_global_order(
        self, what: int, site: int | None, pattern: int | None, base: int, more: int
    ) -> int:
        answer, finding = self._global_order.told(what, site, pattern, base, more)
        if finding is not None and what == GLOBAL_RACE and site is not None:
            self._faults.keep(self._worker.site_number(site), GLOBAL_RACE, finding)
        elif finding is not None:
            self._state.add(self._worker, finding)
        return answer

    def _on_reach(self, site: int, pattern: Pattern, base: int, more: int) -> None:
        """Lanes access the shared memory of other blocks of the cluster."""
        if self._order is None:
            return
        lanes = np.flatnonzero(lanes_of(more & (1 << LANES) - 1))
        addresses = (base + pattern.offsets[lanes]) % WINDOW_BYTES
        nbytes, kind = more >> REACHED_BYTES & 255, more >> REACHED_KIND
        self._order.reached(self._worker.site_number(site), lanes, addresses, nbytes, kind)
