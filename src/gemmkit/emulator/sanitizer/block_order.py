"""`BlockOrder`: which accesses of other blocks precede a block's accesses, by fences and atomics.

A block releases its fenced accesses by a strong write, such as an atomic. Another block that reads
it, directly or through further atomics, observes them, and is ordered after them once it executes a
fence. A write that releases needs no fence, and neither does a read that acquires, but they do so
for their own address only. Barriers and mbarriers carry this from warp to warp, in a cluster also
to those of other blocks. Times are those of the clocks of the blocks' shadows; the lanes of a warp
count as one.

For accesses of the asynchronous proxy there must be a `fence.proxy.async` on the way besides:
between an access and the release of it, or after it is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.sanitizer.block_knowledge import (
    AHEAD,
    APART,
    KNOWN,
    UNFENCED,
    UNLEARNED,
    UNRELEASED,
    Knowledge,
    Members,
    Place,
    Reached,
)
from gemmkit.emulator.sanitizer.flag_values import Look, Looks
from gemmkit.emulator.sanitizer.lanes_ahead import LanesAhead
from gemmkit.emulator.sanitizer.releases import (
    ANY_LANE,
    Apart,
    Learned,
    Location,
    Release,
    join,
    looked_through,
    within,
)

# So many releases of one block at an address are kept for their values.
_MOST_APART = 64


class BlockOrder:
    """The order among the blocks of one launch, which run one at a time, or cluster by cluster.

    Args:
        warps: of a block.
        blocks: of a cluster.
        peer: the order as another block knows it; releases are common, and within a cluster what
            its warps know.
        reached: what mbarriers and barriers order; None if there are no mbarriers.
        announces: whether flags that are written without a fence matter, as they may announce data.
    """

    def __init__(
        self,
        warps: int,
        blocks: int = 1,
        peer: BlockOrder | None = None,
        reached: Reached | None = None,
        *,
        announces: bool = False,
    ) -> None:
        self._warps, self._all, self._reached = warps, warps * blocks, reached
        self._announces = announces
        self._locations: defaultdict[int, Location] = defaultdict(Location)
        self._by_cluster: defaultdict[int, list[Release]] = defaultdict(list)
        self._clusters: dict[int, Members] = {}
        # The warps, with their cluster, some lanes of which alone have written a flag.
        self._lanes_apart: set[tuple[int, int]] = set()
        if peer is not None:
            self._locations, self._by_cluster = peer._locations, peer._by_cluster
            self._clusters, self._lanes_apart = peer._clusters, peer._lanes_apart
        # Answers of `before`, `is_announced`, `is_visible` that hold until what is known changes.
        self._answers: dict[tuple[int, int, int, int, int], int] = {}
        self._announced: dict[tuple[int, int, int, int, int], bool] = {}
        self._visible: dict[tuple[int, int, int, int], bool] = {}
        self._block = self._cluster = -1
        self._lanes_ahead = LanesAhead()

    def _enter(self, at: Place) -> None:
        if at.cluster != self._cluster:
            self._clusters.pop(self._cluster, None)
        self._block, self._cluster, self._barrier = at.block, at.cluster, 0
        self._members = self._clusters.setdefault(at.cluster, Members(self._all))
        self._common = self._nothing()
        self._lanes_ahead = LanesAhead()

    def _nothing(self) -> Knowledge:
        return Knowledge([0] * self._all)

    def _forget_answers(self) -> None:
        self._answers.clear()
        self._announced.clear()
        self._visible.clear()

    def _catch_up(self, at: Place) -> list[int]:
        """The running block passed its last barrier at this time; returns for each warp up to when
        its accesses are ordered before what the running one does now."""
        if at.block != self._block:
            self._forget_answers()
            self._enter(at)
        first = at.warp // self._warps * self._warps
        own = slice(first, first + self._warps)
        if at.barrier != self._barrier:
            self._forget_answers()
            self._barrier = at.barrier
            for each in self._members.own[own]:
                self._common.join(each)
        until = [0] * self._all
        until[own] = [at.barrier] * self._warps
        if self._reached is None:
            return until
        times = self._reached.ordered_in_cluster()
        for other, time in enumerate(times):
            if other != at.warp:
                self._take(at.warp, other, time, times[at.warp])
        # An access at this time comes before; nothing was accessed at time 0.
        return [max(barrier, each + (each > 0)) for barrier, each in zip(until, times, strict=True)]

    def _take(self, warp: int, other: int, time: int, now: int) -> None:
        """A warp learns now what another one knew at a time."""
        members = self._members
        history, taken = members.history[other], members.taken[warp, other]
        last = taken
        while last < len(history) and history[last][0] <= time:
            last += 1
        if last > taken:
            self._forget_answers()
            members.own[warp].join(history[last - 1][1])
            members.taken[warp, other] = last
            self._note(warp, now)

    def _note(self, warp: int, now: int) -> None:
        """From a time on a warp knows more."""
        if self._reached is not None:
            self._members.history[warp].append((now, deepcopy(self._members.own[warp])))

    def fence(self, at: Place, now: int) -> None:
        """A warp fences its accesses so far, and those of others that precede."""
        until = self._catch_up(at)
        self._forget_answers()
        own = self._members.own[at.warp]
        until[at.warp] = now + 1
        join(own.known, own.seen)
        join(own.known, self._common.seen)
        join(own.known, self._common.known)
        own.join(Knowledge(until, passed_on=dict(own.known)))
        self._note(at.warp, now)

    def fence_proxy(self, at: Place, now: int) -> None:
        """What a warp knows becomes visible to the asynchronous proxy."""
        self._catch_up(at)
        self._forget_answers()
        own = self._members.own[at.warp]
        join(own.proxied, own.known)
        join(own.proxied, self._common.known)
        self._note(at.warp, now)

    def synchronize(
        self,
        at: Place,
        looks: Looks,
        times: tuple[int, int],
        ordering: Ordering,
        *,
        reads: bool,
        writes: bool,
    ) -> list[int]:
        """Strong accesses by an instruction of a warp, given the time now and that at which it was
        last in step; returns the addresses at which it observes another block."""
        preceding = self._catch_up(at)
        self._forget_answers()
        released = None
        if writes:
            released = self._released_now(at, preceding, times[0], fences=ordering.releases)
        observed = []
        for location, look in looks.items():
            there = self._locations[location]
            if look.initial is not None and not there.releases:
                there.values.wrote(look.initial, 0)
            if reads:
                self._observe(at, location, there, look, acquires=ordering.acquires)
                if any(each != at.block for each in there.blocks):
                    observed.append(location)
            if released is not None:
                apart = Apart(at.warp, look.lanes, times[1]) if look.lanes is not None else None
                self._release(there, at.warp, location, released.copy(apart), look.value)
                if apart is not None:
                    self._lanes_apart.add((at.cluster, at.warp))
            if writes:
                there.values.wrote(look.value, len(there.releases))
        if reads and self._reached is not None:
            self._note(at.warp, self._reached.ordered_in_cluster()[at.warp])
        return observed

    def _observe(
        self, at: Place, location: int, there: Location, look: Look, *, acquires: bool
    ) -> None:
        """A warp looks at an address."""
        own = self._members.own[at.warp]
        before = own.seen.get(location, 0)
        sees = before
        if before < len(there.releases):
            least = max(before, *(each.get(location, 0) for each in self._all_known(own)))
            sees = max(before, look.sees(there.values, least, len(there.releases)))
            own.seen[location] = sees
        if acquires and location in own.seen:
            join(own.known, {location: own.seen[location]})
        more = before if sees > before else None
        self._lanes_ahead.observe(at.warp, at.steps, location, look.lanes, more)

    def _released_now(
        self, at: Place, preceding: list[int], now: int, *, fences: bool
    ) -> Release | None:
        """What a write to a flag by a warp releases, given what precedes by barriers; if it
        `fences`, also what no fence comes after."""
        all_of_it = self._nothing()
        all_of_it.join(self._members.own[at.warp])
        all_of_it.join(self._common)
        preceding[at.warp] = now
        if fences:
            all_of_it.join(Knowledge(preceding, passed_on=all_of_it.known))
        if not self._announces and not any(all_of_it.fenced):
            return None
        visible: Sequence[int] = [0] * self._all
        if self._reached is not None:
            visible = self._reached.visible_in_cluster()
        return Release(
            at.block,
            at.cluster,
            tuple(all_of_it.fenced),
            tuple(visible),
            all_of_it.passed_on,
            all_of_it.proxied,
            announced=tuple(preceding) if self._announces else (),
        )

    def _all_known(self, own: Knowledge) -> tuple[Learned, ...]:
        """What a warp has observed, or was told of, by address."""
        return own.known, self._common.seen, self._common.known

    def _release(
        self, at: Location, warp: int, location: int, released: Release, value: int
    ) -> None:
        differs = at.values.differs(value)
        if at.releases and not differs and not any(released.until):
            # A loop of atomics that waits announces nothing.
            return
        # Those of different values are told from each other, as far as there is room.
        apart = differs and at.apart < _MOST_APART
        if not apart and self._renew(at, warp, location, released):
            return
        at.apart += apart
        at.of_cluster[released.cluster].append(len(at.releases))
        at.blocks.add(released.block)
        at.releases.append(released)
        self._by_cluster[released.cluster].append(released)

    def _renew(self, at: Location, warp: int, location: int, released: Release) -> bool:
        """Add to the last release at an address if it is of the same block and no other warp has
        observed it: a loop of atomics that waits for others would otherwise add one per iteration.

        An observer of a release has observed all those before it at the same address, so one
        suffices.
        """
        if not at.releases or at.releases[-1].by != released.by:
            return False
        last, count = at.releases[-1], len(at.releases)
        if not released.says_more_than(last):
            return True
        own = self._members.own
        others = (each for number, each in enumerate(own) if number != warp)
        if any(each.seen.get(location, 0) == count for each in (*others, self._common)):
            return False
        last.join(released)
        return True

    def _lanes_matter(self, cluster: int, warp: int) -> bool:
        """Whether the lanes of a warp do not count as one."""
        return (cluster, warp) in self._lanes_apart

    def all_know(self, at: Place, cluster: int, warp: int, time: int) -> bool:
        """Whether accesses by all lanes of a warp at a time, which are ordered before for some
        lanes, are so for all lanes of the running warp."""
        if self._lanes_ahead.some(at.warp, at.steps):
            return False
        return not self._lanes_matter(cluster, warp) or all(
            self.before(at, cluster, warp, time, lane) == KNOWN for lane in range(LANES)
        )

    def before(
        self,
        at: Place,
        cluster: int,
        warp: int,
        time: int,
        lane: int = ANY_LANE,
        mine: int = ANY_LANE,
    ) -> int:
        """How an access by a warp of a cluster, or one of its lanes, at a time is ordered before
        the current access of the running warp, or one of its lanes (`mine`)."""
        self._catch_up(at)
        if not self._lanes_matter(cluster, warp):
            lane = ANY_LANE
        asked = at.warp, cluster, warp, time, lane
        if asked not in self._answers:
            self._answers[asked] = self._before(*asked)
        if self._answers[asked] == KNOWN:
            limits = self._lanes_ahead.limits(at.warp, at.steps, mine)
            if limits and not any(
                self._holds(within(each, limits), cluster, warp, time, lane)
                for each in (self._members.own[at.warp].known, self._common.known)
            ):
                return AHEAD
        return self._answers[asked]

    def _before(self, me: int, cluster: int, warp: int, time: int, lane: int) -> int:
        own, common = self._members.own[me], self._common
        for answer, learned in (
            (KNOWN, (own.known, common.known)),
            (UNFENCED, (own.seen, common.seen)),
        ):
            if any(self._holds(each, cluster, warp, time, lane) for each in learned):
                return answer
        if lane != ANY_LANE and self._before(me, cluster, warp, time, ANY_LANE) == KNOWN:
            return APART
        released = any(each.covers(warp, time, lane) for each in self._by_cluster[cluster])
        return UNLEARNED if released else UNRELEASED

    def signals(self, at: Place, cluster: int, warp: int, time: int, lane: int) -> list[int]:
        """The addresses at which the running warp has observed, by a fence or without, that an
        access is released."""
        self._catch_up(at)
        seen = dict(self._members.own[at.warp].seen)
        join(seen, self._common.seen)
        found = ({location: count} for location, count in seen.items())
        return [next(iter(each)) for each in found if self._holds(each, cluster, warp, time, lane)]

    def is_announced(self, at: Place, cluster: int, warp: int, time: int, lane: int) -> bool:
        """Whether the running warp has observed a flag that was written after an access, even if
        no fence orders the two."""
        self._catch_up(at)
        if not self._lanes_matter(cluster, warp):
            lane = ANY_LANE
        asked = at.warp, cluster, warp, time, lane
        if asked not in self._announced:
            own, common = self._members.own[at.warp], self._common
            self._announced[asked] = any(
                each.cluster == cluster and each.announces(warp, time, lane)
                for learned in (own.seen, common.seen, own.known, common.known)
                for flag, done, count in looked_through(self._locations, learned)
                for each in flag.releases[done:count]
            )
        return self._announced[asked]

    def is_visible(self, at: Place, cluster: int, warp: int, time: int) -> bool:
        """Whether an access that is known to come first (`before`) is visible to the asynchronous
        proxy."""
        self._catch_up(at)
        asked = at.warp, cluster, warp, time
        if asked not in self._visible:
            own, common = self._members.own[at.warp], self._common
            self._visible[asked] = any(
                self._holds(each.proxied, cluster, warp, time)
                or self._holds_visibly(each.known, cluster, warp, time)
                for each in (own, common)
            )
        return self._visible[asked]

    def _holds(
        self, learned: Mapping[int, int], cluster: int, warp: int, time: int, lane: int = ANY_LANE
    ) -> bool:
        """Whether an access is among those released, or known before the release."""
        for at, _, count in looked_through(self._locations, learned):
            own = (number for number in at.of_cluster.get(cluster, ()) if number < count)
            if any(at.releases[number].covers(warp, time, lane) for number in own):
                return True
        return False

    def _holds_visibly(
        self, learned: Mapping[int, int], cluster: int, warp: int, time: int
    ) -> bool:
        """Whether there is a proxy fence before one of the releases by which an access is known."""
        for at, done, count in looked_through(self._locations, learned):
            for each in at.releases[done:count]:
                if each.cluster == cluster and each.visible[warp] >= time:
                    return True
                if each.proxied and self._holds(each.proxied, cluster, warp, time):
                    return True
        return False
