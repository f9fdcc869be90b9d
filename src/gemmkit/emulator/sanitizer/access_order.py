"""`AccessOrder`: the last accesses to a block's shared memory, and the log of native code.

Native code logs the accesses of a warp. Whenever something is ordered (a barrier, an mbarrier, a
wait, a fence), the accesses logged so far are compared with earlier ones by vector clocks. This
finds what no chain of synchronization orders, whatever the order in which the warps ran.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import (
    CAUSED,
    LOADED,
    LOG_ENTRIES,
    LOG_ENTRY,
    ORDERED,
    STORED,
    TAG_KIND,
    VISIBLE_GLOBAL,
)
from gemmkit.emulator.isa.cluster import OFFSET_MASK, RANK_SHIFT, cluster_address, divided
from gemmkit.emulator.isa.mbarriers import OBJECT_BYTES
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.module import Immediate, Register
from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings
from gemmkit.emulator.sanitizer.clocks import Clock
from gemmkit.emulator.sanitizer.cluster_order import ClusterOrder
from gemmkit.emulator.sanitizer.granules import (
    Conflict,
    Granules,
    Numbers,
    instruction_of,
    party,
    thread_of,
)
from gemmkit.emulator.sanitizer.lane_windows import LaneWindows
from gemmkit.emulator.sanitizer.logged_accesses import LoggedAccesses, Stop
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.swizzles import Swizzles


class AccessOrder(ABC):
    """The order of ordinary accesses to the shared memory of the block that a worker runs."""

    def __init__(
        self, names: Names, worker: Worker, shadow: BlockShadow, found: AsynchronousFindings
    ) -> None:
        self._names, self._worker, self._shadow, self._found = names, worker, shadow, found
        self._strong, relaxed = shadow.traits.strong, shadow.traits.relaxed
        self._accesses = LoggedAccesses(worker, self._strong, relaxed, len(shadow.copies))
        self._logged = 0
        # The entry of the log that is replayed.
        self._replayed: int | None = None
        self._block = -1

    def _begin(self) -> None:
        """A block begins."""
        worker = self._worker
        self._block, self._rank, warps = worker.number, worker.rank, worker.warps
        if self._rank == 0:
            self._cluster: ClusterOrder[AccessOrder] = ClusterOrder(warps, len(worker.peers))
        else:
            first = worker.peers[0].observer
            assert isinstance(first, AccessOrder)
            self._cluster = first._cluster
        self._cluster.orders.append(self)
        # The first warp, and the first thread, as they are counted in the cluster.
        self._first, self._thread = self._rank * warps, self._rank * warps * LANES
        self._clocks = self._cluster.clocks
        self._clocks.begin(self._rank, self._shadow.now)
        blocks = worker.cluster.blocks if worker.cluster is not None else None
        self._found.parties.begin(self._block, self._rank, blocks)
        self._granules = Granules(len(self._shadow.copies), self._strong, self._clocks.actors)
        self._accesses.begin(self._granules, self._clocks, self._first)
        count = len(self._shadow.copies)
        self._lane_windows = LaneWindows(
            worker, self._shadow, self._clocks, self._first, self._granules.who
        )
        self._shadow.see_arrivals(())
        self._shadow.set_field("open_groups", self._clocks.group[self._first :].ctypes.data)
        self._swizzles = Swizzles(self._granules, self._shadow.shift, count)

    def look(self) -> None:
        """Examine what was logged, before the log is full or when native code returns."""
        self._flush(self._shadow.field("log_count"))

    def reached(
        self, number: int, lanes: Numbers, addresses: Numbers, nbytes: int, kind: int
    ) -> None:
        """Lanes of the running warp access other blocks' shared memory, at these addresses in the
        window of the cluster."""
        self.look()
        warp = self._running()
        whos = party(number, 0) | (warp * LANES + lanes)
        left = np.ones(len(lanes), bool)
        ranks = addresses >> RANK_SHIFT
        for rank in dict.fromkeys(ranks.tolist()):
            here = ranks == rank
            at = addresses[here] & OFFSET_MASK
            if self._reach_in_order(rank - 1, warp, at, whos[here], nbytes, kind):
                left &= ~here
        for who, place in zip(whos[left].tolist(), addresses[left].tolist(), strict=True):
            self._reach_alone(warp, who, place, nbytes, kind)

    def _reach_in_order(
        self, rank: int, warp: int, at: Numbers, whos: Numbers, nbytes: int, kind: int
    ) -> bool:
        """Lanes of a warp access the memory of the block of a rank; if there may be something to
        report, nothing is recorded, and it returns False."""
        low, high = int(at.min()), int(at.max())
        inside = self._worker.shared_base <= low and high <= self._worker.shared_end - nbytes
        if rank >= len(self._cluster.orders) or not inside or (at % nbytes).any():
            return False
        home = self._cluster.orders[rank]
        home.look()
        if home is not self and not self._cluster.may_visit(rank, warp):
            return False
        shift = self._shadow.shift
        granules = np.arange(max(nbytes >> shift, 1))
        where = ((at >> shift)[:, None] + granules).reshape(-1)
        every = np.repeat(whos, len(granules))
        if kind == LOADED and (
            len(home._unset(where)) or home._of_other_scope(self._rank, where) is not None
        ):
            return False
        if home._touched(where):
            return False
        clocks = self._clocks
        known, time = clocks.of[warp, ORDERED], clocks.now(warp)
        records = home._granules.read_in_order if kind == LOADED else home._granules.write_in_order
        if not records(warp, time, where, every, known):
            return False
        self._visit(cluster_address(rank, int(at[-1])), warp, (warp, time), int(whos[-1]))
        if kind != LOADED:
            home._shadow.define_shared(where)
            home._accesses.mark_remote(where, by_peer=home is not self)
        return True

    def _reach_alone(self, warp: int, who: int, place: int, nbytes: int, kind: int) -> None:
        """One lane accesses the memory of another block."""
        clocks, start, shift = self._clocks, self._worker.shared_base, self._shadow.shift
        known, time = clocks.of[warp, ORDERED], clocks.now(warp)
        rank, address = divided(place, self._rank)
        inside = start <= address <= self._worker.shared_end - nbytes
        if rank >= len(self._cluster.orders) or not inside or address % nbytes:
            thread = thread_of(who) - self._thread
            self._found.outside_peer(self._block, instruction_of(who), thread, place)
            return
        home = self._cluster.orders[rank]
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
            self._found.conflict(self._block, who, place, met, kind, self._clocks)
        if kind != STORED and met is None:
            home._check_scope(self._rank, where, who)
        if kind != LOADED:
            home._shadow.define_shared(where)
            home._accesses.mark_remote(where, by_peer=home is not self)
        for at in home._touched(where):
            home._found.touched(home._block, who, at)

    def ordered_before(self, rank: int | None = None) -> list[int]:
        """For each warp of the block of a rank, this one if none is given, the time on that block's
        clock up to which its accesses are ordered before what the running warp does; for the
        running warp the time now."""
        self.look()
        me, warps = self._running(), self._cluster.warps_of(self._rank if rank is None else rank)
        times: list[int] = self._clocks.of[me, ORDERED, warps.start : warps.stop].tolist()
        if me in warps:
            times[me - warps.start] = int(self._shadow.now[0])
        return times

    def ordered_in_cluster(self) -> list[int]:
        """The same for all warps of the cluster, each on the clock of its own block."""
        self.look()
        me = self._running()
        times: list[int] = self._clocks.of[me, ORDERED, : self._clocks.warps].tolist()
        times[me] = int(self._shadow.now[0])
        return times

    def visible_in_cluster(self) -> list[int]:
        """The same as far as accesses to global memory are visible to the asynchronous proxy."""
        self.look()
        row = self._clocks.of[self._running(), VISIBLE_GLOBAL, : self._clocks.warps]
        times: list[int] = row.tolist()
        return times

    def earlier_in_cluster(self, warp: int) -> list[int]:
        """For each warp of the cluster, the time on the clock of its block up to which what it does
        is earlier than what a warp of this block does now, as what causes a copy is earlier than
        the wait for that."""
        self.look()
        clock, warps = self._clocks.of[self._first + warp], self._clocks.warps
        times: list[int] = np.maximum(clock[ORDERED], clock[CAUSED])[:warps].tolist()
        return times

    def launch_waits_in_cluster(self) -> list[int]:
        """For each warp of the cluster, the time of its first `griddepcontrol.wait`, or 0."""
        return [time for each in self._cluster.orders for time in each._shadow.launch_waits()]

    @property
    def known(self) -> Clock:
        """By actor, the latest time that is ordered before what the running warp does."""
        self.look()
        row: Clock = self._clocks.of[self._running(), ORDERED]
        return row

    def _check_scope(self, rank: int, where: Numbers, who: int) -> None:
        """A thread of the block of a rank reads granules of this block: an ordinary write of
        another block must precede by instructions of cluster scope."""
        found = self._of_other_scope(rank, where)
        numbers = (instruction_of(each) for each in (who, found[1] if found else who))
        if found is not None and not all(map(self._names.strong, numbers)):
            granule, other = found
            place = cluster_address(self._rank, granule << self._shadow.shift)
            self._found.not_of_cluster_scope(self._block, who, place, other)

    def _of_other_scope(self, rank: int, where: Numbers) -> tuple[int, int] | None:
        """The first of some granules, which the block of a rank reads, with an ordinary write of
        another block that does not precede by instructions of cluster scope; and whose it is."""
        writers, times, whos = self._granules.written(where)
        generic = np.flatnonzero((times > 0) & (writers < self._clocks.warps))
        if not len(generic):
            return None
        late = generic[~self._cluster.scope.are_ordered(rank, writers[generic], times[generic])]
        return (int(where[late[0]]), int(whos[late[0]])) if len(late) else None

    def _touched(self, where: Numbers) -> list[int]:
        """The mbarriers of this block that an access to granules concerns, which it must not."""
        shift = self._shadow.shift
        low, high = int(where.min()), int(where.max())
        found: list[int] = []
        for address in self._cluster.objects[self._rank]:
            first, end = address >> shift, (address + OBJECT_BYTES) >> shift
            if first <= high and low < end and ((first <= where) & (where < end)).any():
                found.append(address)
        return found

    # Lanes that are not in step

    def releases(self, warp: int, number: int, lanes: int) -> None:
        """Lanes of a warp are about to arrive at mbarriers."""
        self.look()
        self._released(warp, number, lanes)

    def _released(
        self,
        warp: int,
        number: int,
        lanes: int,
        *,
        fence: bool = False,
        flag: bool = False,
        fenced: bool = False,
    ) -> None:
        """Lanes of a warp of this block release what they did (`fenced`: before the last fence), or
        execute a proxy fence."""
        windows = self._lane_windows
        watches = windows.some
        new = windows.released(warp, number, lanes, fence=fence, flag=flag, fenced=fenced)
        if new or watches:
            self._watch_lanes()

    def _watch_lanes(self) -> None:
        windows = self._lane_windows
        self._accesses.watch(windows.granules())
        self._shadow.see_arrivals(windows.open)

    def _check_lanes(
        self,
        where: Numbers,
        warp: int,
        who: int,
        what: str,
        *,
        writes: bool = False,
        proxy: bool = False,
    ) -> None:
        """A warp of the cluster accesses granules of this block, by itself or through the
        asynchronous proxy: other lanes than those that handed them over may have accessed them."""
        if not self._lane_windows.some:
            return
        known = self._clocks.of[warp]
        apart = self._lane_windows.met(known, where, warp, writes=writes, through_proxy=proxy)
        if apart is not None:
            place = apart.granule << self._shadow.shift
            self._found.lanes_apart(self._block, (who, what, writes), place, apart)
            self._watch_lanes()

    def _mark(self, address: int, *, used: bool) -> None:
        shift = self._shadow.shift
        self._accesses.mark(address >> shift, (address + OBJECT_BYTES) >> shift, used=used)

    # Threads and places in the cluster

    def _home(self, address: int) -> tuple[AccessOrder, int]:
        """The block that has an address in shared memory, and the address there."""
        rank, within = divided(address, self._rank)
        return self._cluster.orders[rank], within

    def _visit(self, address: int, warp: int, by: tuple[int, int], who: int) -> None:
        """A warp accesses shared memory, maybe that of another block, for an actor at a time."""
        rank, within = divided(address, self._rank)
        if rank != self._rank:
            self._cluster.visit(self._found, rank, (warp, *by), who, within)

    def _running(self) -> int:
        """The running warp, as it is counted in the cluster."""
        return self._first + self._worker.warp_number(self._worker.field("running"))

    def _warp_of(self, thread: int) -> int:
        return self._first + thread // LANES

    def _who(self, number: int, thread: int) -> int:
        return party(number, self._thread + thread)

    def _unset(self, where: Numbers) -> Numbers:
        """The addresses of granules that were never written."""
        return where[~self._shadow.is_defined(where)] << self._shadow.shift

    # The log of native code

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
                self._replayed = stop.entry
                self._replay(self._shadow.log[stop.entry % LOG_ENTRIES].tolist())
                self._replayed = None
            else:
                self._report(stop)
            first, resumes = stop.entry + 1, not stop.told

    @abstractmethod
    def _replay(self, entry: Sequence[int]) -> None:
        """An instruction in the log that native code leaves to Python."""

    def _report(self, stop: Stop) -> None:
        """An access is in conflict with an earlier one, or with an mbarrier."""
        shift = self._shadow.shift
        if stop.met is not None and not self._is_repeated(stop.who, stop.met):
            kind = int(self._shadow.log[stop.entry % LOG_ENTRIES, LOG_ENTRY["tag"] // 8])
            self._found.conflict(self._block, stop.who, stop.granule << shift, stop.met,
                                 kind >> TAG_KIND, self._clocks)  # fmt: skip
        if stop.marked >= 0 and stop.met is None:
            kind = int(self._shadow.log[stop.entry % LOG_ENTRIES, LOG_ENTRY["tag"] // 8])
            if kind >> TAG_KIND == LOADED:
                self._check_scope(self._rank, np.array([stop.marked]), stop.marked_by)
            where, warp = np.array([stop.marked]), thread_of(stop.marked_by) // LANES
            writes = kind >> TAG_KIND != LOADED
            self._check_lanes(where, warp, stop.marked_by, "", writes=writes)
        for address in self._cluster.objects[self._rank] if stop.marked >= 0 else ():
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
