"""The sanitizers of asynchronous kernels while they record a trace: what they find, and between
which events."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import AT_BARRIER, DONE, LANES, PATTERN, SITE_BYTES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVES,
    LOADED,
    LOG_ENTRIES,
    OPENS,
    SENT,
    STORED,
    TAG_BYTES,
    TAG_KIND,
    TAG_WARP,
    UPDATED,
)
from gemmkit.emulator.isa.cluster import CLUSTER_BARRIER
from gemmkit.emulator.isa.warpgroup_forms import WARPS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.module import Immediate
from gemmkit.emulator.sanitizer.asynchronous import Order
from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings, is_unordered_copy
from gemmkit.emulator.sanitizer.block_barriers import BlockBarriers
from gemmkit.emulator.sanitizer.clocks import Clocks
from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.granules import Conflict, Numbers, instruction_of, thread_of
from gemmkit.emulator.sanitizer.mbarrier_findings import Before
from gemmkit.emulator.sanitizer.parties import Parties
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.tensor_maps import MapOrder
from gemmkit.emulator.sanitizer.trace import (
    Completed,
    Executed,
    Landed,
    Node,
    Pair,
    Passed,
    Phase,
    Trace,
    place_in,
)
from gemmkit.emulator.sanitizer.warpgroup_findings import WarpgroupFindings

_VISIBILITY = (
    "no order of the warps shows it: the write comes first, but without the fence it may not be "
    "visible to the asynchronous proxy"
)
_WGMMA = "no step delays it: the emulator reads the operands of a wgmma when it is issued"
_CP_ASYNC = "no step delays it: a cp.async takes effect at the wait that covers it"
_TOGETHER = "every order shows it: the lanes arrive together"
_FOUND = "the access is not in the trace"
_ACCESSES = (LOADED, STORED, UPDATED, SENT)


class RecordedFindings(AsynchronousFindings):
    """Findings that note between which events they are."""

    clocks: Clocks

    def __init__(self, names: Names, collection: Collection, trace: Trace) -> None:
        super().__init__(names, collection)
        self._trace = trace

    def conflict(
        self,
        block: int,
        who: int,
        address: int,
        met: Conflict,
        kind: int,
        clocks: Clocks,
    ) -> None:
        """A thread's access is not ordered after an earlier one."""
        trace, warp = self._trace, thread_of(who) // LANES
        place = place_in(self.parties.rank, address)
        accessed = Passed(warp, trace.last(warp))
        trace.pending = _pair(trace, accessed, place, met, clocks)
        if is_unordered_copy(clocks, who, met) and isinstance(trace.pending.first, Landed):
            # It reads what is to be written before.
            trace.pending = Pair(trace.copies[trace.pending.first.copy].event, accessed)
        super().conflict(block, who, address, met, kind, clocks)

    def copy_conflict(
        self,
        block: int,
        copy: Copy,
        address: int,
        met: Conflict,
        clocks: Clocks,
        *,
        writes: bool,
    ) -> None:
        """A bulk copy is not ordered after an earlier access to shared memory."""
        trace, warp = self._trace, self._warp_of(copy.thread)
        place = place_in(self.parties.rank, address)
        trace.pending = _pair(trace, Executed(warp, trace.last(warp)), place, met, self.clocks)
        super().copy_conflict(block, copy, address, met, clocks, writes=writes)

    def _warp_of(self, thread: int) -> int:
        return self.parties.first_warp + thread // LANES

    def no_proxy_fence(
        self, block: int, copy: Copy, address: int, other: int, *, writes: bool
    ) -> None:
        """A bulk copy reads or overwrites what a generic write may not have made visible."""
        self._trace.pending = Pair(reason=_VISIBILITY)
        super().no_proxy_fence(block, copy, address, other, writes=writes)

    def overrun_phase(
        self,
        block: int,
        who: int,
        address: int,
        arrived: Sequence[int],
        surplus: tuple[int, list[int]] | None = None,
    ) -> None:
        """The next phase of an mbarrier may complete before a thread has observed this one."""
        trace, warp = self._trace, thread_of(who) // LANES
        phase = Phase(set(trace.arrivals(place_in(self.parties.rank, address))))
        trace.phases.append(phase)
        wait = trace.event_of(warp, instruction_of(who))
        if wait is not None:
            trace.pending = Pair(Completed(len(trace.phases) - 1), Passed(warp, wait))
        super().overrun_phase(block, who, address, arrived, surplus)

    def early_arrival(
        self, block: int, number: int, thread: int, address: int, before: Before
    ) -> None:
        """A thread arrives at an mbarrier without knowing that the phase before is complete."""
        trace, place = self._trace, place_in(self.parties.rank, address)
        if before.same_warp:
            trace.pending = Pair(reason=_TOGETHER)
        else:
            warp = self._warp_of(thread)
            here, there = Executed(warp, trace.last(warp)), self._in_phase(before, place)
            trace.pending = Pair(here, there, early=True)
        super().early_arrival(block, number, thread, address, before)

    def ambiguous_wait(
        self, block: int, number: int, thread: int, phase: tuple[int, int], before: Before
    ) -> None:
        """A thread waits for a phase without knowing that the one before is complete."""
        trace, place = self._trace, place_in(self.parties.rank, phase[0])
        warp = self._warp_of(thread)
        here, there = Executed(warp, trace.last(warp)), self._in_phase(before, place)
        # The wait ends with the phase two before, which has the same parity.
        trace.pending = Pair(here, there, also=trace.complete_phase(place, 2))
        super().ambiguous_wait(block, number, thread, phase, before)

    def _in_phase(self, before: Before, place: int) -> Node | None:
        """An arrival in the phase before, or the last of its copies."""
        if before.by is None or before.copies:
            return self._trace.copy_to(place)
        other = thread_of(before.by) // LANES
        event = self._trace.event_of(other, instruction_of(before.by))
        return Executed(other, event) if event is not None else None

    def not_visible(self, block: int, number: int, thread: int, address: int, who: int) -> None:
        """An mbarrier is used before its initialization is visible."""
        trace, warp, other = self._trace, self._warp_of(thread), thread_of(who) // LANES
        first = trace.event_of(other, instruction_of(who))
        if first is not None:
            trace.pending = Pair(Executed(warp, trace.last(warp)), Executed(other, first))
        super().not_visible(block, number, thread, address, who)

    def unfenced_barrier(self, block: int, copy: Copy, who: int) -> None:
        """A bulk copy counts at an mbarrier that the asynchronous proxy may not see yet."""
        self._trace.pending = Pair(reason=_VISIBILITY)
        super().unfenced_barrier(block, copy, who)


