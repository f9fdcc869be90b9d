"""`BarrierOrder`: what mbarriers, and the barrier of a cluster, order in a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVED,
    CAUSED,
    INITIALIZED,
    LOG_ENTRIES,
    LOG_ENTRY,
    LOGGED_TIME,
    OBSERVED,
    ORDERED,
    TAG_KIND,
    TAG_WARP,
)
from gemmkit.emulator.isa.cluster import cluster_address, divided
from gemmkit.emulator.isa.mbarriers import EXPECTED, MOST
from gemmkit.emulator.sanitizer.access_order import AccessOrder
from gemmkit.emulator.sanitizer.clocks import Clock
from gemmkit.emulator.sanitizer.cluster_order import Object
from gemmkit.emulator.sanitizer.granules import thread_of
from gemmkit.emulator.sanitizer.mbarrier_findings import Before, overrun_cause
from gemmkit.emulator.sanitizer.parties import Parties


@dataclass(frozen=True, slots=True)
class Past:
    """How many phases of an mbarrier are complete, and the parties that have arrived at it: all, as
    far as they are known, and those of the `current` phase.

    `observed` is how often each warp of the block has observed a complete phase, if that is known;
    `surplus` has the arrivals that a phase expects, and the warps that arrive, if these are more.
    """

    phases: int
    arrivals: tuple[int, ...]
    current: tuple[int, ...]
    observed: Mapping[int, int]
    surplus: tuple[int, list[int]] | None


class BarrierOrder(AccessOrder):
    """Adds mbarriers, and the barrier of the cluster, to the order of accesses."""

    def _begin(self) -> None:
        super()._begin()
        self._found.parties.cause_of_wait = self._cause_of_wait

    def initialized(self, number: int, thread: int, address: int) -> None:
        """A thread initializes an mbarrier."""
        self.look()
        objects = self._cluster.objects[self._rank]
        if address in objects:
            self._found.initialized_again(self._block, number, thread, address)
        who = self._who(number, thread)
        made = objects[address] = Object(who, self._warp_of(thread), self._clocks)
        made.born = self._log_end
        self._accesses.initialized(address, made.state)
        self._mark(address, used=True)

    def invalidated(self, number: int, thread: int, address: int) -> None:
        """A thread invalidates an mbarrier."""
        self.used(number, thread, address)
        self._cluster.objects[self._rank].pop(address, None)
        self._accesses.initialized(address, None)
        self._mark(address, used=False)

    def used(self, number: int, thread: int, address: int) -> None:
        """A thread uses an mbarrier."""
        self.look()
        self._used(number, thread, address)

    def _used(self, number: int, thread: int, address: int) -> None:
        found = self._cluster.object_at(address, self._rank)
        if found is not None and not self._may_use(number, self._warp_of(thread), found):
            found.reported.add(number)
            self._found.not_visible(self._block, number, thread, address, found.who)

    def _may_use(self, number: int, warp: int, found: Object) -> bool:
        """Whether a warp sees that an mbarrier is initialized, or it was reported that this
        instruction does not."""
        if warp == found.warp or number in found.reported:
            return True
        known = self._clocks.of[warp, :, found.warp]
        return bool(max(known[ORDERED], known[INITIALIZED]) >= found.time)

    def arrived(self, number: int, thread: int, address: int, ended: int | None = None) -> None:
        """A thread arrives at an mbarrier, the last one of its warp that does; before it, the
        thread `ended` has completed a phase by the same instruction."""
        self.look()
        self._arrived(number, thread, address, ended=ended)

    def _arrived(
        self,
        number: int,
        thread: int,
        address: int,
        at: int | None = None,
        ended: int | None = None,
    ) -> None:
        found = self._cluster.object_at(address, self._rank)
        if found is None:
            return
        warp, clocks = self._warp_of(thread), self._clocks
        if number not in found.unaware:
            self._check_early(found, number, thread, address, ended)
        self._visit(address, warp, (warp, clocks.now(warp)), self._who(number, thread))
        if at is None:
            found.arrived.append(self._who(number, thread))
        action = self._names.actions[number]
        if divided(address, self._rank)[0] != self._rank:
            of_cluster = ".release.cluster" in action.form.opcode
            fenced = None if of_cluster else clocks.fenced(warp)
            self._reach(found, warp, fenced)
        if ".relaxed" in action.form.opcode:
            clocks.release_relaxed(warp, found.arriving, at)
        else:
            clocks.release(warp, found.arriving, at)
        if action.operation == "mbarrier_arrive_copies":
            clocks.copies_arrive(warp, found.arriving)

    def _reach(self, found: Object, warp: int, fenced: Clock | None) -> None:
        """A warp arrives at the mbarrier of another block."""
        scope, own = self._cluster.scope, self._clocks.of[warp, ORDERED]
        times = scope.released(warp, fenced)
        if fenced is None:
            # All that the warp has done so far.
            times[warp] = max(int(own[warp]), int(self._shadow.now[0]))
        np.maximum(found.wide, times, out=found.wide)

    def completed(self, address: int) -> None:
        """A phase is complete."""
        found = self._cluster.object_at(address, self._rank)
        if found is not None:
            self._check_overrun(found, address)
            found.earlier.update(dict.fromkeys(found.arrived))
            found.arrived.clear()
            found.logged_from = self._log_end
            actor = self._clocks.place("mbarrier", cluster_address(self._rank, address))
            found.complete_phase(actor)

    def _check_early(
        self, found: Object, number: int, thread: int, address: int, ended: int | None
    ) -> None:
        """A thread that arrives at an mbarrier must know that the phase before is complete."""
        if ended is not None:
            # Its lanes are apart, whatever their warp knows.
            before = Before(self._who(number, ended), same_warp=True)
            self._arrives_early(found, number, thread, address, before)
            return
        late = found.unknown_to(self._warp_of(thread), found.phases)
        if late is not None:
            before = self._before(found, address, late)
            self._arrives_early(found, number, thread, address, before)

    def _arrives_early(
        self, found: Object, number: int, thread: int, address: int, before: Before
    ) -> None:
        """A thread arrives at an mbarrier, and may count in the phase before."""
        action = self._names.actions[number]
        if action.operation == "mbarrier_arrive_copies" and action.form["K"] != "noinc":
            # It adds the arrival that it performs.
            return
        found.unaware.add(number)
        rank, within = divided(address, self._rank)
        home, who = self._cluster.orders[rank], self._who(number, thread)
        if isinstance(home, BarrierOrder):
            before = replace(
                before, expected=home._expected(within), surplus=home._surplus(found, within, [who])
            )
        self._found.early_arrival(self._block, number, thread, address, before)

    def _before(self, found: Object, address: int, warps: Sequence[int]) -> Before:
        """What is known of a phase that is complete: an arrival by one of these warps or, if there
        are none, its copies."""
        if not warps:
            return Before(found.carrier, copies=True)
        rank, within = divided(address, self._rank)
        parties = [*found.earlier, *found.arrived]
        if rank == self._rank:
            parties += [who for who, _ in self._logged_at(within, found.born, ARRIVED)]
        arrived = [who for who in parties if thread_of(who) // LANES in warps]
        return Before(arrived[-1] if arrived else None)

    def _check_overrun(self, found: Object, address: int) -> None:
        """Whoever waits for a phase must have observed it before the next one completes."""
        for warp, time, who in found.observed():
            if found.arriving[CAUSED, warp] < time:
                arrived = self._arrivals(found, address)
                surplus = self._surplus(found, address, arrived)
                self._found.overrun_phase(self._block, who, address, arrived, surplus)

    def _surplus(
        self, found: Object, address: int, arrived: Sequence[int]
    ) -> tuple[int, list[int]] | None:
        """How many arrivals each phase of an mbarrier expects, and the warps that arrive at it, if
        these are more: then its phases end before all have arrived."""
        expected = self._expected(address)
        logged = (who for who, _ in self._logged_at(address, found.born, ARRIVED))
        known = (*found.earlier, *found.arrived, *arrived, *logged)
        warps = {thread_of(who) // LANES for who in known}
        return (expected, sorted(warps)) if expected and len(warps) > expected else None

    def _expected(self, address: int) -> int:
        """How many arrivals each phase of an mbarrier of this block expects; 0 if not known."""
        phases = self._worker.phases
        return phases.read(address) >> EXPECTED & MOST if phases is not None else 0

    def _cause_of_wait(self, warp: int) -> str:
        """The cause of an overrun phase, if a warp's last wait was for one."""
        waited = self._cluster.last_wait(warp)
        if waited is None:
            # A later phase of that mbarrier is complete.
            home = self._cluster.orders[warp // self._worker.warps]
            waited = home._last_logged_wait(warp) if isinstance(home, BarrierOrder) else None
        if waited is None:
            return ""
        array, _, _ = self._found.parties.place(waited[0])
        return overrun_cause(array, self._found.parties.site(waited[1]))

    def _last_logged_wait(self, warp: int) -> tuple[int, int] | None:
        """The mbarrier whose phase a warp of this block has observed last, and the party that did,
        as the log tells."""
        end = self._log_end
        entries = self._shadow.log[np.arange(max(0, end - LOG_ENTRIES), end) % LOG_ENTRIES]
        tags = entries[:, LOG_ENTRY["tag"] // 8]
        local = warp - self._first
        mine = (tags >> TAG_KIND == OBSERVED) & (tags >> TAG_WARP & 255 == local)
        places = np.flatnonzero(mine)
        if not len(places):
            return None
        both = int(entries[places[-1], LOG_ENTRY["pattern"] // 8])
        address = int(entries[places[-1], LOG_ENTRY["base"] // 8]) & (1 << LOGGED_TIME) - 1
        thread = local * LANES + (both >> 32)
        who = self._who(both & (1 << 32) - 1, thread)
        return cluster_address(self._rank, address), who

    @property
    def _log_end(self) -> int:
        """The end of what is known of the log so far."""
        return self._logged if self._replayed is None else self._replayed + 1

    def _arrivals(self, found: Object, address: int) -> list[int]:
        """The parties that have arrived at an mbarrier since its last complete phase."""
        logged = self._logged_at(address, found.logged_from, ARRIVED)
        # The last one may complete this phase, and an earlier one has completed the last.
        done = [index for index, (_, completes) in enumerate(logged[:-1]) if completes]
        return [*found.arrived, *(who for who, _ in logged[done[-1] + 1 if done else 0 :])]

    def _logged_at(self, address: int, first: int, kind: int) -> list[tuple[int, bool]]:
        """The parties that arrived at an mbarrier, or observed a complete phase, as the log tells
        from so far on, as far as it reaches back, and whether that completed a phase."""
        end = self._log_end
        first = max(first, end - LOG_ENTRIES)
        entries = self._shadow.log[np.arange(first, end) % LOG_ENTRIES]
        tags, bases = entries[:, LOG_ENTRY["tag"] // 8], entries[:, LOG_ENTRY["base"] // 8]
        mine = (tags >> TAG_KIND == kind) & (bases & (1 << LOGGED_TIME) - 1 == address)
        parties = []
        for place in np.flatnonzero(mine).tolist():
            both, tag = int(entries[place, LOG_ENTRY["pattern"] // 8]), int(tags[place])
            thread = (tag >> TAG_WARP & 255) * LANES + (both >> 32)
            parties.append((self._who(both & (1 << 32) - 1, thread), bool(tag & 1)))
        return parties

    @property
    def parties(self) -> Parties:
        """How threads and places of this block are named."""
        return self._found.parties

    def past(self, address: int) -> Past | None:
        """What is known of an mbarrier of this block; None if it was not initialized."""
        self.look()
        found = self._cluster.object_at(address, self._rank)
        if found is None:
            return None
        logged = self._logged_at(address, found.born, ARRIVED)
        observed = dict(found.seen)
        for who, _ in self._logged_at(address, found.born, OBSERVED):
            warp = thread_of(who) // LANES - self._first
            observed[warp] = observed.get(warp, 0) + 1
        if self._log_end - found.born > LOG_ENTRIES:
            observed.clear()
        done = [index for index, (_, completes) in enumerate(logged) if completes]
        current = [who for who, _ in logged[done[-1] + 1 if done else 0 :]]
        every = dict.fromkeys([*found.earlier, *found.arrived, *(who for who, _ in logged)])
        surplus = self._surplus(found, address, ())
        return Past(found.phases, tuple(every), (*found.arrived, *current), observed, surplus)

    def waited(self, number: int, thread: int, address: int, lanes: int) -> None:
        """Lanes of a warp, of which a thread is one, have observed the completion of a phase."""
        self.look()
        self._shadow.in_step(thread // LANES, waits=True)
        found = self._cluster.object_at(address, self._rank)
        if found is not None:
            warp = thread // LANES
            found.seen[warp] = found.seen.get(warp, 0) + 1
        known: Clock = self._clocks.of[self._warp_of(thread), ORDERED].copy()
        self._observed(number, thread, address)
        self._waited_alone(thread // LANES, lanes, known)

    def _waited_alone(self, warp: int, lanes: int, known: Clock) -> None:
        """Lanes of a warp of this block have waited, before which it had `known`."""

    def _observed(self, number: int, thread: int, address: int) -> None:
        warp, found = self._warp_of(thread), self._cluster.object_at(address, self._rank)
        if found is None:
            return
        form = self._names.actions[number].form
        if form["P"] == "parity" and number not in found.unaware:
            self._check_parity(found, number, thread, address)
        of_cluster = ".cluster" in form.opcode
        if ".relaxed" in form.opcode:
            self._clocks.acquire_relaxed(warp, found.complete)
            self._clocks.acquire_at_fence(warp, found.complete)
            if of_cluster:
                self._cluster.scope.acquire_at_fence(warp, found.wide)
            return
        if of_cluster:
            self._cluster.scope.acquire(self._rank, found.wide)
        self._clocks.acquire(warp, found.complete)
        found.observe(warp, self._clocks.now(warp), self._who(number, thread))

    def _check_parity(self, found: Object, number: int, thread: int, address: int) -> None:
        """A thread that waits for a parity must know that the phase before is complete."""
        late = found.unknown_to(self._warp_of(thread), found.phases - 1)
        if late is not None:
            found.unaware.add(number)
            before, parity = self._before(found, address, late), (found.phases - 1) % 2
            self._found.ambiguous_wait(self._block, number, thread, (address, parity), before)

    def _replay(self, entry: Sequence[int]) -> None:
        """An mbarrier instruction in the log that is not sound, or not simple."""
        both, base, _, tag = entry
        address, at = base & (1 << LOGGED_TIME) - 1, base >> LOGGED_TIME
        number, kind = both & (1 << 32) - 1, tag >> TAG_KIND
        thread = (tag >> TAG_WARP & 255) * LANES + (both >> 32)
        self._used(number, thread, address)
        if kind == ARRIVED:
            self._arrived(number, thread, address, at)
        elif kind == OBSERVED:
            self._observed(number, thread, address)
        if tag & 1:
            self.completed(address)

    # The barrier of the cluster

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
