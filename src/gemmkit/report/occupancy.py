"""Occupancy on several boards, and its what-if curves as text and as a figure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gemmkit.analysis.occupancy import Limiter, occupancy
from gemmkit.analysis.what_if import Curve, Step, WhatIf
from gemmkit.gpu import GpuSpec
from gemmkit.report.figures import INK, Fill
from gemmkit.report.layout import Cell, Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

# Of the bars, and of the label below them: they fit the narrowest terminals.
_WIDTH = 56
_BARS = " ▁▂▃▄▅▆▇█"
_HERE, _LINE = "#d97a1e", "#2b6cb0"
_UNITS = {
    "registers per thread": "registers",
    "shared bytes per block": "bytes of shared memory",
    "threads per block": "threads",
}


def what_if_text(seen: WhatIf) -> Text:
    """For each curve a row of bars, a mark below the kernel's value, and the next steps."""
    from rich.text import Text

    here = seen.here
    text = Text()
    text.append(
        f"{seen.board}: {_percent(here.theoretical)} occupancy, {here.warps_per_sm} warps and "
        f"{here.blocks_per_sm} blocks per SM, limited by {here.limiter}\n",
        "bold",
    )
    limits = ", ".join(f"{name} {blocks}" for name, blocks in here.limits.items())
    text.append(f"blocks per SM that each resource allows: {limits}\n", "dim")
    for curve in seen.curves:
        bars, place = _bars(curve)
        text.append(f"\n{curve.quantity}, {curve.points[0].value:,} to ", "bold")
        text.append(f"{curve.points[-1].value:,}\n", "bold")
        text.append(f"{bars}\n", "cyan")
        label = f"here: {_value(curve, curve.here.value)}, {_percent(curve.here.theoretical)}"
        fits = place + len(f"^ {label}") <= _WIDTH
        text.append(f"{' ' * place}^ {label}\n" if fits else f"{label:>{place - 1}} ^\n", "green")
        for step in (curve.next_gain, curve.next_loss):
            if step is not None:
                text.append(f"  {_sentence(curve, step)}\n")
    return text


def boards_table(
    boards: Iterable[GpuSpec], *, registers: int, threads: int, shared_bytes: int, blocks: int
) -> Table:
    """The occupancy of one launch on each board, and its limiter; arguments as for `occupancy`."""
    resources: tuple[Limiter, ...] = ("warps", "blocks", "registers", "shared memory", "barriers")
    rows = []
    for board in boards:
        seen = occupancy(
            board,
            registers=registers,
            threads=threads,
            shared_bytes=shared_bytes,
            blocks=blocks,
        )
        cells = (
            board.name,
            _percent(seen.theoretical),
            str(seen.warps_per_sm),
            str(seen.blocks_per_sm),
            *(str(seen.limits[each]) for each in resources),
            seen.limiter,
            f"{seen.waves_per_sm:.2f}",
            _percent(seen.tail_idle),
        )
        rows.append(Row(tuple(map(Cell, cells))))
    columns = (
        Column("board", "left"),
        Column("occupancy"),
        Column("warps\nper SM", drop=1),
        Column("blocks\nper SM"),
        *(Column(f"by\n{each}", drop=2) for each in resources),
        Column("limited by", "left"),
        Column("waves"),
        Column("last wave\nidle"),
    )
    return Table(
        f"{blocks:,} blocks of {threads} threads, {registers} registers per thread, "
        f"{shared_bytes:,} bytes of shared memory per block",
        columns,
        tuple(rows),
    )


def what_if_figure(seen: WhatIf) -> Fill:
    """A function that draws the three staircases side by side."""

    def fill(figure: Figure) -> None:
        for axes, curve in zip(figure.subplots(1, 3, sharey=True), seen.curves, strict=True):
            axes.step(
                [point.value for point in curve.points],
                [100 * point.theoretical for point in curve.points],
                where="mid",
                color=_LINE,
            )
            here = curve.here.value, 100 * curve.here.theoretical
            axes.scatter(*here, color=_HERE, zorder=3)
            axes.annotate(
                "you are here",
                here,
                xytext=(0, 8),
                textcoords="offset points",
                color=INK,
                fontsize=8,
                ha="center",
            )
            axes.set_xlabel(curve.quantity)
            axes.set_ylim(0, 108)
            axes.grid()
        figure.axes[0].set_ylabel("theoretical occupancy, %")
        figure.suptitle(
            f"{seen.board}: limited by {seen.here.limiter}", color=INK, fontsize="large"
        )

    return fill


def _bars(curve: Curve) -> tuple[str, int]:
    """Bars over the curve's points, each the maximum of its part, and the kernel's column."""
    count = len(curve.points)
    width = min(_WIDTH, count)
    columns = [0.0] * width
    for place, point in enumerate(curve.points):
        column = place * width // count
        columns[column] = max(columns[column], point.theoretical)
    here = curve.points.index(curve.here) * width // count
    top = len(_BARS) - 1
    return "".join(_BARS[round(each * top)] for each in columns), here


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _value(curve: Curve, value: int) -> str:
    return f"{value:,} {_UNITS[curve.quantity]}"


def _sentence(curve: Curve, step: Step) -> str:
    """For example `at 64 registers or fewer: 50 %`."""
    near = min((step.first, step.last), key=lambda value: abs(value - curve.here.value))
    side = "or fewer" if near < curve.here.value else "or more"
    if curve.quantity == "threads per block":
        side = ""
    return f"at {_value(curve, near)}{' ' + side if side else ''}: {_percent(step.theoretical)}"
