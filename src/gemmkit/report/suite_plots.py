"""Plots of suites: speed by size with the ratio below it, and wave quantization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gemmkit.bench.peers import CUBLAS, DEFAULT
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.plan import ceil_div
from gemmkit.record import Record
from gemmkit.report.comparison import find_peer
from gemmkit.report.figures import COLORS, INK, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TRITON, _OURS, _CUBLAS, _TORCH, _PICKED, *_ = COLORS
_SWEEP_SIZE = (8.0, 6.0)
# The tile of cuBLAS's kernel for large fp32 products on Hopper.
_LARGE_TILE = (256, 128)

_Speed = Callable[[Record], float | None]


def _peer(library: str, choice: str | None = None) -> _Speed:
    def speed(record: Record) -> float | None:
        entry = find_peer(record, library, choice)
        return entry.tflops if entry is not None else None

    return speed


# Label, color, line style, marker, its size and speed of each line. Libraries often run the same
# kernel: markers are hollow and of several sizes, so that one line shows through another.
_LINES: tuple[tuple[str, str, str, str, float, _Speed], ...] = (
    ("gemmkit", _OURS, "-", "o", 4, lambda record: record.tflops),
    ("cuBLAS, best", _CUBLAS, "-", "D", 4, _peer(CUBLAS)),
    ("cuBLAS, as it picks", _PICKED, ":", "x", 6, _peer(CUBLAS, DEFAULT)),
    ("PyTorch", _TORCH, "--", "s", 9, _peer("torch")),
    ("Triton", _TRITON, "-", "^", 5, _peer("triton")),
)
_STEP = 512


def size_sweep_svg(records: Sequence[Record]) -> str:
    """TFLOP/s of gemmkit and its peers over M, and below that gemmkit's ratio to cuBLAS."""
    return svg(lambda figure: _size_sweep(figure, records), _SWEEP_SIZE)


def waves_svg(records: Sequence[Record]) -> str:
    """TFLOP/s over M = N in small steps, with the bound by waves of one large tile."""
    return svg(lambda figure: _waves(figure, records))


def _size_sweep(figure: Figure, records: Sequence[Record]) -> None:
    speeds, ratios = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 1)})
    _lines(speeds, records)
    compared = [each for each in records if each.ratio_to_cublas is not None]
    sizes = [each.problem.m for each in compared]
    values = [each.ratio_to_cublas for each in compared]
    ratios.plot(sizes, values, color=_OURS, marker="o", markersize=3)
    ratios.axhline(1.0, color=INK, linewidth=0.8)
    ticks = sorted({each.problem.m for each in records})
    ratios.set_xscale("log", base=2)
    ratios.set_xticks(ticks, [str(each) for each in ticks], rotation=60)
    ratios.minorticks_off()
    cube = all(each.problem.k == each.problem.m for each in records)
    ratios.set_xlabel("M = N = K" if cube else f"M = N, K = {records[0].problem.k}")
    ratios.set_ylabel("× cuBLAS, best")
    ratios.grid()
    speeds.set_ylabel(f"TFLOP/s ({records[0].problem.types})")
    speeds.set_title(records[0].device.gpu)
    speeds.grid()
    figure.legend(loc="outside right center")


def _waves(figure: Figure, records: Sequence[Record]) -> None:
    axes = figure.subplots()
    points = _ceiling(records)
    if points:
        rows, columns = _LARGE_TILE
        axes.plot(
            *zip(*points, strict=True),
            color=INK,
            linestyle="-.",
            label=f"peak × whole waves\nof {rows}x{columns} tiles",
        )
    _lines(axes, records, markers=False)
    sizes = sorted({each.problem.m for each in records})
    # Sizes that were measured; all of them would not fit.
    axes.set_xticks([each for each in sizes if not each % _STEP] or sizes)
    axes.set_xlabel(f"M = N, K = {records[0].problem.k}")
    axes.set_ylabel(f"TFLOP/s ({records[0].problem.types})")
    axes.set_title(records[0].device.gpu)
    axes.set_ylim(bottom=0)
    axes.grid()
    figure.legend(loc="outside right center")


def _lines(axes: Any, records: Sequence[Record], *, markers: bool = True) -> None:
    for label, color, style, marker, size, speed in _LINES:
        points = list(_points(records, speed))
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=color,
                linestyle=style,
                marker=marker if markers else "",
                markersize=size,
                markerfacecolor="none",
                label=label,
            )


def _points(records: Iterable[Record], speed: _Speed) -> Iterable[tuple[int, float]]:
    for record in sorted(records, key=lambda each: each.problem.m):
        value = speed(record)
        if value is not None:
            yield record.problem.m, value


def _ceiling(records: Sequence[Record]) -> list[tuple[int, float]]:
    """The peak × the share of whole waves of tiles that the problem fills."""
    try:
        board = find_board(records[0].device.gpu)
    except UsageError:
        return []
    rows, columns = _LARGE_TILE

    def speed(record: Record) -> float:
        m, n = record.problem.m, record.problem.n
        rounds = ceil_div(ceil_div(m, rows) * ceil_div(n, columns), board.sm_count)
        return board.peak_tflops * m * n / (rounds * board.sm_count * rows * columns)

    return list(_points(records, speed))
