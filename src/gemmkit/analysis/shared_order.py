"""The order of a tile in shared memory: rows or columns, padding, swizzle, and banks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.counters.rules import BANKS, WORD_BYTES

Ints = NDArray[np.int64]

Swizzle = Literal["", "XOR", "rotated", "permuted"]


@dataclass(frozen=True, slots=True)
class Order:
    """How a tile lies in shared memory.

    `major` says what is contiguous: a row or a column of the matrix, or neither if no order was
    recognized. With `interleaved` more than 1, so many of them make one line, an element of each in
    turn. There are `lines`, `pitch` elements apart, of which `padding` hold no element of
    the line. With a
    swizzle, chunks of `chunk` elements change places within a line: their numbers are XORed with,
    or rotated by, a number that repeats every `period` lines. `column_banks` and `row_banks` are
    the banks that hold the first elements of a column or row, up to 32 of them, and how many these
    elements are.
    """

    major: Literal["row", "column", "neither"]
    interleaved: int
    lines: int
    pitch: int
    padding: int
    swizzle: Swizzle
    chunk: int
    period: int
    column_banks: tuple[int, int]
    row_banks: tuple[int, int]


def order_of(elements: Ints, places: Ints, item_bytes: int) -> Order:
    """The order of a tile.

    Args:
        elements: row and column of each element.
        places: where it lies, counted in elements from the start of shared memory's array.
        item_bytes: bytes of an element.
    """
    grid = _grid(elements, places)
    banks = tuple(_banks(line, item_bytes) for line in (grid[:, 0], grid[0]))
    for together in (1, 2, 4):
        for major, straight in (("row", grid), ("column", grid.T)):
            if len(straight) % together:
                continue
            lines = _interleaved(straight, together)
            found = _lines(lines)
            if found is not None:
                pitch, swizzle, chunk, period = found
                return Order(
                    "row" if major == "row" else "column",
                    together,
                    len(lines),
                    pitch,
                    pitch - lines.shape[1],
                    swizzle,
                    chunk,
                    period,
                    *banks,
                )
    return Order("neither", 1, 1, int(np.ptp(places)) + 1, 0, "", 0, 0, *banks)


def _interleaved(grid: Ints, together: int) -> Ints:
    """The grid with so many lines as one, their elements in turn."""
    apart = grid.reshape(-1, together, grid.shape[1])
    return apart.transpose(0, 2, 1).reshape(len(apart), -1)


def _grid(elements: Ints, places: Ints) -> Ints:
    """The place of each element by row and column of the tile; -1 for one that is not there."""
    (row, column), (last_row, last_column) = elements.min(axis=0), elements.max(axis=0)
    grid = np.full((last_row - row + 1, last_column - column + 1), -1, np.int64)
    # Of an element that is there twice, the first place.
    grid[elements[::-1, 0] - row, elements[::-1, 1] - column] = places[::-1]
    return grid


def _banks(line: Ints, item_bytes: int) -> tuple[int, int]:
    some = line[line >= 0][:BANKS]
    return len(np.unique(some * item_bytes // WORD_BYTES % BANKS)), len(some)


def _lines(grid: Ints) -> tuple[int, Swizzle, int, int] | None:
    """Pitch and swizzle if each line of the grid lies in a run of its own, else None."""
    if (grid < 0).any() or grid.shape[1] == 1 < grid.shape[0]:
        return None
    starts = grid.min(axis=1)
    pitches = np.unique(np.diff(starts)) if len(starts) > 1 else np.array([grid.shape[1]])
    within = grid - starts[:, None]
    if len(pitches) != 1 or pitches[0] < grid.shape[1] or within.max() >= pitches[0]:
        return None
    pitch = int(pitches[0])
    if (within == np.arange(grid.shape[1])).all():
        return pitch, "", 0, 0
    return (pitch, *_swizzle(within))


def _swizzle(within: Ints) -> tuple[Swizzle, int, int]:
    """What changes the order within lines: its kind, the elements of a chunk, and its period."""
    wide = within.shape[1]
    chunk = 1
    while wide % (2 * chunk) == 0 and _keeps(within, 2 * chunk):
        chunk *= 2
    moved, numbers = within[:, ::chunk] // chunk, np.arange(wide // chunk)
    kinds: tuple[tuple[Swizzle, Ints], ...] = (
        ("XOR", moved ^ numbers),
        ("rotated", (moved - numbers) % len(numbers)),
    )
    for kind, shifts in kinds:
        if (shifts == shifts[:, :1]).all():
            return kind, chunk, _period(shifts[:, :1])
    return "permuted", chunk, _period(moved)


def _keeps(within: Ints, chunk: int) -> bool:
    """Whether chunks of so many elements stay together, and begin where a chunk can."""
    chunks = within.reshape(len(within), -1, chunk)
    together = chunks - chunks[..., :1] == np.arange(chunk)
    return bool(together.all() and not (chunks[..., 0] % chunk).any())


def _period(lines: Ints) -> int:
    return next(
        each
        for each in range(1, len(lines) + 1)
        if (lines[each:] == lines[: len(lines) - each]).all()
    )
