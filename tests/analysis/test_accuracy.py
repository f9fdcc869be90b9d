"""Committed predictions: within what is promised of them, and the right order on the RTX 3090."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from gemmkit.analysis.accuracy import PredictedRow, accuracy
from gemmkit.kernels.catalog import LADDER
from gemmkit.report.predicted import read_rows
from gemmkit.report.readme import read_records

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def rows() -> list[PredictedRow]:
    return read_rows(RESULTS / "h100-predicted.json")


def made(predicted: float, measured: float) -> PredictedRow:
    return PredictedRow(
        board="any",
        kernel="any",
        config={},
        m=1,
        n=1,
        k=1,
        predicted_us=1.0,
        predicted_tflops=predicted,
        measured_us=1.0,
        measured_tflops=measured,
        limiter="latency",
        registers=1,
        occupancy=1.0,
        fitted=False,
        source="",
    )


def test_summary_of_rows_by_hand():
    # Times too long by 100 %, right, too short by half, in reversed order of speed.
    seen = accuracy([made(1.0, 2.0), made(1.5, 1.5), made(2.0, 1.0)])
    assert seen.rows == 3
    assert seen.median_error == 0.5
    assert seen.worst_error == 1.0
    assert seen.rank_correlation == pytest.approx(-1.0)
    tied = accuracy([made(1.0, 2.0), made(1.0, 2.0), made(3.0, 5.0), made(2.0, 4.0)])
    assert tied.rank_correlation == pytest.approx(1.0)


def test_every_rung_is_predicted_at_every_measured_size(rows):
    names = ("ladder", "sweep", "configs", "odd")
    files = [path for name in names if (path := RESULTS / f"h100-{name}.json").is_file()]
    rungs = {kernel.name for kernel in LADDER}
    measured = [
        each
        for path in files
        for each in read_records(path)
        if each.kernel in rungs and each.problem.epilogue == "none" and each.tflops is not None
    ]
    sizes = Counter(row.kernel for row in rows)
    assert set(sizes) == {each.kernel for each in measured}
    assert sum(count >= 15 for count in sizes.values()) >= 9
    assert sorted(row.measured_tflops for row in rows) == sorted(each.tflops for each in measured)


@pytest.mark.parametrize("fitted", [True, False])
def test_errors_and_order_are_within_what_is_promised(rows, fitted):
    seen = accuracy([row for row in rows if row.fitted is fitted])
    assert seen.median_error <= 0.10
    assert seen.p90_error <= 0.25
    assert seen.rank_correlation >= 0.98


def test_order_holds_at_each_size_too(rows):
    for size in {row.m for row in rows if row.k == 1024}:
        same = [row for row in rows if (row.m, row.k) == (size, 1024)]
        assert accuracy(same).rank_correlation >= 0.85, size
        assert accuracy(same).median_error <= 0.25, size


@pytest.mark.parametrize("board", ["rtx3090", "rtxa6000"])
def test_published_figures_come_in_their_order(board):
    rows = read_rows(RESULTS / f"{board}-predicted.json")
    assert len(rows) == 7
    by_measured = sorted(rows, key=lambda row: row.measured_tflops)
    assert by_measured == sorted(rows, key=lambda row: row.predicted_tflops)
    assert accuracy(rows).median_error <= 0.15
    strides = {row.config.get("TM"): row for row in rows if row.kernel == "coarsening_1d"}
    if board == "rtx3090":
        assert strides[16].predicted_tflops < strides[8].predicted_tflops


def test_a_line_that_is_no_row_is_named(tmp_path):
    path = tmp_path / "x-predicted.json"
    path.write_bytes(msgspec.json.encode(made(1.0, 1.0)) + b'\n{"kernel": 1}\n')
    with pytest.raises(Exception, match=r"x-predicted\.json, line 2, is not a row"):
        read_rows(path)
