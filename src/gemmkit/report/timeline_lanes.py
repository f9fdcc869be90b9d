"""The lanes in which the stages of a block are shown, and what each stage is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmkit.analysis.stages import Lane
from gemmkit.analysis.timeline import Interval, Timeline, slots

_NAMES: dict[Lane, str] = {
    "shared store": "store to shared",
    "multiply": "multiply",
    "wait": "wait",
    "write-back": "write-back",
}


@dataclass(frozen=True, slots=True)
class ShownLane:
    """Intervals of one kind that do not overlap, by time."""

    name: str
    kind: Lane
    intervals: tuple[Interval, ...]


def lanes_of(timeline: Timeline) -> Iterator[ShownLane]:
    """The lanes of a timeline that are not empty; one for each fetch in flight at a time."""
    fetches = timeline.in_lane("fetch")
    places = slots(fetches)
    for slot in range(max(places, default=-1) + 1):
        own = tuple(each for each, place in zip(fetches, places, strict=True) if place == slot)
        yield ShownLane(f"fetch {slot + 1}" if max(places) else "fetch", "fetch", own)
    for kind, name in _NAMES.items():
        found = _joined(timeline.in_lane(kind))
        if found:
            yield ShownLane(name, kind, found)


def stage_name(interval: Interval) -> str:
    """What happens in an interval."""
    tile = "" if interval.tile is None else f" tile {interval.tile}"
    match interval.lane:
        case "fetch":
            return f"fetch{tile or ' operands'}"
        case "shared store":
            return f"store{tile} to shared memory"
        case "multiply":
            return f"multiply{tile}"
        case "wait":
            return f"wait for {awaited(interval.cause)}{tile and f' of{tile}'}"
    return "write-back"


def awaited(cause: str) -> str:
    """What a wait with this cause is for, in a sentence."""
    return {"barrier": "a barrier", "cp.async": "cp.async copies"}.get(cause, cause)


def _joined(intervals: list[Interval]) -> tuple[Interval, ...]:
    """Intervals of a lane without overlap: the part of one that another covers is left out."""
    found: list[Interval] = []
    for each in sorted(intervals, key=lambda one: (one.start, one.end)):
        start = max(each.start, found[-1].end) if found else each.start
        if each.end > start:
            found.append(Interval(each.lane, start, each.end, each.tile, each.cause, each.share))
    return tuple(found)
