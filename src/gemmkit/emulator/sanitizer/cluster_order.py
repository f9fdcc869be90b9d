"""`ClusterOrder`: what the blocks of a cluster share when their accesses are ordered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from gemmkit.emulator.isa.cluster import cluster_address, divided
from gemmkit.emulator.machine.asynchronous import Copy
from gemmkit.emulator.sanitizer.clocks import CAUSED, ORDERED, Clock, Clocks

if TYPE_CHECKING:
    from gemmkit.emulator.sanitizer.asynchronous_findings import AsynchronousFindings


# The order of one block's accesses.
Member = TypeVar("Member")


@dataclass(slots=True)
class Object:
    """An mbarrier: who initialized it, and what is released to the threads that wait for it."""

    who: int
    warp: int
    time: int
    arriving: Clock
    complete: Clock
    # Phases that are complete, and those in which copies were issued that have not arrived.
    phases: int = 0
    missing: list[int] = field(default_factory=list)
    # Whether a phase completed before the bytes of its copies had arrived.
    completed_early: bool = False
    # The threads that observed the last complete phase, with the time, by their warps.
    observed: dict[int, tuple[int, int]] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    # What was earlier than the issue of copies in flight.
    issued: dict[Copy, Clock] = field(default_factory=dict)

    def count_bytes(self, copy: Copy) -> None:
        """The bytes of a copy arrive."""
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
        # The mbarriers of each block, by their addresses there.
        self.objects: list[dict[int, Object]] = [{} for _ in range(blocks)]
        self.copies: dict[Copy, tuple[int, int]] = {}
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

    def completed_early(self, actor: int) -> bool:
        """Whether the mbarrier of an actor's bulk copies completed a phase before their bytes had
        arrived."""
        address = self.clocks.mbarrier_of(actor)
        found = self.object_at(address, 0) if address is not None else None
        return found is not None and found.completed_early

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
        known = self.clocks.has_started(warp, self.warps_of(rank))
        if not known and (rank, warp) not in self._unstarted:
            self._unstarted.add((rank, warp))
            found.may_not_run(who, place)

    def end(self, found: AsynchronousFindings) -> None:
        """A block has ended. Once all have, each visit must precede an event that a warp of the
        visited block waited for."""
        self._ended += 1
        if self._ended < self._blocks:
            return
        for (rank, actor), visit in self._visits.items():
            warps = self.warps_of(rank)
            known = self.clocks.of[warps.start : warps.stop, ORDERED, actor]
            if int(np.max(known)) < visit.time:
                found.may_have_exited(visit.who, visit.address)
