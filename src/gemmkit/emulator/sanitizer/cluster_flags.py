"""`ClusterFlags`: what flags order in a block, and between the blocks of a cluster.

A thread releases what precedes its last fence by a strong write, such as an atomic; another one
that observes the value acquires that by its next fence. An access that releases or acquires needs
no fence, and does so for its own address only. Where one of the two is of block scope (`.cta`),
that holds within a block only. `BlockOrder` does the same for global memory and all blocks; here,
vector clocks are joined, so that accesses to shared memory are ordered too, and all that mbarriers
and barriers order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.codegen.shadow_layout import CAUSED, ORDERED
from gemmkit.emulator.sanitizer.clocks import Clock, Clocks
from gemmkit.emulator.sanitizer.cluster_scope import ClusterScope, Times
from gemmkit.emulator.sanitizer.flag_values import FlagValues, Look

# The rank of the block that has a flag in its shared memory, or −1 for global memory; the address.
Place = tuple[int, int]
# Among the threads of the whole cluster; else the rank of the block.
_CLUSTER = -1
# So many releases of a flag are told from each other.
_MOST = 64
# So many fences of a warp are kept.
_FENCES = 4


class _Released(NamedTuple):
    """What has been released at a flag so far: a clock, and what `ClusterScope` says of it."""

    clock: Clock
    times: Times


@dataclass(slots=True)
class _Flag:
    """The releases at an address among some threads: the last of them, after so many `gone`."""

    releases: list[_Released] = field(default_factory=list)
    gone: int = 0
    # The warp that made the last one.
    last: int = -1
    values: FlagValues = field(default_factory=FlagValues)

    @property
    def count(self) -> int:
        """How many there were."""
        return self.gone + len(self.releases)


class _Observed(NamedTuple):
    """What a warp has observed lately, by when, by which lanes if not all did, and how often these
    had been in step."""

    time: int
    released: _Released
    lanes: int | None
    steps: int


class ClusterFlags:
    """The flags of one cluster, or of a block alone."""

    def __init__(self, clocks: Clocks, scope: ClusterScope) -> None:
        self._clocks, self._scope = clocks, scope
        self._flags: defaultdict[tuple[Place, int], _Flag] = defaultdict(_Flag)
        # By those among whom it counts, and by warp: what preceded its last fences, in order; what
        # it has observed lately, and by when. By both: how many releases of each flag it has seen.
        self._fenced: defaultdict[int, dict[int, list[_Released]]] = defaultdict(dict)
        self._observed: defaultdict[int, dict[int, _Observed]] = defaultdict(dict)
        self._seen: defaultdict[tuple[int, int], dict[Place, int]] = defaultdict(dict)

    def _among(self, warp: int, *, in_block: bool) -> tuple[int, ...]:
        """Among whom a fence, or an access, of a warp counts."""
        rank = self._scope.rank_of(warp)
        return (rank,) if in_block else (rank, _CLUSTER)

    def waiting(self, warp: int, steps: int, *, in_block: bool) -> tuple[bool, int | None]:
        """Whether a warp that has been in step so often has observed what a fence would order
        before; and by which lanes alone."""
        among = self._among(warp, in_block=in_block)
        found = [self._observed[each][warp] for each in among if warp in self._observed[each]]
        lanes = 0
        for each in found:
            lanes |= -1 if each.lanes is None or each.steps != steps else each.lanes
        return bool(found), None if lanes == -1 else lanes

    def fence(self, warp: int, *, in_block: bool) -> None:
        """A warp executes a fence, maybe of block scope."""
        among = self._among(warp, in_block=in_block)
        known = self._clocks.of[warp, ORDERED]
        for each in among:
            # Also what other warps have observed, and handed on by a barrier.
            for other, found in self._observed[each].items():
                if other == warp or known[other] >= found.time:
                    self._clocks.acquire(warp, found.released.clock)
                    if each == _CLUSTER:
                        self._scope.acquire(self._scope.rank_of(warp), found.released.times)
            self._observed[each].pop(warp, None)
        clock = self._clocks.mark(warp)
        released = _Released(clock, self._scope.released(warp, clock))
        for each in among:
            last = self._fenced[each].setdefault(warp, [])
            last.append(released)
            del last[:-_FENCES]

    def _fenced_before(self, warp: int, among: int) -> _Released | None:
        """What precedes fences of a warp, or of others that come before what it does now."""
        known, found = self._clocks.of[warp, ORDERED], None
        for other, last in self._fenced[among].items():
            for each in reversed(last):
                if other == warp or known[other] >= each.clock[ORDERED, other]:
                    found = _join(found, each)
                    break
        return found

    def releases(self, warp: int) -> bool:
        """Whether a write to a flag by a warp releases anything."""
        among = self._among(warp, in_block=False)
        return any(self._fenced_before(warp, each) is not None for each in among)

    def access(
        self,
        warp: int,
        place: Place,
        look: Look,
        steps: int,
        ordering: Ordering,
        *,
        reads: bool,
        writes: bool,
        in_block: bool,
    ) -> bool:
        """A warp whose lanes have been in step so often has performed a strong access, maybe of
        block scope; returns whether it acquires anything."""
        acquires, marked = False, None
        if writes and ordering.releases:
            clock = self._clocks.mark(warp)
            marked = _Released(clock, self._scope.released(warp, clock))
        for among in self._among(warp, in_block=in_block):
            flag, who = self._flags[place, among], (warp, among)
            if look.initial is not None and not flag.count:
                flag.values.wrote(look.initial, 0)
            if reads and flag.releases:
                acquires |= self._observe(flag, who, place, look, steps, ordering)
            fenced = marked
            if writes and fenced is None:
                fenced = self._fenced_before(warp, among)
            if fenced is not None:
                self._release(flag, warp, fenced, look.value)
            if writes:
                flag.values.wrote(look.value, flag.count)
        return acquires

    def _observe(
        self,
        flag: _Flag,
        who: tuple[int, int],
        place: Place,
        look: Look,
        steps: int,
        ordering: Ordering,
    ) -> bool:
        """A warp looks at a flag; returns whether it acquires anything."""
        before = self._seen[who].get(place, 0)
        sees = max(look.sees(flag.values, before, flag.count), before)
        self._seen[who][place] = sees
        if sees == 0:
            return False
        release = flag.releases[max(sees - flag.gone, 1) - 1]
        self._clocks.acquire_relaxed(who[0], release.clock)
        warp, among = who
        if ordering.acquires:
            self._clocks.acquire(warp, release.clock)
            if among == _CLUSTER:
                self._scope.acquire(self._scope.rank_of(warp), release.times)
            return True
        last, lanes = self._observed[among].get(warp), look.lanes
        if last is not None and lanes is not None:
            alone = last.lanes if last.steps == steps else None
            lanes = None if alone is None else alone | lanes
        released = _join(last.released if last is not None else None, release)
        self._observed[among][warp] = _Observed(self._clocks.now(warp), released, lanes, steps)
        return False

    def _release(self, flag: _Flag, warp: int, fenced: _Released, value: int) -> None:
        last = flag.releases[-1] if flag.releases else None
        joined = _join(last, fenced)
        caused = joined.clock[CAUSED]
        np.maximum(caused, self._clocks.caused(warp), out=caused)
        if last is not None and flag.last == warp and not flag.values.differs(value):
            # A loop of atomics that change nothing.
            flag.releases[-1] = joined
            return
        flag.releases.append(joined)
        flag.last = warp
        if len(flag.releases) > _MOST:
            del flag.releases[0]
            flag.gone += 1


def _join(one: _Released | None, other: _Released) -> _Released:
    if one is None:
        return _Released(other.clock.copy(), other.times.copy())
    return _Released(np.maximum(one.clock, other.clock), np.maximum(one.times, other.times))
