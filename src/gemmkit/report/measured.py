"""Metrics measured by Nsight Compute beside those counted by the emulator."""

from __future__ import annotations

from collections.abc import Mapping

from gemmkit.analysis.explain.derived import MICROSECONDS
from gemmkit.analysis.ncu_report import MeasuredLaunch
from gemmkit.report.layout import MISSING, Cell, Column, Row, Style, Table, value_text

_CLOSE_PERCENT = 2.0
_MOST_NAMED = 12
# Measured metrics, and the predictions to compare with them.
_PREDICTED = {"gpu__time_duration.sum": MICROSECONDS}
_COLUMNS = (
    Column("metric", "left"),
    Column("measured"),
    Column("emulated"),
    Column("difference"),
)


def measured_table(launch: MeasuredLaunch, emulated: Mapping[str, float], kernel: str) -> Table:
    """A row per measured metric that is also emulated; the others are named below, if few.

    The difference is emulated minus measured, in percent of the measured value. The time is
    compared with the predicted one.
    """
    known = {name: (name, emulated[name]) for name in launch.metrics if name in emulated}
    known |= {
        name: (f"{name} (predicted)", emulated[other])
        for name, other in _PREDICTED.items()
        if name in launch.metrics and other in emulated
    }
    rows = tuple(_row(label, launch.metrics[name], value) for name, (label, value) in known.items())
    others = [name for name in launch.metrics if name not in known]
    notes = []
    if others:
        named = ", ".join(others) if len(others) <= _MOST_NAMED else f"{len(others)} metrics"
        notes.append(f"Not emulated: {named}.")
    if not rows:
        notes.insert(0, "None of the measured metrics is emulated; see `gemmkit counters`.")
    caption = f"Measured by Nsight Compute, {launch.kernel}, beside {kernel}"
    return Table(caption, _COLUMNS, rows, tuple(notes))


def _row(name: str, measured: float, emulated: float) -> Row:
    cells = Cell(name), Cell(value_text(measured)), Cell(value_text(emulated))
    if measured == emulated:
        return Row((*cells, Cell("equal", "good")))
    if not measured:
        return Row((*cells, Cell(MISSING)))
    percent = 100 * (emulated - measured) / measured
    style: Style = "plain" if abs(percent) <= _CLOSE_PERCENT else "bad"
    return Row((*cells, Cell(f"{percent:+.2f} %", style)))
