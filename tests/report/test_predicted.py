"""Tables and scatter of predicted speed, and that the page shows the committed rows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from gemmkit.analysis.accuracy import PredictedRow
from gemmkit.report.figures import svg
from gemmkit.report.predicted import (
    accuracy_table,
    detail_table,
    scatter_figure,
    speed_table,
    worst,
)
from gemmkit.report.readme import replace_generated

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "predict.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("predict", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # Where dataclasses look up what their annotations name.
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def row(kernel: str, size: int, predicted: float, measured: float, fitted: bool = False):
    return PredictedRow(
        board="H100",
        kernel=kernel,
        config={"BM": 32},
        m=size,
        n=size,
        k=size,
        predicted_us=1.0,
        predicted_tflops=predicted,
        measured_us=1.0,
        measured_tflops=measured,
        limiter="latency",
        registers=40,
        occupancy=0.375,
        fitted=fitted,
        source="",
    )


ROWS = [
    row("naive", 128, 1.0, 1.1, fitted=True),
    row("naive", 256, 2.0, 1.5),
    row("tiled", 128, 4.0, 4.0),
]


def test_accuracy_has_a_line_for_each_kernel_and_each_part():
    lines = [[cell.text for cell in line.cells] for line in accuracy_table(ROWS).rows]
    assert [line[:2] for line in lines] == [
        ["naive", "2"],
        ["tiled", "1"],
        ["all, fitted on", "1"],
        ["all, held out", "2"],
        ["all", "3"],
    ]
    assert lines[0][2:5] == ["17.5 %", "23.5 %", "-25.0 %"]


def test_speeds_stand_by_shape_and_kernel():
    table = speed_table(ROWS)
    assert [column.title for column in table.columns] == ["shape", "naive", "tiled"]
    assert [[cell.text for cell in line.cells] for line in table.rows] == [
        ["128x128x128", "1.00 / 1.10", "4.00 / 4.00"],
        ["256x256x256", "2.00 / 1.50", "–"],
    ]


def test_details_and_the_worst_rows():
    assert worst(ROWS, 1) == [ROWS[1]]
    cells = [cell.text for cell in detail_table(ROWS).rows[1].cells]
    assert cells == [
        "naive (BM=32), 256x256x256",
        "2.00",
        "1.50",
        "-25.0 %",
        "40",
        "37.5 %",
        "latency",
    ]


def test_scatter_names_every_kernel():
    text = svg(scatter_figure(ROWS))
    assert all(f">{name}<" in text for name in ("naive", "tiled", "predicted TFLOP/s"))


def test_the_page_shows_the_committed_rows(script):
    page = script.PAGE.read_text("utf-8")
    shown = replace_generated(page, script.sections(), writer=script.WRITER)
    assert shown == page, "run `.venv/bin/python benchmarks/predict.py --render`"
    for picture in script.PICTURES.glob("*.svg"):
        assert f"(images/{script.PICTURES.name}/{picture.name})" in page
