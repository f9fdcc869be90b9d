"""Stages of a block, in cycles: what `block_steps` lays out and `timeline` puts together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gemmkit.analysis.piece_time import PieceTime, Stretch

Lane = Literal["fetch", "shared store", "multiply", "wait", "write-back"]


@dataclass(frozen=True, slots=True)
class Step:
    """A stage, in cycles from the start of its part.

    `offset` is the tile that it belongs to, relative to the one that the iteration multiplies.
    """

    lane: Lane
    start: float
    end: float
    offset: int | None = None
    cause: str = ""
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Fetch:
    """Loads of a tile from global memory: the issue of the first, and the arrival of all."""

    start: float
    arrival: float
    tile: int | None = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """The stages of a block in three parts, each with its length in cycles.

    `prologue_fetches` are in the time of the prologue, `fetch` in that of an iteration, which
    fetches the tile that is multiplied `ahead` iterations later; without `fetch`, that of the
    prologue is of all tiles. `multiplying` is the cycles of an iteration in which multiply-adds
    issue, `fetched_by` the cause of a wait for a fetch. `loops` says whether there is a loop along
    k; if not, an iteration is one of a loop over results, or the whole block.
    """

    loops: bool
    iterations: float
    ahead: int
    fetched_by: str
    prologue: tuple[Step, ...]
    prologue_cycles: float
    prologue_fetches: tuple[Fetch, ...]
    iteration: tuple[Step, ...]
    cycles: float
    fetch: Fetch | None
    multiplying: float
    epilogue: tuple[Step, ...]
    epilogue_cycles: float


@dataclass(slots=True)
class Part:
    """A part as it is laid out, piece after piece."""

    clock: float = 0.0
    steps: list[Step] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    multiplying: float = 0.0


@dataclass(frozen=True, slots=True)
class Spot:
    """From `start` to `end` of a piece, which is laid out `offset` cycles later."""

    start: float
    end: float
    offset: float


def stretches_of(time: PieceTime, numbers: tuple[float, float]) -> list[tuple[float, float]]:
    """When the instructions with these numbers issue, if they are the first or last of a piece.

    Copies that are awaited after the loop, of those before it, have arrived by then.
    """
    low, high = numbers
    limit = low if high == math.inf else high
    before = [each for each in time.issued if each.number < limit]
    border = max((time.at(each.time + each.slots) for each in before), default=0.0)
    if len(before) == len(time.issued):
        border = time.cycles
    if high != math.inf:
        return [(0.0, border)] if border else []
    start, found = border, []
    for wait in time.waits:
        if border and wait.cause == "cp.async" and wait.start >= start:
            found.append((start, wait.start))
            start = wait.end
    return [each for each in (*found, (start, time.cycles)) if each[1] > each[0]]


def shifted(stretches: Iterable[Stretch], spots: Sequence[Spot]) -> list[Stretch]:
    """Stretches of a piece where its spots are laid out."""
    return [
        Stretch(start + spot.offset, end + spot.offset, each.cause)
        for each in stretches
        for spot in spots
        if (end := min(each.end, spot.end)) > (start := max(each.start, spot.start))
    ]


def grouped(fetches: Sequence[Fetch], tiles: int) -> tuple[Fetch, ...]:
    """Loads in the order of issue as this many fetches of a tile each."""
    if not fetches or not tiles:
        return ()
    ordered = sorted(fetches, key=lambda each: each.start)
    size = len(ordered) / tiles
    parts = [ordered[round(at * size) : round((at + 1) * size)] for at in range(tiles)]
    return tuple(Fetch(part[0].start, max(each.arrival for each in part)) for part in parts if part)
