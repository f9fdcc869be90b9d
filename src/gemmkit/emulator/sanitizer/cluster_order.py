"""`ClusterOrder`: what the blocks of a cluster share when their accesses are ordered."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import CAUSED, MBARRIER, OBSERVATION, ORDERED
from gemmkit.emulator.isa.cluster import cluster_address, divided
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.sanitizer.clocks import Clock, Clocks
from gemmkit.emulator.sanitizer.cluster_scope import ClusterScope
from gemmkit.emulator.sanitizer.granules import thread_of

if TYPE_CHECKING:
    from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings


# Only the last two phases of an mbarrier are asked for.
_CARRIED = 4
# The order of one block's accesses.
Member = TypeVar("Member")


class Object:
    """An mbarrier: who initialized it, and what is released to the threads that wait for it.

    Native code reads and changes it as `state` says, see `shadow_layout.MBARRIER`.
    """

    def __init__(self, who: int, warp: int, clocks: Clocks) -> None:
        """A thread (`who`) of a warp initializes it."""
        self.who, self.warp, self.time = who, warp, clocks.now(warp)
        self._clocks = clocks
        self.arriving, self.complete = clocks.empty(), clocks.empty()
        # What is released by arrivals from other blocks, see `ClusterScope`.
        self.wide = np.zeros(clocks.warps, np.int32)
        # The instructions at which its use was reported.
        self.reported: set[int] = set()
        # Those at which an arrival or a wait was reported that does not know of the phase before.
        self.unaware: set[int] = set()
        # What was earlier than the issue of copies in flight.
        self.issued: dict[Copy, Clock] = {}
        # Phases in which copies were issued that have not arrived.
        self._missing: list[int] = []
        # The parties that have arrived since the last complete phase, as far as Python was told;
        # from where on the log may have others.
        self.arrived: list[int] = []
        self.logged_from = 0
        # Those of complete phases, and the end of the log when it was initialized.
        self.earlier: dict[int, None] = {}
        # How often each warp has observed a complete phase, as far as Python was told.
        self.seen: dict[int, int] = {}
        self.born = 0
        self._observations = np.zeros((clocks.warps, len(OBSERVATION)), np.int64)
        # What caused all complete phases but the last; which of the latest phases counted bytes.
        self._before = np.zeros(clocks.actors, np.int32)
        self._carried: deque[int] = deque(maxlen=_CARRIED)
        # The party that has issued a copy to it last.
        self.carrier: int | None = None
        self.state = np.zeros(len(MBARRIER), np.int64)
        for name, value in {
            "warp": warp,
            "time": self.time,
            "arriving": self.arriving.ctypes.data,
            "complete": self.complete.ctypes.data,
            "actor": -1,
            "observations": self._observations.ctypes.data,
            "before": self._before.ctypes.data,
        }.items():
            self._set(name, value)

    def _set(self, name: str, value: int) -> None:
        self.state[MBARRIER[name] // 8] = value

    def _get(self, name: str) -> int:
        return int(self.state[MBARRIER[name] // 8])

    @property
    def phases(self) -> int:
        """How many phases are complete."""
        return self._get("phases")

    def complete_phase(self, actor: int) -> None:
        """A phase is complete; `actor` stands for the copies that the mbarrier counts."""
        phases = self.phases + 1
        self._set("phases", phases)
        self._set("actor", actor)
        if any(each <= phases for each in self._missing):
            self._clocks.completed_early.add(actor)
        self.arriving[ORDERED, actor] = min([phases + 1, *self._missing]) - 1
        self.arriving[CAUSED, actor] = phases
        self._before[...] = self.complete[CAUSED]
        np.maximum(self.complete, self.arriving, out=self.complete)
        self.arriving[...] = 0
        self._set("observed", 0)

    def unknown_to(self, warp: int, phases: int) -> list[int] | None:
        """The other warps that have arrived in the first `phases` phases (all complete ones, or all
        but the last) unknown to a warp; None if it knows that these phases are complete.

        It knows by a wait for the last of them, its own or one that something orders before; or
        because all arrivals are ordered before, unless the mbarrier counted bytes as well.
        """
        actor = self._get("actor")
        if phases <= 0 or actor < 0 or self._clocks.shares(actor):
            return None
        own, warps = self._clocks.of[warp, CAUSED], self._clocks.warps
        if own[actor] >= phases:
            return None
        caused = self.complete[CAUSED] if phases == self.phases else self._before
        late: list[int] = np.flatnonzero(own[:warps] < caused[:warps]).tolist()
        others = [each for each in late if each != warp]
        return others if others or phases - 1 in self._carried else None

    def _carry(self) -> None:
        """The current phase counts bytes."""
        if self.phases not in self._carried:
            self._carried.append(self.phases)

    def observe(self, warp: int, time: int, who: int) -> None:
        """A thread of a warp has observed that the last phase is complete."""
        seen, count = self._observations, self._get("observed")
        before = np.flatnonzero(seen[:count, 0] == warp)
        place = int(before[0]) if len(before) else count
        seen[place] = warp, time, who
        self._set("observed", max(count, place + 1))

    def observed(self) -> list[list[int]]:
        """Who has observed that the last phase is complete, one for each warp: the warp, its time,
        and the party."""
        found: list[list[int]] = self._observations[: self._get("observed")].tolist()
        return found

    def issue(self, copy: Copy, before: Clock, warp: int, actor: int) -> int:
        """A copy is issued to it by a warp, after `before`; returns the phase to which it belongs.

        `actor` stands for the copies that the mbarrier counts.
        """
        time = self.phases + 1
        self._carry()
        self._count_on(warp, actor)
        self._missing.append(time)
        self._set("missing", len(self._missing))
        self.issued[copy] = before
        return time

    def _count_on(self, warp: int, actor: int) -> None:
        # The warp does not know that the last phase is complete, and has announced nothing since:
        # it counts on that phase.
        unaware = self._clocks.of[warp, ORDERED, actor] < self.phases
        if unaware and not self.arriving[CAUSED, warp]:
            self._clocks.completed_early.add(actor)

    def receive(self, before: Clock, warp: int, actor: int) -> None:
        """Bytes that a warp sends to it, after `before`, arrive at once."""
        self._carry()
        self._count_on(warp, actor)
        np.maximum(self.arriving[CAUSED], before, out=self.arriving[CAUSED])

    def deliver(self, copy: Copy, time: int) -> None:
        """The bytes of a copy that belongs to a phase arrive."""
        self._carry()
        self._count_bytes(copy)
        if time in self._missing:
            self._missing.remove(time)
            self._set("missing", len(self._missing))

    def _count_bytes(self, copy: Copy) -> None:
        before = self.issued.pop(copy, None)
        if before is not None:
            np.maximum(self.arriving[CAUSED], before, out=self.arriving[CAUSED])


@dataclass(frozen=True, slots=True)
class _Visit:
    """An access to another block's shared memory: when, by whom, and where."""

    time: int
    who: int
    address: int


