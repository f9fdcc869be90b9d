"""The roofs of a board, and kernels under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmkit.analysis.explain import Facts
from gemmkit.analysis.roofline import math_pipes, roofline
from gemmkit.report.document import View
from gemmkit.report.layout import Cell, Column, Row, Table, value_text
from gemmkit.report.pictures.board import pipe_of, roofline_points


def roofline_views(gathered: Sequence[Facts]) -> Iterator[View]:
    """The board's roofs and the kernels under them, apart for each pipe that multiplies."""
    predicted = [each for each in gathered if each.prediction is not None]
    for pipe in dict.fromkeys(map(pipe_of, predicted)):
        yield _roofline_view([each for each in predicted if pipe_of(each) == pipe])


def _roofline_view(gathered: Sequence[Facts]) -> View:
    points = roofline_points(gathered)
    first = gathered[0]
    roofs = roofline(first.gpu, pipe_of(first))
    rows = tuple(
        Row(
            (
                Cell(each.label),
                Cell(each.level),
                Cell(value_text(each.intensity)),
                Cell(value_text(each.tflops)),
                Cell(value_text(roofs.attainable(each.level, each.intensity))),
            )
        )
        for each in points
    )
    columns = (
        Column("kernel", "left"),
        Column("level", "left"),
        Column("FLOP per byte"),
        Column("TFLOP/s, predicted"),
        Column("attainable"),
    )
    data = {
        "board": roofs.board,
        "pipe": str(roofs.pipe),
        "peak": roofs.peak_tflops,
        # The kernel's own comes first.
        "pipes": [
            {"pipe": str(each), "peak": first.gpu.peak(each)}
            for each in dict.fromkeys((roofs.pipe, *math_pipes(first.gpu)))
        ],
        "ceilings": [
            {"level": each.level, "gb_per_s": each.gb_per_s, "source": each.source}
            for each in roofs.ceilings
        ],
        "points": [
            {
                "label": each.label,
                "level": each.level,
                "intensity": each.intensity,
                "tflops": each.tflops,
            }
            for each in points
        ],
    }
    return View("roofline", data, Table(f"Roofline of {roofs.board}", columns, rows))
