"""`FlagWindows`: what lanes of a warp access before they are in step with one that has waited.

The vector clocks count all lanes of a warp as one. So where one lane waits for a flag, the others
seem to know what it releases, though they may go on before, until a `__syncwarp()` or the like.
Here their accesses are compared, up to that point, with what only the wait orders before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.codegen.shadow_layout import ORDERED
from gemmkit.emulator.sanitizer.clocks import Clock, Clocks
from gemmkit.emulator.sanitizer.granules import Granules
from gemmkit.emulator.sanitizer.lane_windows import LaneWindows
from gemmkit.emulator.sanitizer.shadow import BlockShadow

_LANE = np.arange(LANES)
_NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class _Window:
    """These `lanes` of a warp have waited when its lanes had been in step so often (`steps`).

    `known` and `learned` are what was ordered before and after, by actor; `log` is where the log
    ended when it was last compared.
    """

    warp: int
    lanes: int
    known: Clock
    learned: Clock
    steps: int
    log: int


class Ahead(NamedTuple):
    """An access (`who`, which writes or not) of a lane that has not waited, and the earlier one of
    another warp (`other`, which `wrote` or not)."""

    granule: int
    who: int
    writes: bool
    other: int
    wrote: bool


@dataclass(slots=True)
class FlagWindows:
    """The windows of one block; `first` is the number of its first warp as the clocks count."""

    shadow: BlockShadow
    clocks: Clocks
    granules: Granules
    log: LaneWindows
    first: int
    _open: list[_Window] = field(default_factory=list)

    @property
    def some(self) -> bool:
        """Whether there are any."""
        return bool(self._open)

    def has(self, warp: int) -> bool:
        """Whether a warp has some."""
        steps = self.shadow.steps(warp)
        return any(each.warp == warp and each.steps == steps for each in self._open)

    def waited(self, warp: int, lanes: int | None, known: Clock) -> None:
        """Lanes of a warp, or all, have waited for a flag; before that, `known` was ordered before
        what the warp does."""
        end, steps = self.shadow.field("log_count"), self.shadow.steps(warp)
        same = [each for each in self._open if each.warp == warp and each.steps == steps]
        learned: Clock = self.clocks.of[self.first + warp, ORDERED].copy()
        more = bool((learned > known).any())
        for each in list(same):
            if lanes is not None and more and each.lanes == lanes:
                # It waits again: the others know as much as before.
                each.learned = learned
                return
            each.lanes |= -1 if lanes is None else lanes
            if self.log.is_whole(warp, each.lanes):
                self._close(each)
        if lanes is not None and more and not self.log.is_whole(warp, lanes):
            self._open.append(_Window(warp, lanes, known, learned, steps, end))
            self.shadow.watch_steps(warp, watched=True)

    def limit(self, warp: int, lane: int, other: int) -> int | None:
        """The time up to which another warp's accesses are ordered before those of a lane, if it
        has not waited and others have."""
        limits = (
            int(each.known[other])
            for each in self._open
            if each.warp == warp
            and each.steps == self.shadow.steps(warp)
            and not each.lanes >> lane & 1
        )
        return min(limits, default=None)

    def compare(self) -> Iterator[Ahead]:
        """The first access of each window that comes too early, as far as the log goes."""
        for each in list(self._open):
            if self.shadow.steps(each.warp) != each.steps:
                self._close(each)
                continue
            found = self._first(each)
            each.log = self.shadow.field("log_count")
            if found is not None:
                self._close(each)
                yield found

    def _close(self, window: _Window) -> None:
        self._open.remove(window)
        watched = any(each.warp == window.warp for each in self._open)
        self.shadow.watch_steps(window.warp, watched=watched)

    def _first(self, window: _Window) -> Ahead | None:
        if self.shadow.last_access(window.warp) <= window.log:
            return None
        waited = np.where(window.lanes >> _LANE & 1 == 1, _NEVER, 0)
        for where, whos, writes in self.log.accesses(window.warp, waited, window.log):
            met = self.granules.between(
                where, whos, window.known, window.learned, writes=bool(writes[0])
            )
            if met is not None:
                at = met.index
                return Ahead(int(where[at]), int(whos[at]), bool(writes[at]), met.other, met.wrote)
        return None
