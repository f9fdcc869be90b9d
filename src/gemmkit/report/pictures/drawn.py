"""Pictures of accesses as figures: warp × address maps, banks, and a block's tiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.patterns import (
    WORDS_PER_LINE,
    WORDS_PER_SECTOR,
    Ownership,
    has_tiles,
    lines_of,
    ownership,
    phases_of,
)
from gemmkit.analysis.trace import Trace
from gemmkit.emulator.counters.rules import BANKS, LANES
from gemmkit.emulator.watching import WatchedAccess
from gemmkit.errors import UsageError
from gemmkit.report.figures import INK, Fill, save, svg
from gemmkit.report.pictures.captions import (
    access_name,
    address_caption,
    bank_caption,
    element_name,
    owner_caption,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 9.0
_ROW_HEIGHT, _HEAD_HEIGHT = 0.2, 0.75
_MAX_LINES = 8
_MAP, _MAP_END = "viridis", 0.85
_CONFLICT = "#c53030"
_SMALL = 6
_FILE_NAME = str.maketrans(":,", "--")

# A row of a map: its label, and the lane shown in each of 32 cells, or None.
_Cells = list[int | None]
# Top, left, height and width.
_Rectangle = tuple[int, int, int, int]


class Picture:
    """A figure with its size in inches; `name` is the file name without suffix."""

    def __init__(self, name: str, fill: Fill, size: tuple[float, float]) -> None:
        self.name, self._fill, self._size = name, fill, size

    def to_svg(self) -> str:
        """The SVG text; equal pictures give equal text."""
        return svg(self._fill, self._size)

    def save(self, folder: Path, form: str = "svg") -> Path:
        """Write it as SVG or PNG and return the file's path.

        Raises:
            UsageError: the format is another, or the file cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create the folder {folder}: {error.strerror}") from error
        # Labels of configurations contain characters that some file systems do not allow.
        path = folder / f"{self.name.translate(_FILE_NAME)}.{form}"
        save(path, self._fill, self._size)
        return path


def pictures(trace: Trace) -> tuple[Picture, ...]:
    """All pictures of a trace: addresses and banks, where threads access memory that has these, and
    tiles, where the block stores its tile of C itself."""
    accesses = trace.representatives()
    found = [
        picture(trace, own)
        for picture, space in ((address_picture, "global"), (bank_picture, "shared"))
        if (own := [each for each in accesses if each.space == space])
    ]
    if has_tiles(trace):
        found.append(tile_picture(trace))
    return tuple(found)


def address_picture(trace: Trace, accesses: Sequence[WatchedAccess]) -> Picture:
    """For each access, the cache lines that warp 0 accesses, with the lane of each word."""
    rows = [min(len(lines_of(access)), _MAX_LINES) for access in accesses]

    def fill(figure: Figure) -> None:
        for axes, access, count in zip(_stack(figure, rows), accesses, rows, strict=True):
            lines = lines_of(access)
            more = f"; the first {count} lines are shown" if len(lines) > count else ""
            _title(axes, access_name(access), address_caption(access) + more)
            active = sum(offset is not None for offset in access.offsets)
            for number, line in enumerate(lines[:count]):
                cells = [lanes[0] if lanes else None for lanes in line.words]
                everyone = any(len(lanes) == active > 1 for lanes in line.words)
                _draw_sectors(axes, number, cells)
                _draw_cells(axes, number, cells, text="all" if everyone else None)
            labels = [element_name(trace, access, line.offset) for line in lines[:count]]
            _frame(axes, labels, every=WORDS_PER_SECTOR)

    return Picture(f"{trace.kernel}-addresses", fill, _size(rows))


def bank_picture(trace: Trace, accesses: Sequence[WatchedAccess]) -> Picture:
    """For each access, the lanes that each of the 32 banks serves, phase by phase."""
    rows = [sum(phase.wavefronts for phase in phases_of(access)) for access in accesses]

    def fill(figure: Figure) -> None:
        for axes, access in zip(_stack(figure, rows), accesses, strict=True):
            _title(axes, access_name(access), bank_caption(access))
            labels: list[str] = []
            for number, phase in enumerate(phases_of(access)):
                for depth in range(phase.wavefronts):
                    cells = [w[depth][0] if depth < len(w) else None for w in phase.banks]
                    everyone = any(len(each) == phase.lanes > 1 for w in phase.banks for each in w)
                    _draw_cells(
                        axes,
                        len(labels),
                        cells,
                        text="all" if everyone else None,
                        edge=_CONFLICT if depth else None,
                    )
                    labels.append("" if depth else f"phase {number}")
            _frame(axes, labels, every=4)
        axes.set_xlabel("bank; red edge: bank conflict, an additional wavefront")

    return Picture(f"{trace.kernel}-banks", fill, _size(rows))


def tile_picture(trace: Trace) -> Picture:
    """The block's tile of C with those of A and B beside it, by warp and by thread of warp 0."""
    owned = {array: ownership(trace, array) for array in "ABC"}

    def fill(figure: Figure) -> None:
        depth = 0.3
        grid = figure.subplots(
            2, 2, width_ratios=(depth, 1), height_ratios=(depth, 1), squeeze=True
        )
        grid[0][0].set_axis_off()
        for axes, array in ((grid[0][1], "B"), (grid[1][0], "A"), (grid[1][1], "C")):
            _draw_tile(axes, owned[array], trace.warps)
        figure.suptitle(f"{trace.kernel}, one block: one color per warp, and the lanes of warp 0")

    return Picture(f"{trace.kernel}-tiles", fill, (_WIDTH, _WIDTH))


def _size(rows: Sequence[int]) -> tuple[float, float]:
    return _WIDTH, sum(_ROW_HEIGHT * count + _HEAD_HEIGHT for count in rows)


