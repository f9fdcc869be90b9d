"""A product over ranks as a figure: what each rank multiplies and sends, and when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gemmkit.distributed.timeline import Interval, Timeline
from gemmkit.report.figures import COLORS, Fill, save, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches: of the figure, of each rank's two lanes, of title and axis.
_WIDTH, _RANK_HEIGHT, _REST = 8.0, 0.55, 1.3
_MOST_RANKS = 16
# Shorter intervals, as a share of the time shown, have no room for their number.
_LABELED = 0.02
_PRODUCT, _SEND = 0.42, 0.3


class RanksPicture:
    """The timeline of a strategy: products in the color of the rank whose lines they multiply,
    transfers in that of the rank they go to.

    Args:
        title: above the figure.
        timeline: as `gemmkit.distributed.predicted_timeline` gives it, with one interval or more.
        ranks: how many there are; the first 16 are shown.
    """

    def __init__(self, title: str, timeline: Timeline, ranks: int) -> None:
        self._title, self._timeline, self._ranks = title, timeline, ranks
        self._shown = min(ranks, _MOST_RANKS)

    def to_svg(self) -> str:
        """The SVG text; equal pictures give equal text.

        Raises:
            UsageError: there is no Matplotlib.
        """
        return svg(self._fill, self._size)

    def save(self, path: Path) -> None:
        """Write it as SVG or PNG.

        Raises:
            UsageError: the name has another suffix, the file cannot be written, or there is no
                Matplotlib.
        """
        save(path, self._fill, self._size)

    @property
    def _size(self) -> tuple[float, float]:
        return _WIDTH, _RANK_HEIGHT * self._shown + _REST

    @property
    def _fill(self) -> Fill:
        def fill(figure: Figure) -> None:
            axes = figure.subplots()
            for each in self._timeline.intervals:
                if each.rank < self._shown:
                    self._draw(axes, each)
            axes.set_xlim(0, self._timeline.total)
            axes.set_ylim(self._shown, 0)
            axes.set_yticks(
                [rank + place for rank in range(self._shown) for place in (0.25, 0.7)],
                [
                    f"rank {rank} {lane}"
                    for rank in range(self._shown)
                    for lane in ("multiplies", "sends")
                ],
                fontsize=8,
            )
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="y", visible=False)
            more = f"; {self._shown} of {self._ranks} ranks" if self._ranks > self._shown else ""
            axes.set_xlabel(
                "predicted µs; numbers and colors: whose lines are multiplied, who they are sent "
                f"to{more}"
            )
            axes.set_title(self._title, fontsize=10, loc="left")

        return fill

    def _draw(self, axes: Axes, interval: Interval) -> None:
        product = interval.lane == "product"
        middle = interval.rank + (0.25 if product else 0.7)
        height = _PRODUCT if product else _SEND
        whose = interval.owner if product else interval.peer
        length = interval.stop - interval.start
        axes.broken_barh(
            [(interval.start, length)],
            (middle - height / 2, height),
            facecolor=COLORS[whose % len(COLORS)],
            edgecolor="white",
            linewidth=0.6,
        )
        if length > _LABELED * self._timeline.total:
            axes.text(
                interval.start + length / 2,
                middle,
                str(whose),
                ha="center",
                va="center",
                fontsize=7,
                color="white",
            )
