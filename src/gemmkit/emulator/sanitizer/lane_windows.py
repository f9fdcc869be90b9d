"""`LaneWindows`: what lanes of a warp have accessed since they were last in step, when another lane
hands it over.

The vector clocks count all lanes of a warp as one. So an arrival at an mbarrier, or a proxy fence,
by some lanes seems to cover what the others have accessed, though only `__syncwarp()` or the like
before it would order that. Here these accesses are kept until the lanes are in step, and compared
with what others access by way of that arrival or fence alone. (An instruction that a whole warp
executes together, such as a shuffle, counts as such a barrier.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from gemmkit.emulator.codegen.layout import LANES, PATTERN, SITE_BYTES
from gemmkit.emulator.codegen.shadow_layout import (
    LOADED,
    LOG_ENTRIES,
    LOG_ENTRY,
    ORDERED,
    STORED,
    TAG_BYTES,
    TAG_KIND,
    TAG_WARP,
    UPDATED,
    VISIBLE,
)
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer.clocks import Clock, Clocks
from gemmkit.emulator.sanitizer.granules import Numbers, party
from gemmkit.emulator.sanitizer.shadow import BlockShadow, Pattern, granules_of

_WRITES = (STORED, UPDATED)
# Patterns that are kept as they were read, of about 1 KB each.
_MOST_KEPT = 1024
# A warp has at most so many windows, and an instruction makes so many in a block.
_MOST, _MOST_OF_ONE = 16, 64
_NEVER = np.iinfo(np.int64).max
_LANE = np.arange(LANES)


@dataclass(slots=True)
class Window:
    """Accesses of lanes that did not execute `by`, a party's arrival or proxy fence (`fence`).

    `log` is where the log ended then. Each access was released by its own lane, or after the lanes
    were in step, no earlier than at `safe_from` on the warp's clock.
    """

    warp: int
    by: int
    fence: bool
    log: int
    granules: Numbers
    whos: Numbers
    writes: Numbers
    safe_from: Numbers

    @property
    def open(self) -> bool:
        """Whether some accesses were not released so yet."""
        return bool((self.safe_from == _NEVER).any())


@dataclass(frozen=True, slots=True)
class Apart:
    """Another access (`other`, which writes or not) to a granule that only `by` hands over, if
    anything does."""

    granule: int
    other: int
    wrote: bool
    by: int | None
    fence: bool = False


@dataclass(slots=True)
class LaneWindows:
    """The windows of one block; `first` is the number of its first warp as the clocks count."""

    worker: Worker
    shadow: BlockShadow
    clocks: Clocks
    first: int
    # By granule, the party that wrote it last.
    last_writers: Numbers
    _windows: list[Window] = field(default_factory=list)
    _made: dict[int, int] = field(default_factory=dict)
    # By warp, its time at its last fence, and where the log ended then.
    _fenced: dict[int, tuple[int, int]] = field(default_factory=dict)
    # By warp, and whether by fences: where the log ended when each lane last released what it did.
    _done: dict[tuple[int, bool], Numbers] = field(default_factory=dict)
    # By their serial numbers.
    _patterns: dict[int, Pattern] = field(default_factory=dict)

    @property
    def some(self) -> bool:
        """Whether there are any."""
        return bool(self._windows)

    @property
    def open(self) -> set[int]:
        """The warps whose lanes have not been in step, and released that, since."""
        return {each.warp for each in self._windows if each.open}

    def granules(self) -> Numbers:
        """All granules of the windows."""
        if not self._windows:
            return np.zeros(0, np.int64)
        return np.unique(np.concatenate([each.granules for each in self._windows]))

    def is_whole(self, warp: int, lanes: int) -> bool:
        """Whether these are all lanes of a warp that have not exited."""
        initial, exited = self.worker.warp_fields("initial"), self.worker.warp_fields("exited")
        return not int(initial[warp]) & ~int(exited[warp]) & ~lanes & 0xFFFFFFFF

    def fenced(self, warp: int) -> None:
        """A warp executes a fence, which a later write to a flag releases."""
        self._fenced[warp] = self.clocks.now(self.first + warp), self.shadow.field("log_count")

    def released(
        self,
        warp: int,
        number: int,
        lanes: int,
        *,
        fence: bool = False,
        flag: bool = False,
        fenced: bool = False,
    ) -> bool:
        """Lanes of a warp release what they have done (`fenced`: before the last fence), by an
        arrival or a `flag`, or execute a proxy fence; returns whether that makes a window."""
        whole, step = self.is_whole(warp, lanes), self.shadow.last_step(warp)
        now, fenced_after = self.clocks.now(self.first + warp), _NEVER
        if fenced:
            # Others learn of no more than what preceded the fence.
            now, fenced_after = self._fenced.get(warp, (0, 0))
        for each in self._windows:
            if each.warp == warp and each.open and each.log <= fenced_after:
                late = each.safe_from == _NEVER
                if step <= each.log:
                    late &= (lanes >> (each.whos % LANES) & 1 == 1) & (each.fence or not fence)
                each.safe_from[late] = now
        self._windows = [each for each in self._windows if not self._is_past(each)]
        done = self._done.setdefault((warp, fence), np.zeros(LANES, np.int64))
        done[lanes >> _LANE & 1 == 1] = self.shadow.field("log_count")
        last = self.shadow.last_access(warp)
        if whole and not fence:
            self.shadow.forget_accesses(warp)
        if whole or last <= step or self._made.get(number, 0) == _MOST_OF_ONE:
            return False
        found = list(self.accesses(warp, done, step, only_writes=fence))
        found += [each for each in self._landed(warp, done, step) if each[0].size]
        if not found:
            return False
        self._made[number] = self._made.get(number, 0) + 1
        granules, whos, writes = (np.concatenate(each) for each in zip(*found, strict=True))
        lane = (lanes & -lanes).bit_length() - 1
        by = party(number, (self.first + warp) * LANES + lane)
        # The write to a flag in shared memory is in the log: steps from there on come later.
        end = self.shadow.field("log_count") - flag
        never = np.full(len(granules), _NEVER)
        self._windows.append(Window(warp, by, fence, end, granules, whos, writes, never))
        mine = [each for each in self._windows if each.warp == warp]
        if len(mine) > _MOST:
            self._windows.remove(mine[0])
        return True

    def _is_past(self, window: Window) -> bool:
        """Whether nobody can meet a window any more: all is overwritten, or all warps know that the
        accesses were released in step."""
        kept = self.last_writers[window.granules] == window.whos
        if window.writes.all() and not kept.any():
            return True
        row = VISIBLE if window.fence else ORDERED
        known = self.clocks.of[:, row, self.first + window.warp]
        return int(known.min()) >= int(window.safe_from.max())

    def accesses(
        self, warp: int, done: Numbers, step: int, *, only_writes: bool = False
    ) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """What lanes of a warp have accessed since it was in step, and since the log ended where
        `done` says for each: granules, the parties, and whether they write."""
        end = self.shadow.field("log_count")
        first = max(step, end - LOG_ENTRIES)
        entries = self.shadow.log[np.arange(first, end) % LOG_ENTRIES]
        serials, tags = entries[:, LOG_ENTRY["serial"] // 8], entries[:, LOG_ENTRY["tag"] // 8]
        kinds = _WRITES if only_writes else (*_WRITES, LOADED)
        mine = (tags >> TAG_WARP & 255 == warp) & (serials != 0) & np.isin(tags >> TAG_KIND, kinds)
        compiled, numbers = self.worker.kernel.compiled, self.worker.kernel.areas.numbers
        for index in np.flatnonzero(mine).tolist():
            place, base, serial, tag = entries[index].tolist()
            pattern = self._pattern(place, serial)
            if pattern is None:
                continue
            others = done[pattern.lanes] <= first + index
            if not others.any():
                continue
            where = granules_of(pattern, base, tag >> TAG_BYTES & 255, self.shadow.shift)[others]
            site = ((tag & (1 << TAG_WARP) - 1) - compiled.sites_start) // SITE_BYTES
            who = party(numbers[site], (self.first + warp) * LANES) + pattern.lanes[others]
            yield (
                where.reshape(-1),
                np.repeat(who, where.shape[1]),
                np.full(where.size, int(tag >> TAG_KIND != LOADED)),
            )

    def _pattern(self, place: int, serial: int) -> Pattern | None:
        """The pattern of a serial number, if it is still at its place."""
        if ctypes.c_int64.from_address(place + PATTERN.serial).value != serial:
            return None
        found = self._patterns.get(serial)
        if found is None:
            if len(self._patterns) == _MOST_KEPT:
                self._patterns.clear()
            found = self._patterns[serial] = Pattern(place)
        return found

    def _landed(
        self, warp: int, done: Numbers, step: int
    ) -> list[tuple[Numbers, Numbers, Numbers]]:
        """The same for what their cp.async copies have written, by when they have waited."""
        shadow = self.shadow
        if shadow.last_landing(warp) <= step:
            return []
        where = np.flatnonzero(shadow.landed_at > step)
        threads, places = shadow.copied_by(where)
        own = threads // LANES == warp
        own &= shadow.landed_at[where] > done[threads % LANES]
        own &= where < len(self.last_writers)
        where, threads, places = where[own], threads[own], places[own]
        first, sites = self.worker.kernel.compiled.sites_start, self.worker.kernel.areas.sites
        numbers = np.array([*sites], np.int64)[(places - first) // SITE_BYTES]
        whos = numbers << party(1, 0).bit_length() - 1 | (self.first * LANES + threads)
        # What was overwritten since does not count.
        kept = self.last_writers[where] == whos
        return [(where[kept], whos[kept], np.ones(int(kept.sum()), np.int64))]

    def issued(self, warp: int, lane: int, where: Numbers, *, writes: bool) -> Apart | None:
        """A lane issues a copy that reads or writes granules: whether other lanes have accessed one
        since they were in step."""
        step = self.shadow.last_step(warp)
        if self.shadow.last_access(warp) <= step:
            return None
        mine = np.where(lane == _LANE, _NEVER, 0)
        landed = self._landed(warp, mine, step)
        for granules, whos, wrote in chain(self.accesses(warp, mine, step), landed):
            met = np.isin(granules, where) & (writes | (wrote == 1))
            if met.any():
                at = int(met.argmax())
                return Apart(int(granules[at]), int(whos[at]), bool(wrote[at]), None)
        return None

    def met(
        self, known: Clock, where: Numbers, warp: int, *, writes: bool, through_proxy: bool
    ) -> Apart | None:
        """Something that knows (`known`) what is ordered before accesses granules for a warp, as
        the clocks count it: whether only a part of the lanes has handed one over."""
        for each in self._windows:
            other = self.first + each.warp
            # A copy that a lane of the warp itself issues is compared when it is issued.
            if not through_proxy if each.fence else other == warp:
                continue
            until = int(known[VISIBLE if each.fence else ORDERED, other])
            if until >= int(each.safe_from.max()):
                continue
            hit = (
                (each.safe_from > until)
                & np.isin(each.granules, where)
                & (writes | (each.writes == 1))
            )
            if not writes:
                # What was overwritten since does not count.
                hit &= self.last_writers[each.granules] == each.whos
            if hit.any():
                at = int(hit.argmax())
                self._windows.remove(each)
                found = int(each.granules[at]), int(each.whos[at]), bool(each.writes[at])
                return Apart(*found, each.by, each.fence)
        return None