class ClusterOrder(Generic[Member]):
    """The clocks and mbarriers of a cluster's blocks, `warps` each; `orders` are in the order of
    the ranks, as far as the blocks have begun. A block alone is a cluster of one.
    """

    def __init__(self, warps: int, blocks: int) -> None:
        self.clocks = Clocks(warps * blocks, blocks)
        self.scope = ClusterScope(self.clocks, blocks)
        # The mbarriers of each block, by their addresses there.
        self.objects: list[dict[int, Object]] = [{} for _ in range(blocks)]
        self.copies: dict[Copy, tuple[int, int]] = {}
        # Where mbarriers were that copies have overwritten: the array, and the byte in it.
        self.overwritten: set[tuple[str, int]] = set()
        self.orders: list[Member] = []
        self._warps, self._blocks = warps, blocks
        self._arriving, self._met = self.clocks.empty(), self.clocks.empty()
        # The last visit by block and actor.
        self._visits: dict[tuple[int, int], _Visit] = {}
        self._unstarted: set[tuple[int, int]] = set()
        self._ended = 0

    def warps_of(self, rank: int) -> range:
        """The warps of one block."""
        return range(rank * self._warps, (rank + 1) * self._warps)

    def object_at(self, address: int, own: int) -> Object | None:
        """The mbarrier at an address as the block of rank `own` uses it."""
        rank, within = divided(address, own)
        return self.objects[rank].get(within)

    def awaited_by(self, warp: int) -> int | None:
        """The mbarrier whose last phase a warp has observed last, as far as that is known."""
        found = self.last_wait(warp)
        return found[0] if found is not None else None

    def last_wait(self, warp: int) -> tuple[int, int] | None:
        """The same with the party that has observed it."""
        found = [
            (time, cluster_address(rank, address), who)
            for rank, objects in enumerate(self.objects)
            for address, each in objects.items()
            for observer, time, who in each.observed()
            if observer == warp
        ]
        return max(found)[1:] if found else None

    # The cluster's barrier

    def arrive(self, warp: int, *, relaxed: bool) -> None:
        """A warp arrives at the cluster's barrier."""
        release = self.clocks.release_relaxed if relaxed else self.clocks.release
        release(warp, self._arriving)

    def meet(self) -> None:
        """All threads have arrived."""
        self._met, self._arriving = self._arriving, self.clocks.empty()

    def wait(self, warp: int) -> None:
        """A warp has waited."""
        self.clocks.acquire(warp, self._met)
        times = self._met[ORDERED, : self.clocks.warps]
        self.scope.acquire(self.scope.rank_of(warp), times)

    # Blocks that begin and end

    def visit(
        self, found: AsynchronousFindings, rank: int, visitor: tuple[int, int, int],
        who: int, address: int,
    ) -> None:  # fmt: skip
        """An access to the shared memory of the block of a rank, by a warp for an actor at a time
        (`visitor`)."""
        warp, actor, time = visitor
        if warp in self.warps_of(rank) or rank >= self._blocks:
            return
        place = cluster_address(rank, address)
        self._visits[rank, actor] = _Visit(time, who, place)
        if not self.may_visit(rank, warp):
            self._unstarted.add((rank, warp))
            found.may_not_run(who, place)

    def may_visit(self, rank: int, warp: int) -> bool:
        """Whether a warp knows that the block of a rank runs, or it was reported that it does
        not."""
        known = self.clocks.has_started(warp, self.warps_of(rank))
        return known or (rank, warp) in self._unstarted

    def copies_out(self, rank: int, by: tuple[int, int], who: int, address: int) -> None:
        """A copy by an actor at a time (`by`) to another block reads the memory of that of a
        rank, at its own address."""
        actor, time = by
        self._visits[rank, actor] = _Visit(time, who, address)

    def end(self, found: AsynchronousFindings) -> None:
        """A block has ended. Once all have, each visit must precede an event that a warp of the
        visited block waited for, and so must each copy out of a block's memory."""
        self._ended += 1
        if self._ended < self._blocks:
            return
        for (rank, actor), visit in self._visits.items():
            warps = self.warps_of(rank)
            known = self.clocks.of[warps.start : warps.stop, ORDERED, actor]
            if int(np.max(known)) >= visit.time:
                continue
            if thread_of(visit.who) // LANES in warps:
                found.may_exit_too_early(visit.who, visit.address)
            else:
                found.may_have_exited(visit.who, visit.address)
