"""`Order`: races in shared memory of kernels that use mbarriers or bulk copies.

Native code logs the accesses of a warp. Whenever something is ordered (a barrier, an mbarrier, a
wait, a fence), the accesses logged so far are compared with earlier ones by vector clocks. This
finds what no chain of synchronization orders, whatever the order in which the warps ran.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gemmkit.emulator.codegen.layout import AT_BARRIER, BARRIERS, LANES
from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVES,
    BEGINS,
    COMMITS,
    FENCES,
    LOADED,
    OPENS,
    SENT,
    WAITS,
)
from gemmkit.emulator.isa.bulk_copies import is_reduction
from gemmkit.emulator.isa.cluster import cluster_address, divided
from gemmkit.emulator.isa.mbarriers import OBJECT_BYTES
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.access_log import AccessLog, Logged
from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings
from gemmkit.emulator.sanitizer.clocks import CAUSED, INITIALIZED, ORDERED, VISIBLE, Clock
from gemmkit.emulator.sanitizer.cluster_order import ClusterOrder, Object
from gemmkit.emulator.sanitizer.granules import Conflict, Granules, Numbers, party
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names


class Order:
    """The order of one worker's accesses, block by block."""

    def __init__(
        self, names: Names, worker: Worker, shadow: BlockShadow, found: AsynchronousFindings
    ) -> None:
        self._names, self._worker, self._shadow, self._found = names, worker, shadow, found
        self._strong = np.array(
            [action.number for action in names.actions if names.strong(action.number)], np.int64
        )
        self._log = AccessLog(worker, shadow)
        self._block = -1
        self._begin()

    def _begin(self) -> None:
        self._block = self._worker.number
        worker = self._worker
        self._rank, warps = worker.rank, worker.warps
        if self._rank == 0:
            self._cluster: ClusterOrder[Order] = ClusterOrder(warps, len(worker.peers))
        else:
            first = worker.peers[0].observer
            assert isinstance(first, Order)
            self._cluster = first._cluster
        self._cluster.orders.append(self)
        # The first warp, and the first thread, as they are counted in the cluster.
        self._first, self._thread = self._rank * warps, self._rank * warps * LANES
        self._clocks, self._copies = self._cluster.clocks, self._cluster.copies
        blocks = worker.cluster.blocks if worker.cluster is not None else None
        self._found.begin(self._block, self._rank, blocks)
        self._granules = Granules(len(self._shadow.copies), self._strong)
        self._barriers = [self._clocks.empty() for _ in range(BARRIERS)]

    # What native code tells

    def told(self, what: int, operand: int) -> None:
        """The running warp synchronizes, or a block begins."""
        worker, clocks = self._worker, self._clocks
        if what == BEGINS:
            self._flush(self._shadow.field("log_count"))
            self._begin()
            return
        self._flush(self._shadow.field("log_count"))
        warp = self._running()
        if what == ARRIVES:
            clocks.release(warp, self._barriers[operand % BARRIERS])
        elif what == OPENS:
            number = operand % BARRIERS
            here = worker.warp_fields("barrier") == operand
            for each in np.flatnonzero(here & (worker.warp_fields("status") == AT_BARRIER)):
                clocks.acquire(self._first + int(each), self._barriers[number])
            self._barriers[number] = clocks.empty()
        elif what == COMMITS:
            clocks.group[warp] += 1
        elif what == WAITS:
            clocks.wait_for_copies(warp, operand)
        elif what == FENCES and operand:
            clocks.fence(warp, VISIBLE if operand == 1 else INITIALIZED)
        elif what == FENCES:
            clocks.order_by_fence(warp)

    def look(self) -> None:
        """Examine what was logged, before the log is full or when the launch has ended."""
        self._flush(self._shadow.field("log_count"))

    # What asynchronous instructions tell

    def initialized(self, number: int, thread: int, address: int) -> None:
        """A thread initializes an mbarrier."""
        self._flush(self._shadow.field("log_count"))
        objects = self._cluster.objects[self._rank]
        if address in objects:
            self._found.initialized_again(self._block, number, thread, address)
        warp, clocks = self._warp_of(thread), self._clocks
        who = self._who(number, thread)
        made = Object(who, warp, clocks.now(warp), clocks.empty(), clocks.empty())
        objects[address] = made

    def invalidated(self, number: int, thread: int, address: int) -> None:
        """A thread invalidates an mbarrier."""
        self.used(number, thread, address)
        self._cluster.objects[self._rank].pop(address, None)

    def used(self, number: int, thread: int, address: int) -> None:
        """A thread uses an mbarrier."""
        found = self._cluster.object_at(address, self._rank)
        if found is None or number in found.reported:
            return
        warp = self._warp_of(thread)
        known = self._clocks.of[warp, :, found.warp]
        if warp != found.warp and max(known[ORDERED], known[INITIALIZED]) < found.time:
            found.reported.add(number)
            self._found.not_visible(self._block, number, thread, address, found.who)

    def arrived(self, number: int, thread: int, address: int) -> None:
        """A thread arrives at an mbarrier, the last one of its warp that does."""
        self._flush(self._shadow.field("log_count"))
        found = self._cluster.object_at(address, self._rank)
        if found is None:
            return
        warp, clocks = self._warp_of(thread), self._clocks
        self._visit(address, warp, (warp, clocks.now(warp)), self._who(number, thread))
        action = self._names.actions[number]
        if ".relaxed" in action.form.opcode:
            clocks.release_relaxed(warp, found.arriving)
        else:
            clocks.release(warp, found.arriving)
        if action.operation == "mbarrier_arrive_copies":
            actor = clocks.copies_of(warp)
            into = found.arriving[ORDERED]
            into[actor] = max(into[actor], clocks.group[warp])
            clocks.group[warp] += 1

    def completed(self, address: int) -> None:
        """A phase is complete."""
        found = self._cluster.object_at(address, self._rank)
        if found is not None:
            self._check_overrun(found, address)
            found.phases += 1
            arrived = min([found.phases + 1, *found.missing]) - 1
            actor = self._clocks.place("mbarrier", cluster_address(self._rank, address))
            found.arriving[ORDERED, actor] = arrived
            np.maximum(found.complete, found.arriving, out=found.complete)
            found.arriving = self._clocks.empty()

    def _check_overrun(self, found: Object, address: int) -> None:
        """Whoever waits for a phase must have observed it before the next one completes."""
        for warp, (time, who) in found.observed.items():
            if found.arriving[CAUSED, warp] < time:
                self._found.overrun_phase(self._block, who, address)
        found.observed.clear()

    def waited(self, number: int, thread: int, address: int) -> None:
        """A thread has observed the completion of a phase."""
        warp = self._warp_of(thread)
        self._flush(self._shadow.field("log_count"))
        self._shadow.in_step(thread // LANES)
        found = self._cluster.object_at(address, self._rank)
        if found is None:
            return
        if ".relaxed" in self._names.actions[number].form.opcode:
            self._clocks.acquire_relaxed(warp, found.complete)
        else:
            self._clocks.acquire(warp, found.complete)
            found.observed[warp] = self._clocks.now(warp), self._who(number, thread)

    def issued(self, copy: Copy) -> None:
        """A bulk copy begins to read its source and to write its destination."""
        self._flush(self._shadow.field("log_count"))
        warp, form, clocks = self._warp_of(copy.thread), copy.action.form, self._clocks
        self._check_bounds(copy)
        actor, time = self._copies[copy] = self._actor(copy)
        known, who = clocks.of[warp], self._who(copy.action.number, copy.thread)
        if copy.barrier is not None:
            self._check_barrier(copy, known)
        source = form.modifiers.get("F", "")
        if source == "shared":
            where = self._range(copy.start, copy.nbytes)
            self._found.uninitialized_source(self._block, copy, self._unset(where))
            whos = np.full(len(where), who)
            met = self._granules.read(actor, time, where, whos, known[ORDERED])
            self._report_copy(copy, met, where, writes=False)
            if met is None:
                self._check_visible(copy, where, known, writes=False)
        if form["D"] == "shared":
            self._written(copy, (actor, time), known, who)
        else:
            self._define_global(copy)
        if source == "global":
            self._found.uninitialized_global(self._block, copy)

    def _written(self, copy: Copy, by: tuple[int, int], known: Clock, who: int) -> None:
        """A bulk copy begins to write shared memory, maybe that of another block."""
        home, address = self._home(copy.to)
        home.look()
        self._visit(copy.to, self._warp_of(copy.thread), by, who)
        # `st.async` and `red.async` write through the generic proxy, as other stores do.
        proxy = copy.action.operation == "bulk_copy"
        reduces = is_reduction(copy.action.form)
        where, granules = self._range(address, copy.nbytes), home._granules
        if reduces and proxy:
            self._check_visible(copy, where, known, writes=True)
        whos, writer = np.full(len(where), who), granules.writer[where]
        times, before = granules.time[where], granules.who[where]
        met = granules.write(*by, where, whos, known[ORDERED])
        self._report_copy(copy, met, where, writes=True)
        if met is None and not reduces and proxy:
            late = (times > known[VISIBLE][writer]) & self._clocks.generic(writer)
            self._report_unseen(copy, where, late, before, writes=True)

    def _actor(self, copy: Copy) -> tuple[int, int]:
        """Who accesses memory for a copy, and when."""
        if copy.barrier is None:
            return self._clocks.place("thread", self._thread + copy.thread), copy.group
        found = self._cluster.object_at(copy.barrier, self._rank)
        time = found.phases + 1 if found is not None else 1
        if found is not None:
            found.missing.append(time)
            found.issued[copy] = self._clocks.caused(self._warp_of(copy.thread))
        place = cluster_address(*divided(copy.barrier, self._rank))
        return self._clocks.place("mbarrier", place), time

    def _check_bounds(self, copy: Copy) -> None:
        """A copy must stay within the variable in which it begins, if that has a size."""
        form = copy.action.form
        for space, place in ((form.modifiers.get("F", ""), copy.start), (form["D"], copy.to)):
            if space != "shared":
                continue
            address = divided(place, self._rank)[1]
            for variable in self._names.flow.kernel.shared.values():
                offset = address - variable.offset
                if 0 <= offset < variable.size < offset + copy.nbytes:
                    array, _ = self._names.shared(address)
                    self._found.past_end(self._block, copy, array, variable.size, offset)

    def _define_global(self, copy: Copy) -> None:
        """What a bulk copy writes to global memory counts as written."""
        found = self._names.memory.find(copy.to)
        written = self._names.memory.written(found.address) if found is not None else None
        if found is not None and written is not None:
            written[copy.to - found.address :][: copy.nbytes] = 1

    def _check_barrier(self, copy: Copy, known: Clock) -> None:
        assert copy.barrier is not None
        found = self._cluster.object_at(copy.barrier, self._rank)
        number = copy.action.number
        if found is None or number in found.reported:
            return
        self.used(number, copy.thread, copy.barrier)
        if copy.action.operation != "bulk_copy":
            return
        if number not in found.reported and known[INITIALIZED, found.warp] < found.time:
            found.reported.add(number)
            self._found.unfenced_barrier(self._block, copy, found.who)

    def _check_visible(self, copy: Copy, where: Numbers, known: Clock, *, writes: bool) -> None:
        """Generic writes must be visible to the asynchronous proxy."""
        granules = (self._home(copy.to)[0] if writes else self)._granules
        writer, times = granules.writer[where], granules.time[where]
        late = (times > known[VISIBLE][writer]) & self._clocks.generic(writer)
        self._report_unseen(copy, where, late, granules.who[where], writes=writes)

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
        place = copy.to if writes else copy.start
        rank, start = divided(place, self._rank)
        address = max(granule << self._shadow.shift, start)
        return address if place == start else cluster_address(rank, address)

    def delivered(self, copy: Copy) -> None:
        """The bytes of a bulk copy are counted at its mbarrier."""
        assert copy.barrier is not None
        found = self._cluster.object_at(copy.barrier, self._rank)
        _, time = self._copies.pop(copy)
        if found is not None:
            found.count_bytes(copy)
        if found is not None and time in found.missing:
            found.missing.remove(time)

    def landed(self, copy: Copy) -> None:
        """A bulk copy has written its destination."""
        if copy.action.form["D"] == "shared":
            home, address = self._home(copy.to)
            home._shadow.define_shared(self._range(address, copy.nbytes))

    def groups_waited(self, thread: int, copies: Iterable[Copy]) -> None:
        """A thread has waited for bulk copies that it issued."""
        self._flush(self._shadow.field("log_count"))
        row = self._clocks.of[self._warp_of(thread), ORDERED]
        for copy in copies:
            actor, time = self._copies.get(copy, (0, 0))
            row[actor] = max(row[actor], time)

    def ended(self, copies: Iterable[Copy]) -> None:
        """All warps have ended; these copies to global memory were not waited for."""
        for copy in copies:
            self._found.never_waited(self._block, copy)

    # The cluster

    def _home(self, address: int) -> tuple[Order, int]:
        """The block that has an address in shared memory, and the address there."""
        rank, within = divided(address, self._rank)
        return self._cluster.orders[rank], within

    def _visit(self, address: int, warp: int, by: tuple[int, int], who: int) -> None:
        """A warp accesses shared memory, maybe that of another block, for an actor at a time."""
        rank, within = divided(address, self._rank)
        self._cluster.visit(self._found, rank, (warp, *by), who, within)

    def arrived_in_cluster(self, number: int, warp: int) -> None:
        """Lanes of a warp have arrived at the cluster's barrier."""
        self.look()
        relaxed = self._names.actions[number].form["R"] == "relaxed"
        self._cluster.arrive(self._first + warp, relaxed=relaxed)

    def cluster_met(self) -> None:
        """All threads of the cluster have arrived at its barrier."""
        self._cluster.meet()

    def waited_in_cluster(self, warp: int) -> None:
        """Lanes of a warp have waited for the cluster's barrier."""
        self.look()
        self._shadow.in_step(warp)
        self._cluster.wait(self._first + warp)

    def exited(self) -> None:
        """All warps of the block have ended, in a cluster of several."""
        self.look()
        self._cluster.end(self._found)

    def reached(self, number: int, addresses: dict[int, int], nbytes: int, kind: int) -> None:
        """Lanes of the running warp access other blocks' shared memory, at these addresses in the
        window of the cluster."""
        self.look()
        warp, clocks, start = self._running(), self._clocks, self._worker.shared_base
        known, time = clocks.of[warp, ORDERED], clocks.now(warp)
        shift, first = self._shadow.shift, warp * LANES
        for lane, place in addresses.items():
            rank, address = divided(place, self._rank)
            inside = start <= address <= self._worker.shared_end - nbytes
            if rank >= len(self._cluster.orders) or not inside or address % nbytes:
                self._found.outside_peer(self._block, number, first - self._thread + lane, place)
                continue
            home, who = self._cluster.orders[rank], party(number, first + lane)
            home.look()
            where = np.arange(address >> shift, (address >> shift) + max(nbytes >> shift, 1))
            self._visit(place, warp, (warp, time), who)
            if kind == LOADED:
                unset = home._unset(where)
                if len(unset):
                    self._found.uninitialized_peer(who, cluster_address(rank, int(unset[0])))
            access = home._granules.read if kind == LOADED else home._granules.write
            met = access(warp, time, where, np.full(len(where), who), known)
            if met is not None:
                place = cluster_address(rank, max(int(where[met.index]) << shift, address))
                self._found.conflict(self._block, who, place, met, kind, clocks)
            if kind != LOADED:
                home._shadow.define_shared(where)
            home._check_objects(where, np.full(len(where), who), shift)

    def _running(self) -> int:
        """The running warp, as it is counted in the cluster."""
        return self._first + self._worker.warp_number(self._worker.field("running"))

    def _warp_of(self, thread: int) -> int:
        return self._first + thread // LANES

    def _who(self, number: int, thread: int) -> int:
        return party(number, self._thread + thread)

    # The log of native code

    def _range(self, start: int, nbytes: int) -> Numbers:
        shift = self._shadow.shift
        return np.arange(start >> shift, (start + nbytes + (1 << shift) - 1) >> shift)

    def _unset(self, where: Numbers) -> Numbers:
        """The addresses of granules that were never written."""
        return where[~self._shadow.is_defined(where)] << self._shadow.shift

    def _flush(self, now: int) -> None:
        """Compare the accesses that were logged since the last time."""
        for each in self._log.take(now):
            self._accesses(each)

    def _accesses(self, logged: Logged) -> None:
        clocks, actor = self._clocks, self._first + logged.warp
        known, time = clocks.of[actor, ORDERED], clocks.now(actor)
        if logged.kind == SENT:
            actor, time = clocks.copies_of(actor), int(clocks.group[actor])
        where, who = logged.where, logged.who + self._thread
        access = self._granules.read if logged.kind == LOADED else self._granules.write
        met = access(actor, time, where, who, known)
        if met is not None:
            address = max(int(where[met.index]) << self._shadow.shift, logged.first)
            self._found.conflict(self._block, int(who[met.index]), address, met,
                                 logged.kind, clocks)  # fmt: skip
        self._check_objects(where, who, self._shadow.shift)

    def _check_objects(self, where: Numbers, who: Numbers, shift: int) -> None:
        for address in self._cluster.objects[self._rank]:
            touched = (where >= address >> shift) & (where < (address + OBJECT_BYTES) >> shift)
            if touched.any():
                self._found.touched(self._block, int(who[touched.argmax()]), address)
