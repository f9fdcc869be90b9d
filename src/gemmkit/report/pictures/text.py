"""Pictures of accesses as colored text, readable without the colors."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from gemmkit.analysis.patterns import (
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
from gemmkit.report.pictures.captions import (
    access_name,
    address_caption,
    bank_caption,
    element_name,
    owner_caption,
)

if TYPE_CHECKING:
    from rich.text import Text

_MAX_LINES = 6
_MAX_TILE, _MAX_DEPTH = 32, 8
# One color per eight lanes.
_COLORS = ("green", "cyan", "blue", "magenta")
_UNUSED, _CONFLICT, _OTHER_WARP = "dim", "bold red", "dim"
_WARP_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_CELL = 3


def address_map(trace: Trace, access: WatchedAccess) -> Text:
    """The 128-byte lines that a request accesses; a number is the lane that accesses the word.

    `··` is a word that is moved but not requested, `##` one that all active lanes request.
    """
    from rich.text import Text

    text = Text(f"{access_name(access)}\n", "bold")
    text.append(f"{address_caption(access)}\n", "default")
    lines = lines_of(access)
    labels = [element_name(trace, access, line.offset) for line in lines]
    width = max(map(len, labels[:_MAX_LINES]))
    active = sum(offset is not None for offset in access.offsets)
    for label, line in zip(labels[:_MAX_LINES], lines, strict=False):
        text.append(f"{label:>{width}} ")
        for first in range(0, len(line.words), WORDS_PER_SECTOR):
            text.append("│", "dim")
            sector = line.words[first : first + WORDS_PER_SECTOR]
            for lanes in sector:
                _append_lanes(text, lanes, moved=any(sector), everyone=active)
        text.append("│\n", "dim")
    if len(lines) > _MAX_LINES:
        text.append(f"{'':{width}}  and {len(lines) - _MAX_LINES} more lines\n", "dim")
    return text


def _append_lanes(text: Text, lanes: tuple[int, ...], *, moved: bool, everyone: int) -> None:
    if not lanes:
        text.append("··".rjust(_CELL) if moved else " " * _CELL, _UNUSED)
    elif len(lanes) == everyone > 1:
        text.append("##".rjust(_CELL), "bold")
    else:
        text.append(f"{lanes[0]:>{_CELL}}", _lane_color(lanes[0]))


def _lane_color(lane: int) -> str:
    return _COLORS[lane % LANES * len(_COLORS) // LANES]


def bank_map(access: WatchedAccess) -> Text:
    """The 32 banks and the lanes that each serves; a second row of a phase is a second wavefront.

    Of the lanes that read one word, the first is shown, or `##` if all lanes of the phase do.
    """
    from rich.text import Text

    text = Text(f"{access_name(access)}\n", "bold")
    text.append(f"{bank_caption(access)}\n", "default")
    text.append("bank     " + "".join(f"{bank:>{_CELL}}" for bank in range(BANKS)) + "\n", "dim")
    for number, phase in enumerate(phases_of(access)):
        for depth in range(phase.wavefronts):
            text.append(f"{f'phase {number}' if depth == 0 else '':9}")
            for words in phase.banks:
                lanes = words[depth] if depth < len(words) else ()
                everyone = len(lanes) == phase.lanes > 1
                shown = "##" if everyone else f"{lanes[0]}" if lanes else ""
                color = _CONFLICT if depth else _lane_color(lanes[0]) if lanes else ""
                text.append(f"{shown:>{_CELL}}", color)
            text.append("\n")
    return text


def tile_map(trace: Trace) -> Text:
    """The block's tile of C, with A to its left and B above it: the thread map.

    A number is a lane of warp 0, a letter another warp. A cell stands for several elements where
    a tile is larger than 32 × 32 (8 along k), and shows the thread of the first.
    """
    from rich.text import Text

    a, b, c = (ownership(trace, array) for array in "ABC")
    left = _cells(a, _MAX_TILE, _MAX_DEPTH)
    above = _cells(b, _MAX_DEPTH, _MAX_TILE)
    tile = _cells(c, _MAX_TILE, _MAX_TILE)
    gap = _CELL * max(len(left[0]), _MAX_DEPTH) + 1
    text = Text(f"{'':{gap}}{owner_caption(b)}\n", "bold")
    for row in above:
        text.append(" " * gap)
        _append_cells(text, row)
    text.append(f"\n{owner_caption(a)}\n{'':{gap}}{owner_caption(c)}\n", "bold")
    for number in range(max(len(left), len(tile))):
        beside = left[number] if number < len(left) else []
        _append_cells(text, beside, end=" " * (gap - _CELL * len(beside) + bool(beside)))
        _append_cells(text, tile[number] if number < len(tile) else [])
    return text


def _cells(owned: Ownership, rows: int, cols: int) -> list[list[int]]:
    """The threads of a tile, in every n-th row and column, to limit its size."""
    limits = zip(owned.threads.shape, (rows, cols), strict=True)
    step_row, step_col = (-(-extent // limit) for extent, limit in limits)
    cells: list[list[int]] = owned.threads[::step_row, ::step_col].tolist()
    return cells


def _append_cells(text: Text, threads: list[int], end: str = "\n") -> None:
    for number, thread in enumerate(threads):
        warp, lane = divmod(thread, LANES)
        text.append(" " if number else "")
        if thread < 0:
            text.append("  ")
        elif warp == 0:
            text.append(f"{lane:>2}", _lane_color(lane))
        else:
            text.append(f"{_WARP_LETTERS[warp - 1]:>2}", _OTHER_WARP)
    text.append(end)


def text_pictures(trace: Trace) -> list[Text]:
    """All pictures of a trace: each access of warp 0, then the tiles (where the block stores its
    tile of C itself)."""
    accesses = trace.representatives()
    maps = [address_map(trace, each) for each in accesses if each.space == "global"]
    return [
        *maps,
        *(bank_map(each) for each in accesses if each.space == "shared"),
        *([tile_map(trace)] if has_tiles(trace) else []),
    ]