def _pair(trace: Trace, second: Node, address: int, met: Conflict, clocks: Clocks) -> Pair:
    number, thread = instruction_of(met.other), thread_of(met.other)
    if met.actor < clocks.warps:
        warp = thread // LANES
        return Pair(second, Passed(warp, trace.segment_of(warp, number, address)))
    if met.actor >= clocks.warps + clocks.places:
        return Pair(reason=_CP_ASYNC)
    if trace.body[number].opcode.startswith("wgmma"):
        return Pair(reason=_WGMMA)
    copy = trace.last_copy(number, thread, address)
    return Pair(second, Landed(copy)) if copy is not None else Pair(reason=_FOUND)


class RecordedWarpgroupFindings(WarpgroupFindings):
    """Findings about wgmma that note between which events they are."""

    def __init__(self, names: Names, collection: Collection, trace: Trace) -> None:
        super().__init__(names, collection)
        self._trace = trace

    def too_early(
        self,
        parties: Parties,
        block: int,
        who: int,
        address: int,
        met: Conflict,
        clocks: Clocks,
    ) -> None:
        """A wgmma reads what is not ordered before it."""
        trace, warp = self._trace, thread_of(who) // LANES
        place = place_in(parties.rank, address)
        trace.pending = _pair(trace, Executed(warp, trace.last(warp)), place, met, clocks)
        super().too_early(parties, block, who, address, met, clocks)

    def no_proxy_fence(
        self,
        parties: Parties,
        block: int,
        who: int,
        address: int,
        other: int,
        *,
        copied: bool,
    ) -> None:
        """A wgmma reads what a generic write, or a cp.async, may not have made visible."""
        self._trace.pending = Pair(reason=_VISIBILITY)
        super().no_proxy_fence(parties, block, who, address, other, copied=copied)


