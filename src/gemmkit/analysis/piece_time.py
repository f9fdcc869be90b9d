"""`PieceTime`: when the instructions of a piece of code issue in the time of a whole block.

`warp_time` walks a piece as one warp alone executes it; the model says how long all warps of the
block take. Time in which a warp waits passes once for all warps, time in which it issues is
stretched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.warp_time import Cause, Issued
from gemmkit.emulator.codegen.operands import Action

# The shortest wait that is kept apart, in cycles; shorter ones are between dependent instructions.
SHORTEST_WAIT = 16.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a piece, in cycles from its start."""

    start: float
    end: float
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PieceTime:
    """A piece of code between barriers, in the time of a block.

    `cycles` is the block's time for it, in `waits` no warp of it issues, and `idle` is the rest of
    the time in which no unit of the SM is busy: latency too short to be kept apart. `walked` and
    `placed` are corresponding times of the warp alone and of the block; between them time is
    stretched evenly, that of instructions by `stretch`.
    """

    cycles: float
    idle: float
    stretch: float
    issued: tuple[Issued, ...]
    waits: tuple[Stretch, ...]
    walked: NDArray[np.float64]
    placed: NDArray[np.float64]

    def with_last_wait(self, cycles: float) -> tuple[PieceTime, float]:
        """The piece with a wait for global loads at its end, out of its idle time, and its length:
        `cycles`, or what there is."""
        last = min(cycles, self.idle)
        if last < SHORTEST_WAIT:
            return self, 0.0
        end = Stretch(self.cycles - last, self.cycles, "global loads")
        scale = end.start / self.cycles
        waits = tuple(
            Stretch(each.start * scale, each.end * scale, each.cause) for each in self.waits
        )
        made = replace(
            self,
            idle=self.idle - last,
            stretch=self.stretch * scale,
            waits=(*waits, end),
            placed=self.placed * scale,
        )
        return made, last

    def at(self, time: float) -> float:
        """The block's time for a time of the walk, both from the start of the piece."""
        return float(np.interp(time, self.walked, self.placed))

    def runs(self, chosen: Sequence[Issued]) -> list[Stretch]:
        """When these instructions issue, separated by waits."""
        if not chosen:
            return []
        start = self.at(min(each.time for each in chosen))
        end = self.at(max(each.time + max(each.slots, 1.0) for each in chosen))
        found = []
        for wait in sorted(self.waits, key=lambda each: each.start):
            if start < wait.start < end:
                found.append(Stretch(start, wait.start))
            if start < wait.end and wait.start < end:
                start = wait.end
        return [*found, Stretch(start, end)] if end > start else found


def piece_time(
    actions: Sequence[Action],
    issued: Sequence[Issued],
    *,
    length: float,
    latency: float,
    cycles: float,
    busy: float,
) -> PieceTime:
    """Place the walk of a piece in the time of a block.

    Args:
        actions: of the kernel.
        issued: the instructions of the walk.
        length: cycles of the walk.
        latency: the model's cycles for one warp, at least `length`.
        cycles: the model's cycles for the block.
        busy: cycles in which the busiest unit of the SM works for the block; in what is left it
            waits.
    """
    gaps = _gaps(actions, issued, length)
    waiting = sum(each.end - each.start for each in gaps)
    idle = max(cycles - busy, 0.0)
    most = latency / length
    if waiting:
        most = cycles / waiting if length - waiting < 1.0 else min(most, idle / waiting)
    # A barrier alone takes no longer than in the walk.
    scales = [min(most, 1.0) if each.cause == "barrier" else most for each in gaps]
    drawn = sum(scale * (each.end - each.start) for scale, each in zip(scales, gaps, strict=True))
    issuing = (cycles - drawn) / max(length - waiting, 1e-9)
    walked, placed, waits = [0.0], [0.0], []
    for scale, gap in zip(scales, gaps, strict=True):
        start = placed[-1] + issuing * (gap.start - walked[-1])
        end = start + scale * (gap.end - gap.start)
        walked += [gap.start, gap.end]
        placed += [start, end]
        if end - start > SHORTEST_WAIT:
            waits.append(Stretch(start, end, gap.cause))
    walked.append(length)
    placed.append(cycles)
    return PieceTime(
        cycles=cycles,
        idle=max(idle - drawn, 0.0),
        stretch=issuing,
        issued=tuple(issued),
        waits=tuple(waits),
        walked=np.array(walked),
        placed=np.array(placed),
    )


def _gaps(actions: Sequence[Action], issued: Sequence[Issued], length: float) -> list[Stretch]:
    """When the warp issues nothing, and what it waits for."""
    found, free = [], 0.0
    for each in sorted(issued, key=lambda one: one.time):
        if each.time - free > SHORTEST_WAIT:
            found.append(Stretch(free, each.time, each.cause))
        free = max(free, each.time + each.slots)
    ends = bool(issued) and actions[issued[-1].number].operation == "barrier"
    if ends and length - free > SHORTEST_WAIT:
        found.append(Stretch(free, length, "barrier"))
    return found