def _stack(figure: Figure, rows: Sequence[int]) -> list[Axes]:
    ratios = [_ROW_HEIGHT * count + _HEAD_HEIGHT / 2 for count in rows]
    axes: NDArray[Any] = figure.subplots(len(rows), 1, height_ratios=ratios, squeeze=False)
    return list(axes[:, 0])


def _title(axes: Axes, name: str, caption: str) -> None:
    axes.set_title(f"{name}\n{caption}", fontsize=9, loc="left")


def _frame(axes: Axes, labels: Sequence[str], *, every: int) -> None:
    axes.set_xlim(0, WORDS_PER_LINE)
    axes.set_ylim(len(labels), 0)
    axes.set_yticks([number + 0.5 for number in range(len(labels))], labels, fontsize=_SMALL + 1)
    axes.set_xticks(range(0, BANKS + 1, every))
    axes.tick_params(length=0, labelsize=_SMALL + 1)
    axes.grid(axis="x", alpha=0.6)
    axes.set_axisbelow(False)


def _draw_sectors(axes: Axes, row: int, cells: _Cells) -> None:
    """A gray background for each sector that is moved."""
    bars = [
        (start, WORDS_PER_SECTOR)
        for start in range(0, len(cells), WORDS_PER_SECTOR)
        if any(lane is not None for lane in cells[start : start + WORDS_PER_SECTOR])
    ]
    axes.broken_barh(bars, (row + 0.05, 0.9), facecolor=INK, alpha=0.35, clip_on=False)


def _draw_cells(
    axes: Axes, row: int, cells: _Cells, *, text: str | None = None, edge: str | None = None
) -> None:
    """A colored bar per contiguous range of words of one lane, labeled with the lane or `text`."""
    for start, length, lane in _runs(cells):
        axes.broken_barh(
            [(start + 0.05, length - 0.1)],
            (row + 0.1, 0.8),
            facecolor=INK if text else lane_color(lane),
            edgecolor=edge or "none",
            linewidth=1.2 if edge else 0,
            clip_on=False,
        )
        place = start + length / 2, row + 0.5
        write(axes, place, text or str(lane), light=not text and lane < LANES * 0.6)


def write(axes: Axes, place: tuple[float, float], text: str, *, light: bool) -> None:
    """A label in the middle of a cell."""
    color = "white" if light else "black"
    axes.text(*place, text, ha="center", va="center", fontsize=_SMALL, color=color)


def _runs(cells: _Cells) -> Iterator[tuple[int, int, int]]:
    """Start, length and lane of each contiguous range of cells of one lane."""
    start = 0
    for place in range(1, len(cells) + 1):
        if place == len(cells) or cells[place] != cells[start]:
            lane = cells[start]
            if lane is not None:
                yield start, place - start, lane
            start = place


def lane_color(lane: int, of: int = LANES) -> Any:
    """The color of a lane, or of a number out of `of`."""
    import matplotlib as mpl

    return mpl.colormaps[_MAP](_MAP_END * lane / max(of - 1, 1))


def _draw_tile(axes: Axes, owned: Ownership, warps: int) -> None:
    """Rectangles for the elements of each warp, and for those of each thread of warp 0."""
    rows, cols = owned.threads.shape
    pieces: defaultdict[int, list[_Rectangle]] = defaultdict(list)
    for piece, warp in _rectangles(owned.threads // LANES):
        pieces[warp].append(piece)
    for warp in sorted(set(pieces) - {-1}):
        _draw_rectangles(axes, pieces[warp], facecolor=lane_color(warp, warps), alpha=0.55)
    first = np.where((owned.threads >= 0) & (owned.threads < LANES), owned.threads, -1)
    lanes = [(piece, lane) for piece, lane in _rectangles(first) if lane >= 0]
    outline = [piece for piece, _ in lanes]
    _draw_rectangles(axes, outline, facecolor="none", edgecolor="black", linewidth=0.4)
    numbered: set[int] = set()
    for (top, left, height, width), lane in lanes:
        if width * 50 >= cols and height * 70 >= rows and lane not in numbered:
            numbered.add(lane)
            write(axes, (left + width / 2, top + height / 2), str(lane), light=False)
    axes.set_xlim(0, cols)
    axes.set_ylim(rows, 0)
    axes.tick_params(labelsize=_SMALL + 1)
    axes.set_title(owner_caption(owned), fontsize=8, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def _draw_rectangles(axes: Axes, rectangles: Sequence[_Rectangle], **style: Any) -> None:
    """One path for all, which keeps the file small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    corners = [
        Outline(
            [
                (left, top),
                (left + width, top),
                (left + width, top + height),
                (left, top + height),
                (left, top),
            ],
            closed=True,
        )
        for top, left, height, width in rectangles
    ]
    if corners:
        style = {"linewidth": 0, "clip_on": False} | style
        axes.add_patch(PathPatch(Outline.make_compound_path(*corners), **style))


def _rectangles(values: NDArray[np.int64]) -> Iterator[tuple[_Rectangle, int]]:
    """Rectangles of equal values that cover an array, and their values."""
    left = np.ones(values.shape, bool)
    for top, start in np.ndindex(*values.shape):
        if not left[top, start]:
            continue
        value = values[top, start]
        width = 1
        while (
            start + width < values.shape[1]
            and left[top, start + width]
            and (values[top, start + width] == value)
        ):
            width += 1
        height = 1
        while (
            top + height < values.shape[0]
            and (values[top + height, start : start + width] == value).all()
            and left[top + height, start : start + width].all()
        ):
            height += 1
        left[top : top + height, start : start + width] = False
        yield (top, start, height, width), int(value)
