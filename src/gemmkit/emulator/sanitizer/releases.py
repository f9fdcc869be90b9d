"""`Release`: what a block makes known to others by a flag in global memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gemmkit.emulator.sanitizer.flag_values import FlagValues

# The number of releases at each address in memory.
Learned = dict[int, int]
# In place of a lane, where the lanes of a warp count as one.
ANY_LANE = -1


class Apart(NamedTuple):
    """Lanes of a warp that write a flag, and the time at which the others were last in step with
    them: what those did later, the flag does not release."""

    warp: int
    lanes: int
    step: int

    def holds(self, warp: int, time: int, lane: int) -> bool:
        """Whether an access is of one of the others, since."""
        other = lane != ANY_LANE and warp == self.warp and not self.lanes >> lane & 1
        return other and time >= self.step


@dataclass(slots=True)
class Release:
    """What a block made known at an address: for each warp of its cluster the accesses before a
    time, and those up to a time that are visible to the asynchronous proxy; what it knew of other
    clusters, and what of that before a proxy fence; and what of its own warp it leaves out. It
    announces all accesses before another time, also those with no fence between."""

    block: int
    cluster: int
    until: tuple[int, ...]
    visible: tuple[int, ...]
    learned: Learned
    proxied: Learned
    apart: Apart | None = None
    announced: tuple[int, ...] = ()

    def copy(self, apart: Apart | None) -> Release:
        """The same by these lanes of the warp."""
        return Release(
            self.block,
            self.cluster,
            self.until,
            self.visible,
            dict(self.learned),
            dict(self.proxied),
            apart,
            self.announced,
        )

    def announces(self, warp: int, time: int, lane: int) -> bool:
        """Whether an access of a lane of a warp came before it, fenced or not."""
        if self.apart is not None and self.apart.holds(warp, time, lane):
            return False
        return bool(self.announced) and time < self.announced[warp]

    def covers(self, warp: int, time: int, lane: int) -> bool:
        """Whether it makes an access of a lane of a warp known."""
        if self.apart is not None and self.apart.holds(warp, time, lane):
            return False
        return time < self.until[warp]

    @property
    def by(self) -> tuple[int, ...]:
        """The block, and the warp and lanes if these are not all."""
        return (self.block, *(self.apart[:2] if self.apart is not None else ()))

    def says_more_than(self, other: Release) -> bool:
        """Whether it makes more known than another by the same."""
        if self.apart is not None and other.apart is not None and self.apart > other.apart:
            return True
        times = zip(self.until + self.visible, other.until + other.visible, strict=True)
        pairs = (self.learned, other.learned), (self.proxied, other.proxied)
        return any(mine > theirs for mine, theirs in times) or any(
            theirs.get(each, 0) < count for mine, theirs in pairs for each, count in mine.items()
        )

    def join(self, other: Release) -> None:
        """Make known what another one by the same does, too."""
        if self.apart is not None and other.apart is not None:
            self.apart = max(self.apart, other.apart)
        self.until = tuple(map(max, self.until, other.until))
        self.visible = tuple(map(max, self.visible, other.visible))
        join(self.learned, other.learned)
        join(self.proxied, other.proxied)


@dataclass(slots=True)
class Location:
    """All releases at one address, in order; by cluster, which of them it made; the blocks that
    made some; and the values that were there."""

    releases: list[Release] = field(default_factory=list)
    of_cluster: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    blocks: set[int] = field(default_factory=set)
    values: FlagValues = field(default_factory=FlagValues)
    # How many were kept apart only for their values.
    apart: int = 0


def join(mine: Learned, theirs: Mapping[int, int]) -> None:
    """Learn what another one knows."""
    for location, count in theirs.items():
        mine[location] = max(count, mine.get(location, 0))


def looked_through(
    locations: Mapping[int, Location], learned: Mapping[int, int]
) -> Iterator[tuple[Location, int, int]]:
    """The locations of all releases that are known by way of these, each with the numbers of its
    first such release and of that after the last; none is looked at twice."""
    looked_at: Learned = {}
    left = [learned]
    while left:
        for location, count in left.pop().items():
            at, done = locations[location], looked_at.get(location, 0)
            if count <= done:
                continue
            looked_at[location] = count
            yield at, done, count
            left += [each.learned for each in at.releases[done:count] if each.learned]


def within(learned: Mapping[int, int], limits: Mapping[int, int]) -> Learned:
    """No more of what was learned at some addresses than these limits."""
    return {each: min(count, limits.get(each, count)) for each, count in learned.items()}
