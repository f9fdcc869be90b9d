"""Predicted beside measured speed: tables for a page, and a scatter plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gemmkit.analysis.accuracy import PredictedRow, accuracy
from gemmkit.decoding import from_json
from gemmkit.errors import UsageError
from gemmkit.report.figures import INK, Fill, series_style
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORST = 10


def read_rows(path: Path) -> list[PredictedRow]:
    """The rows of a file that `benchmarks/predict.py` wrote.

    Raises:
        UsageError: a line is not a row.
    """
    import msgspec

    rows = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            rows.append(from_json(line, PredictedRow))
        except msgspec.DecodeError as error:
            raise UsageError(f"{path.name}, line {number}, is not a row: {error}") from error
    return rows


def accuracy_table(rows: Sequence[PredictedRow]) -> Table:
    """A line per kernel, and one each for rows fitted on, held out, and all."""
    groups: dict[str, list[PredictedRow]] = defaultdict(list)
    for row in rows:
        groups[row.kernel].append(row)
    for name, wanted in (("fitted on", True), ("held out", False)):
        groups[f"all, {name}"] = [row for row in rows if row.fitted is wanted]
    groups["all"] = list(rows)
    lines = [_accuracy_row(name, members) for name, members in groups.items() if members]
    heads = ("median error", "90 % within", "worst", "rank correlation")
    columns = (Column("rows of", "left"), Column("rows"), *map(Column, heads))
    return Table("Error of the predicted time", columns, tuple(lines))


def speed_table(rows: Sequence[PredictedRow]) -> Table:
    """Predicted / measured TFLOP/s: a line per shape, a column per kernel."""
    kernels = list(dict.fromkeys(row.kernel for row in rows))
    shapes: dict[tuple[int, int, int], dict[str, PredictedRow]] = defaultdict(dict)
    for row in rows:
        shapes[row.m, row.n, row.k][row.kernel] = row
    lines = []
    for shape, found in sorted(shapes.items(), key=lambda item: (item[0][2], item[0][0])):
        cells = [Cell(_pair(found.get(kernel))) for kernel in kernels]
        lines.append(Row((Cell("x".join(map(str, shape))), *cells)))
    columns = (Column("shape", "left"), *map(Column, kernels))
    return Table("TFLOP/s, predicted / measured", columns, tuple(lines))


def detail_table(rows: Sequence[PredictedRow]) -> Table:
    """A line per row, with its limiter."""
    heads = ("predicted", "measured", "error", "registers", "occupancy")
    columns = (Column("kernel", "left"), *map(Column, heads), Column("limited by", "left"))
    lines = tuple(Row(tuple(map(Cell, _details(row)))) for row in rows)
    return Table("TFLOP/s, predicted and measured", columns, lines)


def worst(rows: Sequence[PredictedRow], count: int = _WORST) -> list[PredictedRow]:
    """The rows with the largest errors, the largest first."""
    return sorted(rows, key=lambda row: -abs(row.error))[:count]


def scatter_figure(rows: Sequence[PredictedRow]) -> Fill:
    """A function that draws predicted over measured TFLOP/s by kernel, with a 25 % band."""

    def fill(figure: Figure) -> None:
        axes = figure.subplots()
        kernels = list(dict.fromkeys(row.kernel for row in rows))
        for number, kernel in enumerate(kernels):
            members = [row for row in rows if row.kernel == kernel]
            style = series_style(number)
            axes.scatter(
                [row.measured_tflops for row in members],
                [row.predicted_tflops for row in members],
                s=20,
                color=style["color"],
                marker=style["marker"],
                label=kernel,
            )
        speeds = [row.measured_tflops for row in rows]
        ends = [min(speeds) / 2, max(speeds) * 2]
        axes.plot(ends, ends, color=INK, linewidth=0.8)
        axes.fill_between(
            ends,
            [each / 1.25 for each in ends],
            [each / 0.75 for each in ends],
            color=INK,
            alpha=0.15,
        )
        for set_scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
            set_scale("log")
            axis.set_major_formatter("{x:g}")
        axes.set_xlabel("measured TFLOP/s (fp32)")
        axes.set_ylabel("predicted TFLOP/s")
        axes.set_title(f"{rows[0].board}: predicted times within 25 % in the band")
        axes.grid()
        figure.legend(loc="outside right center")

    return fill


def _accuracy_row(name: str, rows: Sequence[PredictedRow]) -> Row:
    seen = accuracy(rows)
    return Row(
        tuple(
            map(
                Cell,
                (
                    name,
                    str(seen.rows),
                    f"{100 * seen.median_error:.1f} %",
                    f"{100 * seen.p90_error:.1f} %",
                    f"{100 * seen.worst_error:+.1f} %",
                    f"{seen.rank_correlation:.3f}",
                ),
            )
        )
    )


def _pair(row: PredictedRow | None) -> str:
    if row is None:
        return MISSING
    return f"{row.predicted_tflops:.2f} / {row.measured_tflops:.2f}"


def _details(row: PredictedRow) -> tuple[str, ...]:
    config = ", ".join(f"{key}={value}" for key, value in row.config.items())
    fused = "" if row.epilogue == "none" else f", {row.epilogue}"
    return (
        f"{row.kernel} ({config}), {row.m}x{row.n}x{row.k}{fused}",
        f"{row.predicted_tflops:.2f}",
        f"{row.measured_tflops:.2f}",
        f"{100 * row.error:+.1f} %",
        str(row.registers),
        f"{100 * row.occupancy:.4g} %",
        row.limiter,
    )
