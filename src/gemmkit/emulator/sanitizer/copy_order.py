"""`CopyOrder`: bulk copies and tensor copies in the order of a block's accesses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import INITIALIZED, ORDERED
from gemmkit.emulator.isa.bulk_copies import is_reduction
from gemmkit.emulator.isa.cluster import cluster_address, divided
from gemmkit.emulator.isa.mbarriers import OBJECT_BYTES
from gemmkit.emulator.isa.tensor_copies import footprint
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.warp_stores import WarpStores
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.access_order import AccessOrder
from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings
from gemmkit.emulator.sanitizer.clocks import Clock, Refill
from gemmkit.emulator.sanitizer.flag_order import FlagOrder
from gemmkit.emulator.sanitizer.global_copies import GlobalCopies
from gemmkit.emulator.sanitizer.granules import Conflict, Numbers, party
from gemmkit.emulator.sanitizer.launch_waits import LaunchWaits
from gemmkit.emulator.sanitizer.shadow import BlockShadow
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.tensor_maps import MapOrder
from gemmkit.emulator.sanitizer.tensor_places import (
    box_granules,
    box_span,
    define_written,
    never_written,
    stored_granules,
)


class CopyOrder(FlagOrder):
    """Adds bulk copies, `st.async` and `red.async` to the order of accesses."""

    def __init__(
        self,
        names: Names,
        worker: Worker,
        shadow: BlockShadow,
        found: AsynchronousFindings,
        maps: MapOrder,
    ) -> None:
        super().__init__(names, worker, shadow, found)
        self._maps = maps

    def follow_launches(self, waits: LaunchWaits) -> None:
        """What earlier launches do to global memory is followed as well."""
        self._launch_waits = waits

    def follow_global(self, copies: GlobalCopies, want_loads: Callable[[int], None]) -> None:
        """Tell of copies from and to global memory, and of a region (its first byte) whose loads
        must be recorded from the start."""
        self._global_copies, self._want_loads = copies, want_loads

    def acquired_map(self, thread: int, address: int) -> None:
        """A thread acquires a tensor map."""
        self._maps.acquired(self._block, thread, address)

    def released_maps(self) -> None:
        """A thread releases what it has written to tensor maps."""
        self._maps.released()

    def issued(self, copy: Copy) -> None:
        """A bulk copy begins to read its source and to write its destination."""
        self.look()
        warp, form, clocks = self._warp_of(copy.thread), copy.action.form, self._clocks
        self._check_bounds(copy)
        if copy.box is not None:
            self._maps.used(self._block, copy)
        actor, time = self._cluster.copies[copy] = self._actor(copy)
        known, who = clocks.of[warp], self._who(copy.action.number, copy.thread)
        if copy.barrier is not None:
            self._check_barrier(copy, known)
        else:
            clocks.issued(warp, actor, who)
        source = form.modifiers.get("F", "")
        if source == "shared":
            where = self._places(copy, copy.start)
            self._check_defined(copy, where)
            whos = np.full(len(where), who)
            self._check_issue(self, copy, where, who, writes=False)
            met = self._granules.read(actor, time, where, whos, known[ORDERED])
            self._report_copy(copy, met, where, writes=False)
            if met is None:
                written = self._granules.written(where)
                self._check_visible(copy, where, written, known, writes=False)
            if form["D"] == "shared" and self._home(copy.to)[0] is not self:
                self._cluster.copies_out(self._rank, (actor, time), who, copy.start)
        if form["D"] == "shared":
            self._written(copy, (actor, time), known, who)
        else:
            define_written(self._names.memory, copy)
        self._access_global(copy, warp, (actor, time))
        if source == "global":
            unset = never_written(self._names.memory, copy)
            if unset is not None:
                self._found.uninitialized_global(self._block, copy, *unset)

    def sent(self, stores: WarpStores) -> bool:
        """Lanes of a warp store by `st.async` or `red.async`, which takes effect now; if there may
        be something to report, nothing is recorded, and it returns False."""
        self.look()
        cluster, clocks, rank = self._cluster, self._clocks, stores.rank
        if rank >= len(cluster.orders):
            return False
        home, warp, number = cluster.orders[rank], self._first + stores.warp, stores.action.number
        found = cluster.objects[rank].get(stores.barrier)
        if home is not self:
            home.look()
            if not cluster.may_visit(rank, warp):
                return False
        if found is None or not self._may_use(number, warp, found) or self._leaves(stores):
            return False
        actor = clocks.place("mbarrier", cluster_address(rank, stores.barrier))
        shift, time, granules = self._shadow.shift, found.phases + 1, home._granules
        first, each = stores.to >> shift, max(stores.nbytes >> shift, 1)
        span = range(int(first[0]), int(first[0]) + each * len(first))
        where: slice | Numbers = slice(span.start, span.stop)
        if not stores.in_one_piece:
            where = (first[:, None] + np.arange(each)).reshape(-1)
        whos = party(number, 0) | (self._thread + stores.warp * LANES + stores.lanes)
        by, known = np.repeat(whos, each), clocks.of[warp, ORDERED]
        if granules.any_unread(first, actor, time) or not granules.write_in_order(
            actor, time, where, by, known
        ):
            return False
        before = clocks.caused(warp, times=len(whos))
        found.receive(before, warp, actor)
        last = found.carrier = int(whos[-1])
        self._visit(cluster_address(rank, int(stores.to[-1])), warp, (actor, time), last)
        for who in whos.tolist() if clocks.refills else ():
            clocks.refills.pop((actor, who), None)
        if isinstance(where, slice):
            home._shadow.define_range(span)
        else:
            home._shadow.define_shared(where)
        return True

    def _leaves(self, stores: WarpStores) -> bool:
        """Whether stores run past the end of a variable, or overwrite an mbarrier."""
        to, nbytes = stores.to, stores.nbytes
        low, high = int(to.min()), int(to.max()) + nbytes
        for at in self._cluster.objects[stores.rank]:
            if low - OBJECT_BYTES < at < high and (
                (to - OBJECT_BYTES < at) & (at < to + nbytes)
            ).any():  # fmt: skip
                return True
        for variable in self._names.flow.kernel.shared.values():
            end = variable.offset + variable.size
            if low < end < high and (
                (variable.offset <= to) & (to < end) & (end < to + nbytes)
            ).any():  # fmt: skip
                return True
        return False

    def _check_defined(self, copy: Copy, where: Numbers) -> None:
        """What a copy reads in shared memory must have been written with values that were set."""
        if copy.box is not None:
            where = stored_granules(copy.box, copy.start, self._shadow.shift)
        unset = self._unset(where)
        if len(unset):
            _, times, whos = self._granules.written(unset[:1] >> self._shadow.shift)
            writer = int(whos[0]) if times[0] else None
            self._found.uninitialized_source(self._block, copy, int(unset[0]), writer)

    def _written(self, copy: Copy, by: tuple[int, int], known: Clock, who: int) -> None:
        """A bulk copy begins to write shared memory, maybe that of another block."""
        home, address = self._home(copy.to)
        if home is not self:
            home.look()
            self._visit(copy.to, self._warp_of(copy.thread), by, who)
        self._note_refill(copy, home, address, by, who)
        self._check_overwritten(copy, home, address)
        # `st.async` and `red.async` write through the generic proxy, as other stores do.
        proxy = copy.action.operation != "bulk_store"
        reduces = is_reduction(copy.action.form)
        span, warp = self._span(copy, address), self._warp_of(copy.thread)
        shadow, within = self._shadow, copy.thread // LANES
        apart = shadow.last_access(within) > shadow.last_step(within)
        if proxy and (apart or home._lane_windows.some):
            self._check_issue(home, copy, self._places(copy, address), who, writes=True)
        swizzle = copy.box.map.swizzle if copy.box is not None else 0
        home._swizzles.wrote(span or self._places(copy, address), swizzle)
        if proxy and not reduces and span and home._accesses.write(span, warp, by, who):
            return
        where, granules = self._places(copy, address), home._granules
        before = granules.written(where)
        if reduces and proxy:
            self._check_visible(copy, where, before, known, writes=True)
        met = granules.write(*by, where, np.full(len(where), who), known[ORDERED])
        self._report_copy(copy, met, where, writes=True)
        if met is None and not reduces and proxy:
            self._check_visible(copy, where, before, known, writes=True)

    def _check_issue(
        self, home: AccessOrder, copy: Copy, where: Numbers, who: int, *, writes: bool
    ) -> None:
        """Other lanes of the warp that issues a copy, or of those that handed over what it accesses
        in a block, may not be in step."""
        warp, lane = divmod(copy.thread, LANES)
        what = f"the {self._found.parties.copy_name(copy.action.number)} by "
        home._check_lanes(where, self._first + warp, who, what, writes=writes, proxy=True)
        apart = None
        if home is self:
            apart = self._lane_windows.issued(warp, lane, where, writes=writes)
        if apart is not None:
            place = apart.granule << self._shadow.shift
            self._found.lanes_apart(self._block, (who, what, writes), place, apart)

    def _check_overwritten(self, copy: Copy, home: AccessOrder, address: int) -> None:
        """A copy must not write to an mbarrier in use."""
        objects = self._cluster.objects[home._rank]
        end = address + (copy.nbytes if copy.box is None else footprint(copy.box))
        for at in [each for each in objects if address - OBJECT_BYTES < each < end]:
            found, place = objects.pop(at), cluster_address(home._rank, at)
            home._accesses.initialized(at, None)
            home._mark(at, used=False)
            self._found.overwritten(self._block, copy, place, found.who)
            self._cluster.overwritten.add(self._names.shared(at))

    def follows_overwriting(self, refusal: Refusal) -> bool:
        """Whether an instruction is refused because a copy has overwritten its mbarrier."""
        place = refusal.array, refusal.offset
        return refusal.kind == "invalid mbarrier" and place in self._cluster.overwritten

    def _note_refill(
        self, copy: Copy, home: AccessOrder, address: int, by: tuple[int, int], who: int
    ) -> None:
        """Whether nobody has read the first bytes since an earlier copy of the same mbarrier."""
        actor, time = by
        first, refills = address >> self._shadow.shift, self._clocks.refills
        granules = home._granules
        if copy.barrier is not None and granules.is_unread(first, actor, time):
            released = self._cluster.awaited_by(self._warp_of(copy.thread))
            refills[actor, who] = Refill(int(granules.time[first]), released)
        elif refills:
            refills.pop((actor, who), None)

    def _actor(self, copy: Copy) -> tuple[int, int]:
        """Who accesses memory for a copy, and when."""
        if copy.barrier is None:
            return self._clocks.place("thread", self._thread + copy.thread), copy.group
        found = self._cluster.object_at(copy.barrier, self._rank)
        place = cluster_address(*divided(copy.barrier, self._rank))
        actor, time = self._clocks.place("mbarrier", place), 1
        if found is not None:
            warp = self._warp_of(copy.thread)
            found.carrier = self._who(copy.action.number, copy.thread)
            time = found.issue(copy, self._clocks.caused(warp), warp, actor)
        return actor, time

    def _check_bounds(self, copy: Copy) -> None:
        """A copy must stay within the variable in which it begins, if that has a size."""
        form = copy.action.form
        nbytes = copy.nbytes if copy.box is None else footprint(copy.box)
        for space, place in ((form.modifiers.get("F", ""), copy.start), (form["D"], copy.to)):
            if space != "shared":
                continue
            address = divided(place, self._rank)[1]
            for variable in self._names.flow.kernel.shared.values():
                offset = address - variable.offset
                if 0 <= offset < variable.size < offset + nbytes:
                    array, _ = self._names.shared(address)
                    self._found.past_end(self._block, copy, array, variable.size, offset)

    def _check_barrier(self, copy: Copy, known: Clock) -> None:
        assert copy.barrier is not None
        found = self._cluster.object_at(copy.barrier, self._rank)
        number = copy.action.number
        if found is None or number in found.reported:
            return
        self.used(number, copy.thread, copy.barrier)
        if copy.action.operation == "bulk_store":
            return
        if number not in found.reported and known[INITIALIZED, found.warp] < found.time:
            found.reported.add(number)
            self._found.unfenced_barrier(self._block, copy, found.who)

    def _check_visible(
        self,
        copy: Copy,
        where: Numbers,
        written: tuple[NDArray[np.int16], Clock, Numbers],
        known: Clock,
        *,
        writes: bool,
    ) -> None:
        """Generic writes (`written`, see `Granules.written`) must be visible to the asynchronous
        proxy."""
        writer, times, who = written
        rank = divided(copy.to if writes else copy.start, self._rank)[0]
        late = self._cluster.scope.hidden(rank, known, writer, times)
        if late.any():
            index = int(late.argmax())
            address = self._address(copy, int(where[index]), writes=writes)
            self._found.no_proxy_fence(self._block, copy, address, int(who[index]), writes=writes)

    def _report_copy(
        self, copy: Copy, met: Conflict | None, where: Numbers, *, writes: bool
    ) -> None:
        if met is not None:
            address = self._address(copy, int(where[met.index]), writes=writes)
            self._found.copy_conflict(self._block, copy, address, met, self._clocks, writes=writes)

    def _address(self, copy: Copy, granule: int, *, writes: bool) -> int:
        place = copy.to if writes else copy.start
        rank, start = divided(place, self._rank)
        address = max(granule << self._shadow.shift, start)
        return address if place == start else cluster_address(rank, address)

    def delivered(self, copy: Copy) -> None:
        """The bytes of a bulk copy are counted at its mbarrier."""
        assert copy.barrier is not None
        found = self._cluster.object_at(copy.barrier, self._rank)
        _, time = self._cluster.copies.pop(copy)
        if found is not None:
            found.deliver(copy, time)

    def landed(self, copy: Copy) -> None:
        """A bulk copy has written its destination."""
        if copy.action.form["D"] == "shared":
            home, address = self._home(copy.to)
            span = self._span(copy, address)
            if span:
                home._shadow.define_range(span)
            else:
                home._shadow.define_shared(self._places(copy, address))

    def groups_waited(self, thread: int, copies: Iterable[Copy], *, read: bool) -> None:
        """A thread has waited for bulk copies that it issued, or for their reads only."""
        self.look()
        row = self._clocks.of[self._warp_of(thread), ORDERED]
        for copy in copies:
            actor, time = self._cluster.copies.get(copy, (0, 0))
            row[actor] = max(row[actor], time)
            if not read and copy.action.form["D"] == "global":
                actor = self._writes_of(copy)
                row[actor] = max(row[actor], copy.group)
                self._global_copies.waited(copy, int(self._shadow.now[0]))

    def _writes_of(self, copy: Copy) -> int:
        """Who writes global memory for the copies of a thread: later than they read."""
        return self._clocks.place("writes", self._thread + copy.thread)

    def _access_global(self, copy: Copy, warp: int, by: tuple[int, int]) -> None:
        """A copy begins to read or to write global memory; `by` reads for it."""
        form = copy.action.form
        if "global" in (form["D"], form.modifiers.get("F")) and not (copy.box and copy.box.empty):
            address = copy.to if form["D"] == "global" else copy.start
            self._launch_waits.issued(copy.action.number, copy.thread, address)
        if copy.action.form["D"] == "global":
            by = self._writes_of(copy), copy.group
        region = self._global_copies.issued(copy, warp, by, self._clocks)
        if region is not None:
            self._want_loads(region)

    def ended(self, copies: Iterable[Copy]) -> None:
        """All warps have ended; these copies to global memory were not waited for."""
        for copy in copies:
            self._found.never_waited(self._block, copy)

    def _places(self, copy: Copy, address: int) -> Numbers:
        """The granules of shared memory that a copy reads or writes, from an address on."""
        if copy.box is not None:
            return box_granules(copy.box, address, self._shadow.shift)
        span = self._span(copy, address)
        assert span is not None
        return np.arange(span.start, span.stop)

    def _span(self, copy: Copy, address: int) -> range | None:
        """The same granules if they follow each other, else None."""
        shift = self._shadow.shift
        if copy.box is not None:
            return box_span(copy.box, address, shift)
        return range(address >> shift, (address + copy.nbytes + (1 << shift) - 1) >> shift)
