"""`BlockOrder`: which accesses of other blocks precede a block's accesses, by fences and atomics.

A block releases its fenced accesses by a strong write, such as an atomic. Another block that reads
it, directly or through further atomics, observes them, and is ordered after them once it executes a
fence. Within a block, barriers carry this from warp to warp. Times are those of the shadow's clock;
the lanes of a warp count as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

# The number of releases at each address in memory.
Learned = dict[int, int]

# How an access is ordered before another: fully; except for a fence of the observer; released, but
# not observed; not released.
KNOWN, UNFENCED, UNLEARNED, UNRELEASED = range(4)


@dataclass(slots=True)
class _Release:
    """What a block made known at an address: for each of its warps the accesses before a time, and
    what it knew of other blocks."""

    block: int
    until: tuple[int, ...]
    learned: Learned

    def covers(self, warp: int, time: int) -> bool:
        return time < self.until[warp]


@dataclass(slots=True)
class _Location:
    """All releases at one address, in order; and by block, which of them it made."""

    releases: list[_Release] = field(default_factory=list)
    of_block: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class _Knowledge:
    """For a warp, or all warps of a block: up to when each warp's accesses are fenced, what was
    observed of other blocks, what of that is behind a fence, and what of that preceded the last
    fence, which a release passes on."""

    fenced: list[int]
    seen: Learned = field(default_factory=dict)
    known: Learned = field(default_factory=dict)
    passed_on: Learned = field(default_factory=dict)

    def join(self, other: _Knowledge) -> None:
        self.fenced = [max(pair) for pair in zip(self.fenced, other.fenced, strict=True)]
        for mine, theirs in (
            (self.seen, other.seen),
            (self.known, other.known),
            (self.passed_on, other.passed_on),
        ):
            _join(mine, theirs)


def _join(mine: Learned, theirs: Mapping[int, int]) -> None:
    for location, count in theirs.items():
        mine[location] = max(count, mine.get(location, 0))


class BlockOrder:
    """The order among the blocks of one launch, which run one at a time, or cluster by cluster.

    Args:
        warps: of a block.
        peer: the order as another block of the cluster knows it; releases are common.
        reached: for each warp of the block, the time up to which mbarriers order its accesses
            before what the running warp does, for itself the time now; None if there are none.
    """

    def __init__(
        self,
        warps: int,
        peer: BlockOrder | None = None,
        reached: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        self._warps, self._reached = warps, reached
        self._locations: defaultdict[int, _Location] = defaultdict(_Location)
        self._by_block: defaultdict[int, list[_Release]] = defaultdict(list)
        if peer is not None:
            self._locations, self._by_block = peer._locations, peer._by_block
        # Answers of `before` that hold until what is known changes.
        self._answers: dict[tuple[int, int, int, int], int] = {}
        self._enter(-1)

    def _enter(self, block: int) -> None:
        self._block, self._barrier = block, 0
        self._own = [self._nothing() for _ in range(self._warps)]
        self._common = self._nothing()
        # What each warp knew, from which time on; and how many of these another warp has learned.
        self._history: list[list[tuple[int, _Knowledge]]] = [[] for _ in range(self._warps)]
        self._taken: defaultdict[tuple[int, int], int] = defaultdict(int)

    def _nothing(self) -> _Knowledge:
        return _Knowledge([0] * self._warps)

    def _catch_up(self, block: int, warp: int, barrier: int) -> list[int]:
        """The running block passed its last barrier at this time; returns for each warp up to when
        its accesses are ordered before what a warp does now."""
        if block != self._block:
            self._answers.clear()
            self._enter(block)
        if barrier != self._barrier:
            self._answers.clear()
            self._barrier = barrier
            for own in self._own:
                self._common.join(own)
        if self._reached is None:
            return [barrier] * self._warps
        times = list(self._reached())
        for other, time in enumerate(times):
            if other != warp:
                self._take(warp, other, time, times[warp])
        # An access at this time comes before.
        return [max(barrier, each + 1) for each in times]

    def _take(self, warp: int, other: int, time: int, now: int) -> None:
        """A warp learns now what another one knew at a time."""
        history, taken = self._history[other], self._taken[warp, other]
        last = taken
        while last < len(history) and history[last][0] <= time:
            last += 1
        if last > taken:
            self._answers.clear()
            self._own[warp].join(history[last - 1][1])
            self._taken[warp, other] = last
            self._note(warp, now)

    def _note(self, warp: int, now: int) -> None:
        """From a time on a warp knows more."""
        if self._reached is not None:
            self._history[warp].append((now, deepcopy(self._own[warp])))

    def fence(self, block: int, warp: int, barrier: int, now: int) -> None:
        """A warp fences its accesses so far, and those of others before the last barrier."""
        until = self._catch_up(block, warp, barrier)
        self._answers.clear()
        own = self._own[warp]
        until[warp] = now + 1
        _join(own.known, own.seen)
        _join(own.known, self._common.seen)
        _join(own.known, self._common.known)
        own.join(_Knowledge(until, passed_on=dict(own.known)))
        self._note(warp, now)

    def synchronize(
        self, block: int, warp: int, barrier: int, location: int, *, reads: bool, writes: bool
    ) -> bool:
        """A strong access to an address; returns whether it observes another block."""
        self._catch_up(block, warp, barrier)
        self._answers.clear()
        at, own = self._locations[location], self._own[warp]
        if reads and own.seen.get(location, 0) < len(at.releases):
            own.seen[location] = len(at.releases)
            if self._reached is not None:
                self._note(warp, self._reached()[warp])
        observes = reads and any(each != block for each in at.of_block)
        if writes:
            all_of_it = self._nothing()
            all_of_it.join(own)
            all_of_it.join(self._common)
            if any(all_of_it.fenced):
                until, learned = tuple(all_of_it.fenced), all_of_it.passed_on
                if self._renew(at, warp, location, until, learned):
                    return observes
                released = _Release(block, until, learned)
                at.of_block[block].append(len(at.releases))
                at.releases.append(released)
                self._by_block[block].append(released)
        return observes

    def _renew(
        self, at: _Location, warp: int, location: int, until: tuple[int, ...], learned: Learned
    ) -> bool:
        """Add to the last release at an address if it is of the same block and no other warp has
        observed it: a loop of atomics that waits for others would otherwise add one per iteration.

        An observer of a release has observed all those before it at the same address, so one
        suffices.
        """
        if not at.releases or at.releases[-1].block != self._block:
            return False
        last, count = at.releases[-1], len(at.releases)
        more = any(then > before for then, before in zip(until, last.until, strict=True))
        if not more and all(last.learned.get(each, 0) >= n for each, n in learned.items()):
            return True
        others = (each for number, each in enumerate(self._own) if number != warp)
        if any(each.seen.get(location, 0) == count for each in (*others, self._common)):
            return False
        last.until = tuple(map(max, last.until, until))
        _join(last.learned, learned)
        return True

    def before(
        self, block: int, warp: int, barrier: int, other: int, other_warp: int, time: int
    ) -> int:
        """How an access of another block's warp at a time is ordered before this warp's current
        access."""
        self._catch_up(block, warp, barrier)
        asked = warp, other, other_warp, time
        if asked not in self._answers:
            self._answers[asked] = self._before(*asked)
        return self._answers[asked]

    def _before(self, warp: int, other: int, other_warp: int, time: int) -> int:
        own, common = self._own[warp], self._common
        for answer, learned in (
            (KNOWN, (own.known, common.known)),
            (UNFENCED, (own.seen, common.seen)),
        ):
            if any(self._holds(each, other, other_warp, time) for each in learned):
                return answer
        released = any(each.covers(other_warp, time) for each in self._by_block[other])
        return UNLEARNED if released else UNRELEASED

    def _holds(self, learned: Mapping[int, int], block: int, warp: int, time: int) -> bool:
        """Whether an access is among those released, or known before the release."""
        looked_at: Learned = {}
        left = [learned]
        while left:
            for location, count in left.pop().items():
                at, done = self._locations[location], looked_at.get(location, 0)
                if count <= done:
                    continue
                looked_at[location] = count
                own = (number for number in at.of_block.get(block, ()) if number < count)
                if any(at.releases[number].covers(warp, time) for number in own):
                    return True
                left += [each.learned for each in at.releases[done:count] if each.learned]
        return False
