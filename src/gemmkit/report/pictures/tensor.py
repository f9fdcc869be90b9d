"""Pictures for tensor cores: which lane holds which element, and what lies where in a swizzled
tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmkit.analysis.shared_map import SharedMap, SharedPart
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.emulator.isa.matrices import LANES, Fragment, fragments
from gemmkit.report.pictures.drawn import Picture, lane_color, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# mma.m16n8k16 with two elements of A or B in a register.
_SHAPE = 16, 16, 2
_SIDE = 8
_CHUNK_BYTES, _LINE_BYTES = 16, 128
_CHUNKS = _LINE_BYTES // _CHUNK_BYTES
# Lines of shared memory that are drawn.
_LINES = 16
_PHASE = "#c53030"
_DARK = 0.6


def fragment_picture(kernel: str) -> Picture:
    """The lanes that hold the elements of A, B and C in `mma.m16n8k16`, two to a register."""
    a, b, c = fragments(*_SHAPE)

    def fill(figure: Figure) -> None:
        grid = figure.subplots(1, 3, width_ratios=(16, 8, 8))
        for axes, name, held, down in zip(
            grid, ("A", "B", "C and D"), (a, b, c), (False, True, False), strict=True
        ):
            _draw_fragment(axes, held, down=down)
            rows, columns = held.shape
            axes.set_title(f"{name}, {rows} × {columns}: {len(held.rows)} per lane", fontsize=8)

    return Picture(f"{kernel}-fragments", fill, (9.0, 4.4))


def _draw_fragment(axes: Axes, held: Fragment, *, down: bool) -> None:
    """A cell for each pair of neighbors that a lane holds, `down` a column or along a row."""
    height, width = (2, 1) if down else (1, 2)
    for first in range(0, len(held.rows), 2):
        for lane in range(LANES):
            row, column = int(held.rows[first][lane]), int(held.columns[first][lane])
            axes.broken_barh(
                [(column + 0.05, width - 0.1)],
                (row + 0.05, height - 0.1),
                facecolor=lane_color(lane),
                clip_on=False,
            )
            place = column + width / 2, row + height / 2
            write(axes, place, str(lane), light=lane < LANES * _DARK)
    rows, columns = held.shape
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_xticks(range(0, columns + 1, _SIDE))
    axes.set_yticks(range(0, rows + 1, _SIDE))
    axes.tick_params(length=0, labelsize=7)
    axes.set_aspect("equal")


def swizzle_picture(seen: SharedMap) -> Picture:
    """The first lines of 128 bytes of the tiles of A and B in shared memory, by chunks of 16 bytes;
    those that the first phase of the first `ldmatrix` reads have a red edge."""
    first = {part.matrix: part for part in reversed(seen.parts)}
    parts = [first[matrix] for matrix in sorted(first)]

    def fill(figure: Figure) -> None:
        grid = figure.subplots(1, len(parts), squeeze=False)
        for axes, part in zip(grid[0], parts, strict=True):
            _draw_lines(axes, part)

    return Picture(f"{seen.kernel}-swizzle", fill, (9.0, 5.6))


def _draw_lines(axes: Axes, part: SharedPart) -> None:
    in_chunk = _CHUNK_BYTES // ITEM_BYTES[part.dtype]
    top, left = part.origin
    for number in range(_LINES * _CHUNKS):
        line, place = divmod(number, _CHUNKS)
        row, column = (int(each) for each in part.elements[number * in_chunk])
        chunk = (column - left) // in_chunk
        read = chunk == 0 and row - top < _SIDE
        axes.broken_barh(
            [(place + 0.05, 0.9)],
            (line + 0.08, 0.84),
            facecolor=lane_color(chunk % _CHUNKS, _CHUNKS),
            edgecolor=_PHASE if read else "none",
            linewidth=1.6 if read else 0,
            clip_on=False,
        )
        label = f"{part.matrix}[{row}][{column}]"
        write(axes, (place + 0.5, line + 0.5), label, light=chunk % _CHUNKS < _CHUNKS * _DARK)
    axes.set_xlim(0, _CHUNKS)
    axes.set_ylim(_LINES, 0)
    axes.set_xticks(range(_CHUNKS + 1), [str(4 * each) for each in range(_CHUNKS + 1)])
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=7)
    axes.set_xlabel("bank", fontsize=7)
    axes.set_title(f"{part.array}: the first {_LINES} lines of 128 bytes", fontsize=8)
