"""Records as SVG pictures, legible on light and dark pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmkit.analysis import count_loads
from gemmkit.record import BaselineRecord, Record
from gemmkit.report.figures import COLORS, INK, series_style, svg
from gemmkit.report.tables import kernel_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR_SPAN = 0.8
# Inches per bar and of all that is not bars; the least height.
_BAR_HEIGHT, _AROUND, _LEAST_HEIGHT = 0.11, 1.5, 4.5
_SWEEP_SIZE = (8.0, 5.5)


def ladder_svg(records: Sequence[Record]) -> str:
    """TFLOP/s of each rung at each size, or loads per result if nothing was timed.

    A peer that was timed in the same runs has its own bars.
    """
    kernels = len(dict.fromkeys(map(kernel_label, records))) + 1
    if any(record.time_us for record in records):
        sizes = len({record.problem.m for record in records})
        return svg(lambda figure: _ladder_bars(figure, records), _bar_size(kernels * sizes))
    return svg(lambda figure: _load_bars(figure, records), _bar_size(kernels * 2))


def sweep_svg(records: Sequence[Record]) -> str:
    """TFLOP/s of each kernel, and of its peer, over the size M = N."""
    return svg(lambda figure: _sweep_lines(figure, records), _SWEEP_SIZE)


def _bar_size(bars: int) -> tuple[float, float]:
    return 8.0, max(_LEAST_HEIGHT, _AROUND + bars * _BAR_HEIGHT)


def _ladder_bars(figure: Figure, records: Sequence[Record]) -> None:
    sizes = sorted({record.problem.m for record in records})
    values: dict[str, dict[int, float]] = defaultdict(dict)
    peers: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records:
        if record.tflops is not None:
            values[kernel_label(record)][record.problem.m] = record.tflops
            if record.baseline is not None:
                _add_peer(peers, record, record.baseline)
    axes = _bars(figure, {**values, **peers}, {size: f"{size}³" for size in sizes})
    axes.set_xlabel("TFLOP/s (fp32)")
    axes.set_title(f"{records[0].device.gpu}: C = AB")


def _load_bars(figure: Figure, records: Sequence[Record]) -> None:
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for record in records:
        loads = count_loads(record.counters, record.problem.results)
        if loads and loads.global_per_result is not None and loads.shared_per_result is not None:
            values[kernel_label(record)] = {
                "global": loads.global_per_result,
                "shared": loads.shared_per_result,
            }
    axes = _bars(figure, values, {"global": "from global memory", "shared": "from shared memory"})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(left=1)
    axes.set_xlabel("loads per result")
    problem = records[0].problem
    axes.set_title(f"C = AB, {problem.m}x{problem.n}x{problem.k}, counted on the emulator")


def _bars(figure: Figure, values: dict[str, dict[Any, float]], series: dict[Any, str]) -> Any:
    """Horizontal bars, grouped by name from top to bottom, with one bar per series."""
    axes = figure.subplots()
    height = _BAR_SPAN / len(series)
    for number, (key, label) in enumerate(series.items()):
        offset = (number + 0.5) * height - _BAR_SPAN / 2
        rows = [(place, group[key]) for place, group in enumerate(values.values()) if key in group]
        axes.barh(
            [place + offset for place, _ in rows],
            [value for _, value in rows],
            height,
            color=COLORS[number % len(COLORS)],
            label=label,
        )
        for place, value in rows:
            if not value:
                # A bar without length, which would look as if it had been forgotten.
                axes.annotate(
                    "0",
                    (0, place + offset),
                    xycoords=("axes fraction", "data"),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.set_ylabel("kernel")
    # Above the plot, where no bar is.
    figure.legend(loc="outside upper right", ncols=len(series))
    return axes


def _sweep_lines(figure: Figure, records: Sequence[Record]) -> None:
    axes = figure.subplots()
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    peers: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records:
        if record.tflops is not None:
            lines[kernel_label(record)][record.problem.m] = record.tflops
            if record.baseline is not None:
                _add_peer(peers, record, record.baseline)
    for number, (label, points) in enumerate(lines.items()):
        axes.plot(*_points(points), **series_style(number), markersize=4, label=label)
    for label, points in peers.items():
        axes.plot(*_points(points), color=INK, linestyle="--", linewidth=2.5, label=label)
    ticks = sorted({record.problem.m for record in records})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks], rotation=60)
    axes.minorticks_off()
    axes.set_xlabel(f"M = N, K = {records[0].problem.k}")
    axes.set_ylabel("TFLOP/s (fp32)")
    axes.set_title(records[0].device.gpu)
    axes.grid()
    figure.legend(loc="outside right center")


def _add_peer(peers: dict[str, dict[int, float]], record: Record, baseline: BaselineRecord) -> None:
    """Its TFLOP/s, under the first word of its name; the rest is version and algorithm."""
    if record.tflops is not None:
        peer = peers[baseline.name.split()[0]]
        peer[record.problem.m] = record.tflops / baseline.speedup


def _points(points: dict[int, float]) -> tuple[list[int], list[float]]:
    sizes = sorted(points)
    return sizes, [points[size] for size in sizes]
