"""Pictures of accesses as colored text, readable without the colors."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gemmkit.analysis.patterns import (
    WORDS_PER_SECTOR,
    Ownership,
    Phase,
    has_tiles,
    lines_of,
    ownership,
    phases_of,
)
from gemmkit.analysis.trace import Trace
from gemmkit.emulator.counters.rules import BANKS, LANES
from gemmkit.emulator.watching import WatchedAccess
from gemmkit.report.layout import fitted
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
# Rows and columns of a tile in a picture, and those along k, the largest that fit are drawn.
_TILES = ((32, 8), (16, 8), (16, 4), (8, 4))
# One color per eight lanes.
_COLORS = ("green", "cyan", "blue", "magenta")
_UNUSED, _CONFLICT, _OTHER_WARP = "dim", "bold red", "dim"
_WARP_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_CELL = 3
# The column of the phases, left of the banks.
_PHASE = 9


def address_map(trace: Trace, access: WatchedAccess, width: int | None = None) -> Text:
    """The 128-byte lines that a request accesses; a number is the lane that accesses the word.

    `··` is a word that is moved but not requested, `##` one that all active lanes request. Where
    a line does not fit `width` characters, it takes two rows of two sectors, or four.
    """
    text = _captions(access_name(access), address_caption(access), width)
    lines = lines_of(access)
    shown = lines[:_MAX_LINES]
    labels = [element_name(trace, access, line.offset) for line in shown]
    margin = max(map(len, labels))
    active = sum(offset is not None for offset in access.offsets)
    sector = 1 + WORDS_PER_SECTOR * _CELL
    in_line = len(lines[0].words) // WORDS_PER_SECTOR
    in_row = _fitting(in_line, lambda count: margin + 2 + count * sector, width)
    for label, line in zip(labels, shown, strict=True):
        for first in range(0, in_line, in_row):
            text.append(f"{'' if first else label:>{margin}} ")
            for number in range(first, first + in_row):
                text.append("│", "dim")
                words = line.words[WORDS_PER_SECTOR * number : WORDS_PER_SECTOR * (number + 1)]
                for lanes in words:
                    _append_lanes(text, lanes, moved=any(words), everyone=active)
            text.append("│\n", "dim")
    if len(lines) > _MAX_LINES:
        text.append(f"{'':{margin}}  and {len(lines) - _MAX_LINES} more lines\n", "dim")
    return text


def _fitting(whole: int, needed: Callable[[int], int], width: int | None) -> int:
    """The largest of `whole`, its half, its quarter … that needs at most `width` characters."""
    count = whole
    while width is not None and count > 1 and needed(count) > width:
        count //= 2
    return count


def _captions(name: str, caption: str, width: int | None) -> Text:
    from rich.text import Text

    text = Text(f"{name}\n", "bold")
    text.append(f"{caption}\n", "default")
    return text if width is None else fitted(text, width)


def _append_lanes(text: Text, lanes: tuple[int, ...], *, moved: bool, everyone: int) -> None:
    if not lanes:
        text.append("··".rjust(_CELL) if moved else " " * _CELL, _UNUSED)
    elif len(lanes) == everyone > 1:
        text.append("##".rjust(_CELL), "bold")
    else:
        text.append(f"{lanes[0]:>{_CELL}}", _lane_color(lanes[0]))


def _lane_color(lane: int) -> str:
    return _COLORS[lane % LANES * len(_COLORS) // LANES]


def bank_map(access: WatchedAccess, width: int | None = None) -> Text:
    """The 32 banks and the lanes that each serves; a second row of a phase is a second wavefront.

    Of the lanes that read one word, the first is shown, or `##` if all lanes of the phase do.
    Banks that do not fit `width` characters are shown below the others.
    """
    text = _captions(access_name(access), bank_caption(access), width)
    count = _fitting(BANKS, lambda banks: _PHASE + banks * _CELL, width)
    for first in range(0, BANKS, count):
        _append_banks(text, phases_of(access), range(first, first + count))
    return text


def _append_banks(text: Text, phases: Sequence[Phase], banks: range) -> None:
    numbers = "".join(f"{bank:>{_CELL}}" for bank in banks)
    text.append(f"{'bank':{_PHASE}}{numbers}\n", "dim")
    for number, phase in enumerate(phases):
        for depth in range(phase.wavefronts):
            text.append(f"{f'phase {number}' if depth == 0 else '':{_PHASE}}")
            for bank in banks:
                words = phase.banks[bank]
                lanes = words[depth] if depth < len(words) else ()
                everyone = len(lanes) == phase.lanes > 1
                shown = "##" if everyone else f"{lanes[0]}" if lanes else ""
                color = _CONFLICT if depth else _lane_color(lanes[0]) if lanes else ""
                text.append(f"{shown:>{_CELL}}", color)
            text.append("\n")


def tile_map(trace: Trace, width: int | None = None) -> Text:
    """The block's tile of C, with A to its left and B above it: the thread map.

    A number is a lane of warp 0, a letter another warp. A cell stands for several elements where
    a tile is larger than 32 × 32 (8 along k), or than fits `width` characters, and shows the thread
    of the first.
    """
    from rich.text import Text

    a, b, c = (ownership(trace, array) for array in "ABC")
    for most, depth in _TILES:
        left, above, tile = _cells(a, most, depth), _cells(b, depth, most), _cells(c, most, most)
        gap = _CELL * max(len(left[0]), depth) + 1
        if width is None or gap + _CELL * max(len(above[0]), len(tile[0])) - 1 <= width:
            break
    indent = gap if width is None else min(gap, max(width - len(owner_caption(b)), 0))
    text = Text(f"{'':{indent}}{owner_caption(b)}\n", "bold")
    for row in above:
        text.append(" " * gap)
        _append_cells(text, row)
    text.append(f"\n{owner_caption(a)}\n{'':{indent}}{owner_caption(c)}\n", "bold")
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


def text_pictures(trace: Trace, width: int | None = None) -> list[Text]:
    """All pictures of a trace, in lines of `width` characters: each access of warp 0, then the
    tiles (where the block stores its tile of C itself)."""
    accesses = trace.representatives()
    maps = [address_map(trace, each, width) for each in accesses if each.space == "global"]
    return [
        *maps,
        *(bank_map(each, width) for each in accesses if each.space == "shared"),
        *([tile_map(trace, width)] if has_tiles(trace) else []),
    ]
