"""`Order`: races in shared memory of kernels that use mbarriers or bulk copies.

Native code logs the accesses of a warp. Whenever something is ordered (a barrier, an mbarrier, a
wait, a fence), the accesses logged so far are compared with earlier ones by vector clocks. This
finds what no chain of synchronization orders, whatever the order in which the warps ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import AT_BARRIER, BARRIERS, LANES
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVED,
    ARRIVES,
    BEGINS,
    COMMITS,
    FENCES,
    LOG_ENTRIES,
    LOG_ENTRY,
    OBSERVED,
    OPENS,
    TAG_KIND,
    TAG_WARP,
    WAITS,
)
from gemmkit.emulator.isa.bulk_copies import is_reduction
from gemmkit.emulator.isa.mbarriers import OBJECT_BYTES
from gemmkit.emulator.isa.tensor_copies import footprint
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.module import Immediate, Register
from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings
from gemmkit.emulator.sanitizer.clocks import INITIALIZED, ORDERED, VISIBLE, Clock, Clocks
from gemmkit.emulator.sanitizer.granules import (
    Conflict,
    Granules,
    Numbers,
    instruction_of,
    party,
)
from gemmkit.emulator.sanitizer.logged_accesses import LoggedAccesses, Stop
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.tensor_maps import MapOrder
from gemmkit.emulator.sanitizer.tensor_places import box_granules, define_written, never_written
from gemmkit.emulator.sanitizer.warpgroup_findings import WarpgroupFindings
from gemmkit.emulator.sanitizer.warpgroups import Warpgroups


@dataclass(slots=True)
class _Object:
    """An mbarrier: who initialized it, and what is released to the threads that wait for it."""

    who: int
    warp: int
    time: int
    arriving: Clock
    complete: Clock
    # Phases that are complete, and those in which copies were issued that have not arrived.
    phases: int = 0
    missing: list[int] = field(default_factory=list)
    # The threads that observed the last complete phase, with the time, by their warps.
    observed: dict[int, tuple[int, int]] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)


class Order:
    """The order of one worker's accesses, block by block."""

    def __init__(
        self,
        names: Names,
        worker: Worker,
        shadow: BlockShadow,
        found: AsynchronousFindings,
        maps: MapOrder,
        warpgroup_findings: WarpgroupFindings,
    ) -> None:
        self._names, self._worker, self._shadow, self._found = names, worker, shadow, found
        self._maps, self._warpgroup_findings = maps, warpgroup_findings
        self._strong = np.array(
            [action.number for action in names.actions if names.strong(action.number)], np.int64
        )
        self._accesses = LoggedAccesses(worker, self._strong, len(shadow.copies))
        self._logged = 0
        self._block = -1
        self._begin()

    def _begin(self) -> None:
        self._block = self._worker.field("block")
        self._clocks = Clocks(self._worker.warps)
        self._granules = Granules(len(self._shadow.copies), self._strong, self._clocks.actors)
        self._accesses.begin(self._granules, self._clocks)
        self._barriers = [self._clocks.empty() for _ in range(BARRIERS)]
        self._objects: dict[int, _Object] = {}
        self._copies: dict[Copy, tuple[int, int]] = {}
        self._left = self._worker.left
        self._warpgroups = Warpgroups(
            self._block, self._clocks, self._granules, self._shadow, self._warpgroup_findings
        )

    # What native code tells

    def told(self, what: int, operand: int) -> None:
        """The running warp synchronizes, or a block begins."""
        worker, clocks = self._worker, self._clocks
        if what == BEGINS:
            self.finish()
            self._begin()
            return
        self._flush(self._shadow.field("log_count"))
        warp = worker.warp_number(worker.field("running"))
        if what == ARRIVES:
            clocks.release(warp, self._barriers[operand % BARRIERS])
        elif what == OPENS:
            number = operand % BARRIERS
            here = worker.warp_fields("barrier") == operand
            for each in np.flatnonzero(here & (worker.warp_fields("status") == AT_BARRIER)):
                clocks.acquire(int(each), self._barriers[number])
            self._barriers[number] = clocks.empty()
        elif what == COMMITS:
            clocks.group[warp] += 1
        elif what == WAITS:
            clocks.wait_for_copies(warp, operand)
        elif what == FENCES and operand:
            clocks.fence(warp, VISIBLE if operand == 1 else INITIALIZED)

    def look(self) -> None:
        """Examine what was logged, before the log is full or when the launch has ended."""
        self._flush(self._shadow.field("log_count"))

    def finish(self) -> None:
        """The block has ended, or was left."""
        self.look()
        if self._left == self._worker.left and self._worker.field("block") != self._block:
            self._warpgroups.end()

    # What asynchronous instructions tell

    def wgmma_issued(
        self, warp: int, number: int, product: WarpgroupProduct, descriptors: tuple[int, ...]
    ) -> None:
        """A warp issues a wgmma."""
        self._flush(self._shadow.field("log_count"))
        self._warpgroups.multiply(warp, number, product, descriptors)

    def wgmma_ordered(self, warp: int, action: Action) -> None:
        """A warp commits a group of wgmma, or waits for groups."""
        self._flush(self._shadow.field("log_count"))
        self._warpgroups.order(warp, action)

    def initialized(self, number: int, thread: int, address: int) -> None:
        """A thread initializes an mbarrier."""
        self._flush(self._shadow.field("log_count"))
        if address in self._objects:
            self._found.initialized_again(self._block, number, thread, address)
        warp, clocks = thread // LANES, self._clocks
        who = party(number, thread)
        made = _Object(who, warp, clocks.now(warp), clocks.empty(), clocks.empty())
        self._objects[address] = made
        self._mark(address, used=True)

    def invalidated(self, number: int, thread: int, address: int) -> None:
        """A thread invalidates an mbarrier."""
        self.used(number, thread, address)
        self._objects.pop(address, None)
        self._mark(address, used=False)

    def _mark(self, address: int, *, used: bool) -> None:
        shift = self._shadow.shift
        self._accesses.mark(address >> shift, (address + OBJECT_BYTES) >> shift, used=used)

    def used(self, number: int, thread: int, address: int) -> None:
        """A thread uses an mbarrier."""
        self._flush(self._shadow.field("log_count"))
        self._used(number, thread, address)

    def _used(self, number: int, thread: int, address: int) -> None:
        found = self._objects.get(address)
        if found is None or number in found.reported:
            return
        warp = thread // LANES
        if warp != found.warp and self._clocks.of[warp, ORDERED, found.warp] < found.time:
            found.reported.add(number)
            self._found.not_visible(self._block, number, thread, address, found.who)

    def arrived(self, number: int, thread: int, address: int) -> None:
        """A thread arrives at an mbarrier, the last one of its warp that does."""
        self._flush(self._shadow.field("log_count"))
        found = self._objects.get(address)
        if found is None:
            return
        warp, clocks = thread // LANES, self._clocks
        action = self._names.actions[number]
        if ".relaxed" not in action.form.opcode:
            clocks.release(warp, found.arriving)
        if action.operation == "mbarrier_arrive_copies":
            actor = clocks.copies_of(warp)
            into = found.arriving[ORDERED]
            into[actor] = max(into[actor], clocks.group[warp])
            clocks.group[warp] += 1

    def completed(self, address: int) -> None:
        """A phase is complete."""
        found = self._objects.get(address)
        if found is not None:
            self._check_overrun(found, address)
            found.phases += 1
            arrived = min([found.phases + 1, *found.missing]) - 1
            actor = self._clocks.place("mbarrier", address)
            found.arriving[ORDERED, actor] = arrived
            np.maximum(found.complete, found.arriving, out=found.complete)
            found.arriving = self._clocks.empty()

    def _check_overrun(self, found: _Object, address: int) -> None:
        """Whoever waits for a phase must have observed it before the next one completes."""
        for warp, (time, who) in found.observed.items():
            if found.arriving[ORDERED, warp] < time:
                self._found.overrun_phase(self._block, who, address)
        found.observed.clear()

    def waited(self, number: int, thread: int, address: int) -> None:
        """A thread has observed the completion of a phase."""
        self._flush(self._shadow.field("log_count"))
        self._shadow.in_step(thread // LANES)
        self._observed(number, thread, address)

    def _observed(self, number: int, thread: int, address: int) -> None:
        warp, found = thread // LANES, self._objects.get(address)
        if found is not None and ".relaxed" not in self._names.actions[number].form.opcode:
            self._clocks.acquire(warp, found.complete)
            found.observed[warp] = self._clocks.now(warp), party(number, thread)

    def issued(self, copy: Copy) -> None:
        """A bulk copy begins to read its source and to write its destination."""
        self._flush(self._shadow.field("log_count"))
        warp, form, clocks = copy.thread // LANES, copy.action.form, self._clocks
        self._check_bounds(copy)
        if copy.box is not None:
            self._maps.used(self._block, copy)
        actor, time = self._copies[copy] = self._actor(copy)
        known, who = clocks.of[warp], party(copy.action.number, copy.thread)
        if copy.barrier is not None:
            self._check_barrier(copy, known)
        if form["F"] == "shared":
            where = self._places(copy, copy.start)
            self._found.uninitialized_source(self._block, copy, self._unset(where))
            whos = np.full(len(where), who)
            met = self._granules.read(actor, time, where, whos, known[ORDERED])
            self._report_copy(copy, met, where, writes=False)
            if met is None:
                self._check_visible(copy, where, known, writes=False)
        if form["D"] == "shared":
            where = self._places(copy, copy.to)
            if is_reduction(form):
                self._check_visible(copy, where, known, writes=True)
            whos = np.full(len(where), who)
            writer, times, before = self._granules.written(where)
            met = self._granules.write(actor, time, where, whos, known[ORDERED])
            self._report_copy(copy, met, where, writes=True)
            if met is None and not is_reduction(form):
                late = self._unseen(writer, times, known)
                self._report_unseen(copy, where, late, before, writes=True)
        else:
            define_written(self._names.memory, copy)
        if form["F"] == "global":
            unset = never_written(self._names.memory, copy)
            if unset is not None:
                self._found.uninitialized_global(self._block, copy, *unset)

    def _actor(self, copy: Copy) -> tuple[int, int]:
        """Who accesses memory for a copy, and when."""
        if copy.barrier is None:
            return self._clocks.place("thread", copy.thread), copy.group
        found = self._objects.get(copy.barrier)
        time = found.phases + 1 if found is not None else 1
        if found is not None:
            found.missing.append(time)
        return self._clocks.place("mbarrier", copy.barrier), time

    def _check_bounds(self, copy: Copy) -> None:
        """A copy must stay within the variable in which it begins, if that has a size."""
        form = copy.action.form
        for space, address in ((form["F"], copy.start), (form["D"], copy.to)):
            if space != "shared":
                continue
            for variable in self._names.flow.kernel.shared.values():
                offset = address - variable.offset
                nbytes = copy.nbytes if copy.box is None else footprint(copy.box)
                if 0 <= offset < variable.size < offset + nbytes:
                    array, _ = self._names.shared(address)
                    self._found.past_end(self._block, copy, array, variable.size, offset)

    def _check_barrier(self, copy: Copy, known: Clock) -> None:
        assert copy.barrier is not None
        found = self._objects.get(copy.barrier)
        number = copy.action.number
        if found is None or number in found.reported:
            return
        self.used(number, copy.thread, copy.barrier)
        if number not in found.reported and known[INITIALIZED, found.warp] < found.time:
            found.reported.add(number)
            self._found.unfenced_barrier(self._block, copy, found.who)

    def _check_visible(self, copy: Copy, where: Numbers, known: Clock, *, writes: bool) -> None:
        """Generic writes must be visible to the asynchronous proxy."""
        writer, times, who = self._granules.written(where)
        late = self._unseen(writer, times, known)
        self._report_unseen(copy, where, late, who, writes=writes)

    def _unseen(self, writer: NDArray[np.int16], times: Clock, known: Clock) -> NDArray[np.bool_]:
        """Which generic writes are not visible to the asynchronous proxy."""
        late = self._clocks.generic(writer)
        return late & (times > known[VISIBLE][writer]) if late.any() else late

    def _report_unseen(
        self, copy: Copy, where: Numbers, late: np.ndarray, who: Numbers, *, writes: bool
    ) -> None:
        if late.any():
            index = int(late.argmax())
            address = self._address(copy, int(where[index]), writes=writes)
            self._found.no_proxy_fence(self._block, copy, address, int(who[index]), writes=writes)

    def _report_copy(
        self, copy: Copy, met: Conflict | None, where: Numbers, *, writes: bool
    ) -> None:
        if met is not None:
            address = self._address(copy, int(where[met.index]), writes=writes)
            self._found.copy_conflict(self._block, copy, address, met, writes=writes)

    def _address(self, copy: Copy, granule: int, *, writes: bool) -> int:
        return max(granule << self._shadow.shift, copy.to if writes else copy.start)

    def delivered(self, copy: Copy) -> None:
        """The bytes of a bulk copy are counted at its mbarrier."""
        assert copy.barrier is not None
        found = self._objects.get(copy.barrier)
        _, time = self._copies.pop(copy)
        if found is not None and time in found.missing:
            found.missing.remove(time)

    def landed(self, copy: Copy) -> None:
        """A bulk copy has written its destination."""
        if copy.action.form["D"] == "shared":
            self._shadow.define_shared(self._places(copy, copy.to))

    def groups_waited(self, thread: int, copies: Iterable[Copy]) -> None:
        """A thread has waited for bulk copies that it issued."""
        self._flush(self._shadow.field("log_count"))
        row = self._clocks.of[thread // LANES, ORDERED]
        for copy in copies:
            actor, time = self._copies.get(copy, (0, 0))
            row[actor] = max(row[actor], time)

    def ended(self, copies: Iterable[Copy]) -> None:
        """All warps have ended; these copies to global memory were not waited for."""
        for copy in copies:
            self._found.never_waited(self._block, copy)

    # The log of native code

    def _range(self, start: int, nbytes: int) -> Numbers:
        shift = self._shadow.shift
        return np.arange(start >> shift, (start + nbytes + (1 << shift) - 1) >> shift)

    def _places(self, copy: Copy, address: int) -> Numbers:
        """The granules of shared memory that a copy reads or writes, from an address on."""
        if copy.box is None:
            return self._range(address, copy.nbytes)
        return box_granules(copy.box, address, self._shadow.shift)

    def acquired_map(self, thread: int, address: int) -> None:
        """A thread acquires a tensor map."""
        self._maps.acquired(self._block, thread, address)

    def released_maps(self) -> None:
        """A thread releases what it has written to tensor maps."""
        self._maps.released()

    def _unset(self, where: Numbers) -> Numbers:
        """The addresses of granules that were never written."""
        return where[~self._shadow.is_defined(where)] << self._shadow.shift

    def _flush(self, now: int) -> None:
        """Compare the accesses that were logged since the last time."""
        self._shadow.looked(self._worker.field("patterns"))
        first, resumes = max(self._logged, now - LOG_ENTRIES), False
        self._logged = now
        while first < now:
            stop = self._accesses.until_stop(first, now, resumes=resumes)
            if stop is None:
                return
            if stop.told:
                self._replay(self._shadow.log[stop.entry % LOG_ENTRIES].tolist())
            else:
                self._report(stop)
            first, resumes = stop.entry + 1, not stop.told

    def _replay(self, entry: Sequence[int]) -> None:
        """An mbarrier instruction that native code has executed."""
        both, address, _, tag = entry
        number, kind = both & (1 << 32) - 1, tag >> TAG_KIND
        thread = (tag >> TAG_WARP & 255) * LANES + (both >> 32)
        self._used(number, thread, address)
        if kind == ARRIVED:
            self.arrived(number, thread, address)
        elif kind == OBSERVED:
            self._observed(number, thread, address)
        if tag & 1:
            self.completed(address)

    def _report(self, stop: Stop) -> None:
        """An access is in conflict with an earlier one, or with an mbarrier."""
        shift = self._shadow.shift
        if stop.met is not None and not self._is_repeated(stop.who, stop.met):
            kind = int(self._shadow.log[stop.entry % LOG_ENTRIES, LOG_ENTRY["tag"] // 8])
            self._found.conflict(self._block, stop.who, stop.granule << shift, stop.met,
                                 kind >> TAG_KIND, self._clocks)  # fmt: skip
        for address in self._objects if stop.marked >= 0 else ():
            if address >> shift <= stop.marked < (address + OBJECT_BYTES) >> shift:
                self._found.touched(self._block, stop.marked_by, address)

    def _is_repeated(self, who: int, met: Conflict) -> bool:
        """Whether several warps store the same constants to the same place by one instruction."""
        number = instruction_of(who)
        action = self._names.actions[number]
        return (
            met.wrote
            and instruction_of(met.other) == number
            and action.operation == "store"
            and action.address is not None
            and not isinstance(action.address.base, Register)
            and all(isinstance(each, Immediate) for each in action.sources)
        )