class RecordedOrder(Order):
    """The order of accesses in a block, recorded in the trace of its cluster."""

    def __init__(
        self,
        names: Names,
        worker: Worker,
        shadow: BlockShadow,
        found: RecordedFindings,
        maps: MapOrder,
        warpgroup_findings: WarpgroupFindings,
        barriers: BlockBarriers,
        trace: Trace,
    ) -> None:
        self._trace, self._read, self._recorded = trace, 0, found
        self._site_numbers = list(worker.kernel.areas.sites)
        super().__init__(names, worker, shadow, found, maps, warpgroup_findings, barriers)

    def _begin(self) -> None:
        super()._begin()
        self._recorded.clocks = self._clocks

    def told(self, what: int, operand: int) -> None:
        """The running warp synchronizes, or a block begins."""
        barrier, status = (self._rank, operand), self._worker.warp_fields("status")
        if what == ARRIVES:
            self._trace.arrives(barrier, self._running())
        elif what == OPENS:
            here = self._worker.warp_fields("barrier") == operand
            warps = {self._running(), *self._numbers(here & (status == AT_BARRIER))}
            ended = [] if self._worker.warps_expected(operand) else self._numbers(status == DONE)
            self._trace.opens(barrier, warps, ended)
        super().told(what, operand)

    def _numbers(self, chosen: NDArray[np.bool_]) -> list[int]:
        """Some warps of the block, as they are counted in the cluster."""
        numbers: list[int] = (np.flatnonzero(chosen) + self._first).tolist()
        return numbers

    def look(self) -> None:
        """Examine what was logged."""
        self._note_accesses()
        super().look()

    def _note_accesses(self) -> None:
        now = self._shadow.field("log_count")
        start = self._worker.kernel.compiled.sites_start
        for entry in range(max(self._read, now - LOG_ENTRIES), now):
            pattern, base, _, tag = self._shadow.log[entry % LOG_ENTRIES].tolist()
            # Native code clears an entry that it takes back.
            if not pattern or tag >> TAG_KIND not in _ACCESSES:
                continue
            site = ((tag & (1 << TAG_WARP) - 1) - start) // SITE_BYTES
            least, extent = (
                ctypes.c_int64.from_address(pattern + each).value
                for each in (PATTERN.least, PATTERN.extent)
            )
            first = place_in(self._rank, base + least)
            end = first + extent + (tag >> TAG_BYTES & 255)
            warp = self._first + (tag >> TAG_WARP & 255)
            self._trace.accessed(warp, self._site_numbers[site], first, end)
        self._read = now

    def reached(
        self, number: int, lanes: Numbers, addresses: Numbers, nbytes: int, kind: int
    ) -> None:
        """Lanes of the running warp access other blocks' shared memory."""
        self.look()
        for place in addresses.tolist():
            start = place_in(self._rank, place)
            self._trace.accessed(self._running(), number, start, start + nbytes)
        super().reached(number, lanes, addresses, nbytes, kind)

    def begin(self, warp: int, number: int, lanes: int) -> None:
        """A warp is about to execute an instruction at which a schedule could stop it."""
        self.look()
        self._trace.begin(self._first + warp, number, lanes)

    def answered(self, warp: int, number: int, lanes: int, *, done: bool) -> None:
        """Lanes have asked for the phase of an mbarrier, or waited for the cluster's barrier."""
        self._trace.answered(self._first + warp, number, lanes, done=done)

    def arrived(self, number: int, thread: int, address: int, ended: int | None = None) -> None:
        """A thread arrives at an mbarrier, the last one of its warp that does."""
        self._trace.arrived(self._warp_of(thread), place_in(self._rank, address))
        super().arrived(number, thread, address, ended)

    def used(self, number: int, thread: int, address: int) -> None:
        """A thread uses an mbarrier."""
        if self._names.actions[number].operation == "mbarrier_transact":
            self._trace.arrived(self._warp_of(thread), place_in(self._rank, address))
        super().used(number, thread, address)

    def completed(self, address: int) -> None:
        """A phase is complete."""
        super().completed(address)
        self._trace.completed(place_in(self._rank, address))

    def waited(self, number: int, thread: int, address: int, lanes: int) -> None:
        """A thread has observed the completion of a phase, with other `lanes` of its warp."""
        super().waited(number, thread, address, lanes)
        self._trace.observed(self._warp_of(thread), place_in(self._rank, address))

    def wgmma_issued(
        self, warp: int, number: int, product: WarpgroupProduct, descriptors: tuple[int, ...]
    ) -> None:
        """A warp issues a wgmma."""
        self._trace.multiplied(self._first + warp)
        super().wgmma_issued(warp, number, product, descriptors)

    def wgmma_ordered(self, warp: int, action: Action) -> None:
        """A warp commits a group of wgmma, or has waited for groups."""
        going = action.sources[0] if action.sources else None
        if isinstance(going, Immediate):
            first = self._first + warp // WARPS * WARPS
            self._trace.products_awaited(
                self._first + warp, going.value, range(first, first + WARPS)
            )
        else:
            self._trace.products_committed(self._first + warp)
        super().wgmma_ordered(warp, action)

    def arrived_in_cluster(self, number: int, warp: int) -> None:
        """Lanes of a warp have arrived at the cluster's barrier."""
        self._trace.arrived(self._first + warp, CLUSTER_BARRIER)
        super().arrived_in_cluster(number, warp)

    def cluster_met(self) -> None:
        """All threads of the cluster have arrived at its barrier, or exited."""
        super().cluster_met()
        status = [each.warp_fields("status") for each in self._worker.peers]
        ended = np.flatnonzero(np.concatenate(status) == DONE)
        self._trace.completed(CLUSTER_BARRIER, ended.tolist())

    def waited_in_cluster(self, warp: int) -> None:
        """Lanes of a warp have waited for the cluster's barrier."""
        super().waited_in_cluster(warp)
        self._trace.observed(self._first + warp, CLUSTER_BARRIER)

    def issued(self, copy: Copy) -> None:
        """A bulk copy begins."""
        self._trace.issued(copy, self._rank)
        super().issued(copy)

    def delivered(self, copy: Copy) -> None:
        """The bytes of a bulk copy are counted at its mbarrier."""
        super().delivered(copy)
        self._trace.delivered(copy)
