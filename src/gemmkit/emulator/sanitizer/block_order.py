"""`BlockOrder`: what other blocks did that comes before what a block does, by fences and atomics.

A block releases what it has fenced by a strong write, as an atomic is; another block that reads
this, directly or through further atomics, learns of it, and knows it after a fence of its own.
Within a block, barriers carry this on from warp to warp. Times are those of the shadow's clock; the
lanes of a warp count as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

# By the address of a location in memory, how many of what was released there.
Learned = dict[int, int]

# How an access comes before another: in the order that the memory model wants; but for a fence of
# the one who learns; not at all, though it was released; not at all, for it was not.
KNOWN, UNFENCED, UNLEARNED, UNRELEASED = range(4)


@dataclass(slots=True)
class _Release:
    """What a block made known at a location: of each of its warps all before a time, and what it knew
    of others."""

    block: int
    until: tuple[int, ...]
    learned: Learned

    def covers(self, warp: int, time: int) -> bool:
        return time < self.until[warp]


@dataclass(slots=True)
class _Location:
    """All that was released at one location, in its order; which of it each block did."""

    releases: list[_Release] = field(default_factory=list)
    of_block: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class _Knowledge:
    """Of a warp, or of all warps of a block: until when each warp's accesses are fenced, what was
    seen of other blocks, what of that is behind a fence, and what of that was there before the
    last fence, which a release passes on."""

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
    """The order among the blocks of one launch, which run one by one.

    Args:
        warps: of a block.
    """

    def __init__(self, warps: int) -> None:
        self._warps = warps
        self._locations: defaultdict[int, _Location] = defaultdict(_Location)
        self._by_block: defaultdict[int, list[_Release]] = defaultdict(list)
        self._enter(-1)

    def _enter(self, block: int) -> None:
        self._block, self._barrier = block, 0
        self._own = [self._nothing() for _ in range(self._warps)]
        self._common = self._nothing()

    def _nothing(self) -> _Knowledge:
        return _Knowledge([0] * self._warps)

    def _catch_up(self, block: int, barrier: int) -> None:
        """The block that runs has passed its last barrier at this time."""
        if block != self._block:
            self._enter(block)
        if barrier != self._barrier:
            self._barrier = barrier
            for own in self._own:
                self._common.join(own)

    def fence(self, block: int, warp: int, barrier: int, now: int) -> None:
        """A warp fences what it did until now, and what others did before the last barrier."""
        self._catch_up(block, barrier)
        own = self._own[warp]
        until = [barrier] * self._warps
        until[warp] = now + 1
        _join(own.known, own.seen)
        _join(own.known, self._common.seen)
        _join(own.known, self._common.known)
        own.join(_Knowledge(until, passed_on=dict(own.known)))

    def synchronize(
        self, block: int, warp: int, barrier: int, location: int, *, reads: bool, writes: bool
    ) -> None:
        """A strong access to a location in memory."""
        self._catch_up(block, barrier)
        at, own = self._locations[location], self._own[warp]
        if reads and at.releases:
            own.seen[location] = len(at.releases)
        if writes:
            all_of_it = self._nothing()
            all_of_it.join(own)
            all_of_it.join(self._common)
            if any(all_of_it.fenced):
                until, learned = tuple(all_of_it.fenced), all_of_it.passed_on
                if self._renew(at, warp, location, until, learned):
                    return
                released = _Release(block, until, learned)
                at.of_block[block].append(len(at.releases))
                at.releases.append(released)
                self._by_block[block].append(released)

    def _renew(
        self, at: _Location, warp: int, location: int, until: tuple[int, ...], learned: Learned
    ) -> bool:
        """Add to the last release at a location, which is of the same block, unless another warp has
        seen it as it was: a loop of atomics that waits for others would leave one each time.

        Who sees a release has seen all those before it at the same location, so one is as good as two.
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
        """How what a warp of another block did at a time comes before what this warp does now."""
        self._catch_up(block, barrier)
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
        """Whether an access is among what was released, or learned before that was released."""
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
