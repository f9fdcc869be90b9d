"""Timelines as lanes, as a table, and as a Chrome trace."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from gemmkit.analysis.timeline import Interval, Timeline
from gemmkit.errors import UsageError
from gemmkit.report.chrome_trace import chrome_trace, write_trace
from gemmkit.report.timeline_lanes import lanes_of, stage_name
from gemmkit.report.views.timeline import timeline_table, timeline_view

# Two stages in flight, 1,000 cycles per µs, six of eight iterations left out.
INTERVALS = (
    Interval("fetch", 0, 300, 0),
    Interval("fetch", 100, 450, 1),
    Interval("wait", 100, 300, 0, "cp.async"),
    Interval("multiply", 310, 700, 0, share=0.75),
    Interval("wait", 700, 720, None, "barrier"),
    Interval("wait", 710, 730, 1, "global loads"),
    Interval("multiply", 730, 1100, 1, share=0.75),
    Interval("shared store", 1099.9999, 1100, 1),
    Interval("write-back", 1100, 1200),
)
TIMELINE = Timeline(
    kernel="async_copy",
    board="RTX 3090",
    clock_mhz=1000,
    rows=128,
    columns=256,
    k=128,
    k_step=16,
    loops=True,
    ahead=2,
    iterations=8,
    shown=2,
    iteration_cycles=400,
    loop_start=300,
    cut=1100,
    end=1200,
    multiplying=0.7,
    waiting={"global loads": 0.05, "barrier": 0.05},
    intervals=INTERVALS,
)


def test_fetches_in_flight_have_lanes_of_their_own():
    lanes = list(lanes_of(TIMELINE))
    assert [each.name for each in lanes] == [
        "fetch 1",
        "fetch 2",
        "store to shared",
        "multiply",
        "wait",
        "write-back",
    ]
    for lane in lanes:
        assert all(one.end <= other.start for one, other in pairwise(lane.intervals))
    waits = lanes[4].intervals
    assert [(each.start, each.end) for each in waits] == [(100, 300), (700, 720), (720, 730)]


def test_stages_are_named_with_their_tile_and_what_they_wait_for():
    assert [stage_name(each) for each in INTERVALS] == [
        "fetch tile 0",
        "fetch tile 1",
        "wait for cp.async copies of tile 0",
        "multiply tile 0",
        "wait for a barrier",
        "wait for global loads of tile 1",
        "multiply tile 1",
        "store tile 1 to shared memory",
        "write-back",
    ]
    assert stage_name(Interval("fetch", 0, 1)) == "fetch operands"


def test_a_chrome_trace_has_what_the_format_asks_for(tmp_path):
    path = tmp_path / "trace.json"
    write_trace([TIMELINE, TIMELINE], path)
    trace = json.loads(path.read_text("utf-8"))
    assert trace == chrome_trace([TIMELINE, TIMELINE])
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert "Predicted" in trace["otherData"]["about"]
    events = trace["traceEvents"]
    metadata = [each for each in events if each["ph"] == "M"]
    complete = [each for each in events if each["ph"] == "X"]
    assert len(metadata) + len(complete) == len(events)
    assert all({"ph", "name", "pid", "tid", "args"} <= set(each) for each in metadata)
    assert all(
        {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"} <= set(each) for each in complete
    )
    assert [each["ts"] for each in complete] == sorted(each["ts"] for each in complete)
    processes = {each["pid"] for each in metadata if each["name"] == "process_name"}
    threads = {(each["pid"], each["tid"]) for each in metadata if each["name"] == "thread_name"}
    assert processes == {1, 2}
    assert {(each["pid"], each["tid"]) for each in complete} <= threads
    for thread in threads:
        own = [each for each in complete if (each["pid"], each["tid"]) == thread]
        assert all(each["dur"] > 0 for each in own)
        # To the nanosecond: the sum of two floats may differ by less.
        assert all(one["ts"] + one["dur"] <= other["ts"] + 1e-6 for one, other in pairwise(own)), (
            thread
        )


def test_a_chrome_trace_is_in_microseconds_and_leaves_room_for_what_is_left_out():
    events = chrome_trace([TIMELINE])["traceEvents"]
    found = {each["name"]: each for each in events if each["ph"] == "X"}
    assert (found["multiply tile 0"]["ts"], found["multiply tile 0"]["dur"]) == (0.31, 0.39)
    assert found["multiply tile 0"]["args"] == {
        "cycles": 390,
        "tile": 0,
        "multiply-adds issue": "75 %",
    }
    assert (found["6 more iterations"]["ts"], found["6 more iterations"]["dur"]) == (1.1, 2.4)
    assert found["write-back"]["ts"] == 3.5
    # Shorter than a nanosecond.
    assert "store tile 1 to shared memory" not in found


def test_a_trace_that_cannot_be_written_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        write_trace([TIMELINE], tmp_path)


def test_the_table_has_shares_and_what_is_waited_for():
    text = timeline_table([TIMELINE]).to_text().plain
    (row,) = (line for line in text.splitlines() if line.startswith("async_copy"))
    assert row.split(maxsplit=9) == [
        *("async_copy", "8", "16", "400", "0.4", "70", "%", "10", "%"),
        "global loads 5 %, barrier 5 %",
    ]
    assert "Predicted for the first block" in text
    for width in (80, 100, 120):
        lines = timeline_table([TIMELINE]).to_text(width).plain.splitlines()
        assert max(map(len, lines)) <= width


def test_a_view_is_in_microseconds_and_carries_its_trace():
    data = timeline_view([TIMELINE]).data
    assert data["trace"] == chrome_trace([TIMELINE])
    (drawn,) = data["timelines"]
    assert (drawn["start"], drawn["cut"], drawn["end"]) == (0.3, 1.1, 1.2)
    assert drawn["lanes"][0]["stages"][0] == {
        "start": 0,
        "end": 0.3,
        "tile": 0,
        "text": "fetch tile 0",
        "share": 0.0,
    }
    assert drawn["waiting"] == {"global loads": 0.05, "a barrier": 0.05}
