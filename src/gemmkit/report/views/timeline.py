"""The predicted stages of a block over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmkit.analysis.explain import Facts
from gemmkit.analysis.timeline import Interval, Timeline, block_timeline
from gemmkit.report.chrome_trace import chrome_trace
from gemmkit.report.document import View
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table, value_text
from gemmkit.report.timeline_lanes import awaited, lanes_of, stage_name


def timelines_of(gathered: Sequence[Facts]) -> list[Timeline]:
    """The timelines of those kernels that have a prediction."""
    return [
        block_timeline(each.profile, each.problem, each.gpu, name=each.name)
        for each in gathered
        if each.profile is not None
    ]


def timeline_view(timelines: Sequence[Timeline]) -> View:
    """The stages of a block of each kernel, on one scale of time."""
    data = {
        "timelines": [_drawn(each) for each in timelines],
        "trace": chrome_trace(timelines),
    }
    return View("timeline", data, timeline_table(timelines))


def timeline_table(timelines: Sequence[Timeline]) -> Table:
    """Time per iteration, and the shares of multiply-adds and waits in it."""
    columns = (
        Column("kernel", "left"),
        Column("iterations", drop=2),
        Column("k per\niteration", drop=1),
        Column("cycles per\niteration", drop=3),
        Column("µs per\niteration"),
        Column("multiply-\nadds issue"),
        Column("waits"),
        Column("for", "left"),
    )
    return Table(
        "Timeline of a block, predicted",
        columns,
        tuple(map(_row, timelines)),
        footnotes=tuple(_notes(timelines)),
    )


def _row(timeline: Timeline) -> Row:
    waits = ", ".join(f"{cause} {100 * share:.0f} %" for cause, share in timeline.waiting.items())
    return Row(
        (
            Cell(timeline.kernel),
            Cell(value_text(timeline.iterations)),
            Cell(value_text(timeline.k_step)),
            Cell(f"{timeline.iteration_cycles:,.0f}"),
            Cell(value_text(timeline.microseconds(timeline.iteration_cycles))),
            Cell(f"{100 * timeline.multiplying:.0f} %"),
            Cell(f"{100 * sum(timeline.waiting.values()):.0f} %"),
            Cell(waits or MISSING),
        )
    )


def _notes(timelines: Sequence[Timeline]) -> list[str]:
    notes = [
        "Predicted for the first block of a launch, alone on an SM with cold caches; other blocks "
        "on the SM fill its waits.",
        "Multiply-adds and waits are shares of an iteration. The rest is for other instructions, "
        "shared memory, and latency too short to be shown as a wait.",
    ]
    if not all(each.loops for each in timelines):
        notes.append("A kernel without a loop along k has iterations over results instead.")
    return notes


def _drawn(timeline: Timeline) -> dict[str, Any]:
    """What the script draws, in microseconds."""
    at = timeline.microseconds
    return {
        "kernel": timeline.kernel,
        "board": timeline.board,
        "rows": timeline.rows,
        "columns": timeline.columns,
        "k": timeline.k,
        "step": timeline.k_step,
        "loops": timeline.loops,
        "iterations": timeline.iterations,
        "shown": timeline.shown,
        "iteration": at(timeline.iteration_cycles),
        "start": at(timeline.loop_start),
        "cut": at(timeline.cut),
        "end": at(timeline.end),
        "clock": timeline.clock_mhz,
        "left_out": timeline.left_out,
        "multiplying": timeline.multiplying,
        "waiting": {awaited(cause): share for cause, share in timeline.waiting.items()},
        "lanes": [
            {
                "name": lane.name,
                "kind": lane.kind,
                "stages": [_stage(timeline, each) for each in lane.intervals],
            }
            for lane in lanes_of(timeline)
        ],
    }


def _stage(timeline: Timeline, interval: Interval) -> dict[str, Any]:
    return {
        "start": timeline.microseconds(interval.start),
        "end": timeline.microseconds(interval.end),
        "tile": interval.tile,
        "text": stage_name(interval),
        "share": interval.share,
    }
