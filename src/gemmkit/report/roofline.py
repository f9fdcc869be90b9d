"""The roofline plot: a board's roofs, and kernels as points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmkit.analysis.roofline import Level, Roofline
from gemmkit.report.figures import INK, Fill

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS: dict[Level, str] = {"DRAM": "#d97a1e", "L2": "#2b6cb0", "shared memory": "#3f9b5b"}
_MARGIN = 2.0


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A kernel at one level of memory: FLOP per byte, and TFLOP/s, predicted or measured."""

    label: str
    level: Level
    intensity: float
    tflops: float
    predicted: bool


def roofline_figure(roofs: Roofline, points: Sequence[RooflinePoint]) -> Fill:
    """A function that draws the roofs on logarithmic axes, with the points of kernels.

    Points of one level are connected in order; predicted ones are hollow.
    """

    def fill(figure: Figure) -> None:
        axes = figure.subplots()
        seen = [point.intensity for point in points] + [
            roofs.ridge(each.level) for each in roofs.ceilings
        ]
        low, high = min(seen) / _MARGIN, max(seen) * _MARGIN
        for ceiling in roofs.ceilings:
            corners = [low, roofs.ridge(ceiling.level), high]
            axes.plot(
                corners,
                [roofs.attainable(ceiling.level, each) for each in corners],
                color=_COLORS[ceiling.level],
                label=f"{ceiling.level}: {ceiling.gb_per_s / 1e3:.2f} TB/s",
            )
        for level, color in _COLORS.items():
            _path(axes, [point for point in points if point.level == level], color)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("FLOP per byte moved at the level")
        words = {"predicted" if point.predicted else "measured" for point in points}
        axes.set_ylabel(f"TFLOP/s ({roofs.pipe}), {' or '.join(sorted(words)) or 'attainable'}")
        axes.set_title(f"{roofs.board}: peak {roofs.peak_tflops:.1f} TFLOP/s{roofs.pipe.sums}")
        axes.grid()
        figure.legend(loc="outside lower center", ncols=len(roofs.ceilings))

    return fill


def _path(axes: object, points: Sequence[RooflinePoint], color: str) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    if not points:
        return
    places = [point.intensity for point in points], [point.tflops for point in points]
    axes.plot(*places, color=color, linewidth=0.8, linestyle=":")
    for point in points:
        face = "none" if point.predicted else color
        axes.scatter(point.intensity, point.tflops, s=28, edgecolors=color, facecolors=face)
        axes.annotate(
            point.label,
            (point.intensity, point.tflops),
            xytext=(4, -9),
            textcoords="offset points",
            fontsize=7,
            color=INK,
        )
