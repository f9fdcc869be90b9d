"""Records as SVG pictures, legible on light and dark pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmkit.analysis import count_loads
from gemmkit.record import BaselineRecord, Record
from gemmkit.report.figures import INK, svg
from gemmkit.report.tables import kernel_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = ("#8fbbe0", "#4f94cd", "#2b6cb0", "#d97a1e", "#3f9b5b", "#8a63b0")
# The part of the color map that is visible on white and on black.
_MAP, _MAP_END = "viridis", 0.85
_BAR_SPAN = 0.8


def ladder_svg(records: Sequence[Record]) -> str:
    """TFLOP/s of each rung at each size, or loads per result if nothing was timed.

    A peer that was timed in the same runs has its own bars.
    """
    if any(record.time_us for record in records):
        return svg(lambda figure: _ladder_bars(figure, records))
    return svg(lambda figure: _load_bars(figure, records))


def sweep_svg(records: Sequence[Record]) -> str:
    """TFLOP/s of each kernel, and of its peer, over the size M = N."""
    return svg(lambda figure: _sweep_lines(figure, records))


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
            color=_COLORS[number % len(_COLORS)],
            label=label,
        )
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.legend()
    return axes


def _sweep_lines(figure: Figure, records: Sequence[Record]) -> None:
    import matplotlib as mpl

    axes = figure.subplots()
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    peers: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records:
        if record.tflops is not None:
            lines[kernel_label(record)][record.problem.m] = record.tflops
            if record.baseline is not None:
                _add_peer(peers, record, record.baseline)
    colors = mpl.colormaps[_MAP]
    steps = max(len(lines) - 1, 1)
    for number, (label, points) in enumerate(lines.items()):
        axes.plot(*_points(points), color=colors(_MAP_END * number / steps), label=label)
    for label, points in peers.items():
        axes.plot(*_points(points), color=INK, linestyle="--", label=label)
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
