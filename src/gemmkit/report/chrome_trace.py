"""Timelines in the Chrome trace-event format, which Perfetto (ui.perfetto.dev) opens.

The format is that of "Trace Event Format" (Google, 2016): complete events ("X") with time and
duration in microseconds, and metadata ("M") that names processes and threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gemmkit.analysis.timeline import Timeline
from gemmkit.report.output_files import write_output
from gemmkit.report.timeline_lanes import ShownLane, lanes_of, stage_name
from gemmkit.version import __version__

_ITERATIONS = 1


def chrome_trace(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """A process for each kernel, a thread for each lane, an event for each stage.

    Iterations that a timeline leaves out are one event, so that the write-back is at its time.
    """
    named: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []
    for process, timeline in enumerate(timelines, 1):
        title = f"{timeline.kernel} on {timeline.board}, one block, predicted"
        named.append(_metadata("process_name", process, 0, name=title))
        named.append(_metadata("process_sort_index", process, 0, sort_index=process))
        threads = [("iterations", list(_iterations(timeline)))]
        threads += [(lane.name, list(_stages(timeline, lane))) for lane in lanes_of(timeline)]
        for thread, (name, events) in enumerate(threads, _ITERATIONS):
            named.append(_metadata("thread_name", process, thread, name=name))
            named.append(_metadata("thread_sort_index", process, thread, sort_index=thread))
            stages += [each | {"pid": process, "tid": thread} for each in events]
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "gemmkit": __version__,
            "about": "Predicted, not measured: the first block of a launch, alone on an SM with "
            "cold caches",
        },
        "traceEvents": [*named, *sorted(stages, key=lambda each: (each["ts"], -each["dur"]))],
    }


def write_trace(timelines: Sequence[Timeline], path: Path) -> None:
    """Write them as a JSON file.

    Raises:
        UsageError: the file cannot be written.
    """
    write_output(path, msgspec.json.encode(chrome_trace(timelines)))


def _metadata(kind: str, process: int, thread: int, **values: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": values}


def _iterations(timeline: Timeline) -> Iterator[dict[str, Any]]:
    length = timeline.iteration_cycles
    for turn in range(timeline.shown):
        start = timeline.loop_start + turn * length
        yield from _event(timeline, f"iteration {turn}", "iteration", start, start + length)
    if timeline.left_out:
        end = timeline.cut + timeline.left_out * length
        name = f"{timeline.left_out:g} more iterations"
        yield from _event(timeline, name, "iteration", timeline.cut, end)


def _stages(timeline: Timeline, lane: ShownLane) -> Iterator[dict[str, Any]]:
    for each in lane.intervals:
        later = timeline.left_out * timeline.iteration_cycles if each.start >= timeline.cut else 0
        told: dict[str, Any] = {}
        if each.tile is not None:
            told["tile"] = each.tile
        if each.share:
            told["multiply-adds issue"] = f"{100 * each.share:.0f} %"
        yield from _event(
            timeline, stage_name(each), each.lane, each.start + later, each.end + later, told
        )


def _event(
    timeline: Timeline,
    name: str,
    category: str,
    start: float,
    end: float,
    told: dict[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """A complete event, in whole nanoseconds so that neighbors meet; none if it is shorter."""
    first, last = (round(1e3 * timeline.microseconds(each)) for each in (start, end))
    if last > first:
        args = {"cycles": round(end - start)} | (told or {})
        yield {
            "ph": "X",
            "name": name,
            "cat": category,
            "ts": first / 1e3,
            "dur": (last - first) / 1e3,
            "args": args,
        }
