"""Pictures of pipelines on Hopper: who works when, and what the blocks of a cluster load."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gemmkit.report.pictures.drawn import Picture, lane_color, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STAGES, _TILES = 4, 8
_LINE, _STORE = "#2d3748", "#cbd5e0"
_DARK = 0.6


class _Bar(NamedTuple):
    """Work of one row of a picture; `stage` is None for what uses none."""

    start: float
    length: float
    stage: int | None
    label: str


def _loads(count: int, start: float, first: int = 0) -> list[_Bar]:
    return [
        _Bar(start + each, 0.9, (first + each) % _STAGES, f"load {first + each}")
        for each in range(count)
    ]


def _products(count: int, start: float, first: int = 0) -> list[_Bar]:
    return [
        _Bar(start + each, 0.96, (first + each) % _STAGES, f"tile {first + each}")
        for each in range(count)
    ]


def _rows(kernel: str) -> dict[str, list[_Bar]]:
    """What each row of a rung's picture shows, by its name."""
    if kernel == "persistent":
        half = _TILES // 2
        stores = [_Bar(start, 1.9, None, "results by TMA") for start in (2 + half, 4 + 2 * half)]
        work = [*_products(half, 2.0), stores[0], *_products(half, 4.0 + half, half), stores[1]]
        return {"producer": _loads(_TILES, 0.0), "consumers": work}
    if kernel == "warp_specialized":
        return {
            "producer": _loads(_TILES, 0.0),
            "consumer 0": _products(_TILES, 2.0),
            "consumer 1": _products(_TILES, 2.4),
        }
    first = [_Bar(0.2 * each, 0.18, each, "") for each in range(_STAGES)]
    again = [_Bar(3.5 + each, 0.3, each, "") for each in range(_STAGES)]
    return {
        "thread 0 loads": [*first, *again],
        "warpgroup 0": _products(_TILES, 2.0),
        "warpgroup 1": _products(_TILES, 2.4),
    }


def stages_picture(kernel: str) -> Picture:
    """Loads and products over time, colored by the stage that they fill and read."""
    rows = _rows(kernel)

    def fill(figure: Figure) -> None:
        axes = figure.subplots()
        for row, bars in enumerate(rows.values()):
            for bar in bars:
                _draw(axes, row, bar)
        end = max(bar.start + bar.length for bars in rows.values() for bar in bars)
        axes.set_xlim(0, end)
        axes.set_ylim(len(rows), 0)
        axes.set_yticks([each + 0.5 for each in range(len(rows))], list(rows))
        axes.set_xticks([])
        axes.tick_params(length=0, labelsize=7)
        axes.set_xlabel("time; a color for each stage", fontsize=7)

    return Picture(f"{kernel}-stages", fill, (9.0, 0.6 + 0.5 * len(rows)))


def cluster_picture(kernel: str) -> Picture:
    """What each block of a cluster loads of a step's tiles, and who gets it."""

    def fill(figure: Figure) -> None:
        axes = figure.subplots()
        for block in range(2):
            top = 1.5 * block
            write(axes, (0.6, top + 0.5), f"block {block} loads", light=False)
            write(axes, (5.2, top + 0.5), f"block {block} has", light=False)
            _draw(axes, top, _Bar(1.2, 0.9, block, f"A {block}"))
            _draw(axes, top, _Bar(2.3, 0.9, 2 + block, f"B {('left', 'right')[block]}"))
            _draw(axes, top, _Bar(5.8, 0.9, block, f"A {block}"))
            for half, side in enumerate(("left", "right")):
                _draw(axes, top, _Bar(6.9 + 0.95 * half, 0.9, 2 + half, f"B {side}"))
            for other in range(2):
                axes.annotate(
                    "",
                    (4.7, 1.5 * other + 0.5),
                    (3.3, top + 0.5),
                    arrowprops={"arrowstyle": "->", "color": _LINE},
                )
        axes.set_xlim(0, 9)
        axes.set_ylim(2.6, -0.1)
        axes.set_axis_off()

    return Picture(f"{kernel}-cluster", fill, (9.0, 1.8))


def _draw(axes: Axes, row: float, bar: _Bar) -> None:
    color = _STORE if bar.stage is None else lane_color(bar.stage, _STAGES)
    axes.broken_barh([(bar.start, bar.length)], (row + 0.1, 0.8), facecolor=color, clip_on=False)
    if bar.label:
        light = bar.stage is not None and bar.stage < _STAGES * _DARK
        write(axes, (bar.start + bar.length / 2, row + 0.5), bar.label, light=light)
