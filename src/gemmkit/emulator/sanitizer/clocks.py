"""Vector clocks: which accesses to shared memory are ordered before which.

An actor is a warp, the cp.async copies of a warp, the bulk copies that an mbarrier counts, or those
of a thread's bulk groups. Each access has its actor's time: that of a warp is on its block's clock,
which advances when a warp synchronizes (`Clocks.begin`), that of copies is the number of their
group or of the mbarrier's phase. A clock holds, for each actor, the latest time that is ordered
before its owner, in six rows: ordered at all, ordered and visible to the asynchronous proxy
through `fence.proxy.async`, the same for the initialization of mbarriers, for which
`fence.mbarrier_init` is enough, merely earlier in time, as the issue of a copy is before its
completion, visible for accesses to global memory, and visible for those to the shared memory of
other blocks too. Clocks are joined at barriers, mbarriers and waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVES_FOR_ALL,
    CAUSED,
    CLOCK_ROWS,
    CLUSTER_PROXY_FENCE,
    GLOBAL_PROXY_FENCE,
    INIT_FENCE,
    INITIALIZED,
    ORDERED,
    PROXY_FENCE,
    SHARED_PROXY_FENCE,
    VISIBLE,
    VISIBLE_GLOBAL,
    VISIBLE_IN_CLUSTER,
    WAITS_FOR_ALL,
)

Clock = NDArray[np.int32]

# The mbarriers, and the threads with bulk groups, that are told apart per block; those beyond share
# a place.
PLACES = 64
# The rows that each kind of fence brings up to date.
FENCED_ROWS = {
    PROXY_FENCE: (VISIBLE, INITIALIZED, VISIBLE_GLOBAL, VISIBLE_IN_CLUSTER),
    CLUSTER_PROXY_FENCE: (VISIBLE, INITIALIZED, VISIBLE_IN_CLUSTER),
    SHARED_PROXY_FENCE: (VISIBLE, INITIALIZED),
    GLOBAL_PROXY_FENCE: (VISIBLE_GLOBAL,),
    INIT_FENCE: (INITIALIZED,),
}
# Native code joins clocks so many actors at a time.
_STRIP = 8


class Refill(NamedTuple):
    """A copy that overwrites those of an earlier phase of its mbarrier, which nobody has read: that
    phase, and the mbarrier whose phase was awaited last before, if any."""

    overwritten: int
    released: int | None


class Clocks:
    """The clocks of the warps of one block, or of the blocks of one cluster."""

    def __init__(self, warps: int, blocks: int = 1) -> None:
        self.warps, self.places = warps, PLACES * blocks
        self.actors = -(-(2 * warps + self.places) // _STRIP) * _STRIP
        self.of = np.zeros((warps, CLOCK_ROWS, self.actors), np.int32)
        self._block_warps = warps // blocks
        self._now = [np.ones(1, np.int64) for _ in range(blocks)]
        own = np.arange(warps)
        self.of[own, ORDERED, own] = 1
        # What each warp had ordered at its last fence.
        self._fenced = np.zeros(self.of.shape, np.int32)
        # What each warp acquires at its next fence.
        self._observed = np.zeros(self.of.shape, np.int32)
        self._places: dict[tuple[str, int], int] = {}
        # Actors whose mbarrier completed a phase before the bytes of its copies had arrived.
        self.completed_early: set[int] = set()
        # Copies, by actor and party, that overwrite what nobody has read since an earlier one of
        # the same mbarrier.
        self.refills: dict[tuple[int, int], Refill] = {}
        # When copies of bulk groups were issued, by actor and party: the warp, and its time.
        self.issues: dict[tuple[int, int], tuple[int, int]] = {}
        # The group of cp.async copies that is open in each warp, and the last one of which all have
        # arrived at an mbarrier, or will have once they land.
        self.group = np.ones(warps, np.int32)
        self.arrived_group = np.zeros(warps, np.int32)

    def begin(self, rank: int, now: NDArray[np.int64]) -> None:
        """The block of a rank begins; `now` holds the time of its clock, which goes on here."""
        self._now[rank] = now
        own = np.arange(rank * self._block_warps, (rank + 1) * self._block_warps)
        self.of[own, ORDERED, own] = now[0]

    def now(self, warp: int) -> int:
        """The time of a warp's accesses to shared memory."""
        return int(self.of[warp, ORDERED, warp])

    def _reach(self, warp: int, at: int | None = None) -> None:
        """All that a warp has done so far, or had at an earlier time, is in its own time."""
        if at is None:
            now = self._now[warp // self._block_warps]
            at = int(now[0])
            now[0] += 1
        self.of[warp, ORDERED, warp] = at

    def copies_of(self, warp: int) -> int:
        """The actor that stands for a warp's cp.async copies."""
        return self.warps + self.places + warp

    def generic(self, actors: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Which actors access memory through the generic proxy, as all but bulk copies do."""
        return (actors < self.warps) | (actors >= self.warps + self.places)

    def empty(self) -> Clock:
        """A clock before which nothing is ordered."""
        return np.zeros((CLOCK_ROWS, self.actors), np.int32)

    def release(self, warp: int, into: Clock, at: int | None = None) -> None:
        """What precedes this point in a warp, or an earlier one, is ordered before what acquires
        the clock."""
        self._reach(warp, at)
        self.of[warp, CAUSED, warp] = self.of[warp, ORDERED, warp]
        np.maximum(into, self.of[warp], out=into)
        self.of[warp, ORDERED, warp] += 1

    def caused(self, warp: int, at: int | None = None, *, times: int = 1) -> Clock:
        """What is earlier than this point in a warp, for something that it causes; so many `times`,
        for the last of them."""
        self._now[warp // self._block_warps][0] += times - 1
        self._reach(warp, at)
        self.of[warp, CAUSED, warp] = self.of[warp, ORDERED, warp]
        self.of[warp, ORDERED, warp] += 1
        row: Clock = self.of[warp, CAUSED].copy()
        return row

    def release_relaxed(self, warp: int, into: Clock, at: int | None = None) -> None:
        """A relaxed arrival releases what precedes the warp's last fence, and initializations of
        mbarriers that are fenced."""
        np.maximum(into, self._fenced[warp], out=into)
        np.maximum(into[INITIALIZED], self.of[warp, INITIALIZED], out=into[INITIALIZED])
        np.maximum(into[CAUSED], self.caused(warp, at), out=into[CAUSED])

    def fenced(self, warp: int) -> Clock:
        """What was ordered before a warp's last fence."""
        found: Clock = self._fenced[warp]
        return found

    def order_by_fence(self, warp: int) -> None:
        """What precedes a fence in a warp is released by its later relaxed arrivals, and what its
        earlier relaxed waits have observed is ordered before what follows."""
        self.acquire(warp, self._observed[warp])
        self._reach(warp)
        self._fenced[warp] = self.of[warp]
        self.of[warp, ORDERED, warp] += 1

    def mark(self, warp: int) -> Clock:
        """What is ordered before this point in a warp, as a clock of its own."""
        self._reach(warp)
        found: Clock = self.of[warp].copy()
        self.of[warp, ORDERED, warp] += 1
        return found

    def has_started(self, warp: int, others: range) -> bool:
        """Whether a warp's clock shows that one of the others runs."""
        return bool(self.of[warp, CAUSED, others.start : others.stop].any())

    def acquire(self, warp: int, clock: Clock) -> None:
        """What was released into a clock is ordered before what follows in a warp."""
        np.maximum(self.of[warp], clock, out=self.of[warp])

    def acquire_relaxed(self, warp: int, clock: Clock) -> None:
        """A relaxed wait orders nothing, but what follows has its causes."""
        np.maximum(self.of[warp, CAUSED], clock[CAUSED], out=self.of[warp, CAUSED])

    def acquire_at_fence(self, warp: int, clock: Clock) -> None:
        """What was released into a clock is ordered before what follows a warp's next fence."""
        np.maximum(self._observed[warp], clock, out=self._observed[warp])

    def fence(self, warp: int, rows: Iterable[int]) -> None:
        """What is ordered before this point in a warp becomes visible to the asynchronous proxy, as
        far as these rows say."""
        self._reach(warp)
        for each in rows:
            np.maximum(self.of[warp, each], self.of[warp, ORDERED], out=self.of[warp, each])
        self.of[warp, ORDERED, warp] += 1

    def place(self, kind: str, which: int) -> int:
        """The actor that stands for the bulk copies of an mbarrier or of a thread."""
        found = self._places.setdefault((kind, which), len(self._places))
        return self.warps + min(found, self.places - 1)

    def shares(self, actor: int) -> bool:
        """Whether an actor may stand for several mbarriers and threads."""
        return actor == self.warps + self.places - 1 and len(self._places) > self.places

    def mbarrier_of(self, actor: int) -> int | None:
        """The address in the cluster of the mbarrier that an actor's bulk copies count at."""
        at = actor - self.warps
        if not 0 <= at < min(len(self._places), self.places):
            return None
        kind, address = next(itertools.islice(self._places, at, None))
        return address if kind == "mbarrier" else None

    def issued(self, warp: int, actor: int, who: int) -> None:
        """A party of a warp issues a copy of a bulk group."""
        self.issues[actor, who] = warp, self.now(warp)

    def knows_issue(self, warp: int, actor: int, who: int) -> bool:
        """Whether what a warp does now is later than the last copy that a party has issued; also if
        that is not recorded."""
        issuer, time = self.issues.get((actor, who), (warp, 0))
        return issuer == warp or bool(self.of[warp, (ORDERED, CAUSED), issuer].max() >= time)

    def wait_for_copies(self, warp: int, going: int, oldest: int) -> None:
        """Lanes of a warp wait for their groups of cp.async copies but the latest `going`; `oldest`
        is the group of the oldest copy that is left in flight, maybe of other lanes.

        Where an mbarrier is to wait for them (`ARRIVES_FOR_ALL`), nothing is ordered yet.
        """
        done = min(int(self.group[warp]) - 1 - max(going, WAITS_FOR_ALL), oldest - 1)
        known = self.arrived_group if going == ARRIVES_FOR_ALL else self.of[:, ORDERED]
        place = warp if going == ARRIVES_FOR_ALL else (warp, self.copies_of(warp))
        known[place] = max(int(known[place]), done)
        if going < 0:
            self.group[warp] += 1

    def copies_arrive(self, warp: int, into: Clock) -> None:
        """A warp arrives at an mbarrier for the copies that `ARRIVES_FOR_ALL` was told of."""
        actor = self.copies_of(warp)
        into[ORDERED, actor] = max(into[ORDERED, actor], self.arrived_group[warp])
