"""`Raster`: the order in which blocks take tiles of C, and what each wave of blocks reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.occupancy import Occupancy
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import ceil_div
from gemmkit.problem import GemmProblem

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rule:
    """An order of tiles: groups of `height` rows of tiles, each column by column.

    With `across` it is groups of so many columns, each row by row. A height of 1 is row by row.
    """

    height: int
    across: bool = False

    def order(self, tile_rows: int, tile_columns: int) -> Ints:
        """The tile of each block in turn, counted row by row."""
        if self.across:
            straight = Rule(self.height).order(tile_columns, tile_rows)
            return straight % tile_rows * tile_columns + straight // tile_rows
        block = np.arange(tile_rows * tile_columns)
        first = block // (self.height * tile_columns) * self.height
        high = np.minimum(self.height, tile_rows - first)
        within = block - first * tile_columns
        tiles: Ints = (first + within % high) * tile_columns + within // high
        return tiles


@dataclass(frozen=True, slots=True)
class Wave:
    """Blocks that can be resident at once: `count` from number `first` on.

    Bytes of A and B are distinct ones; `by_rows` and `square` are those of both if the tiles were
    taken row by row, and if they formed the rectangle that reads least.
    """

    first: int
    count: int
    a_bytes: int
    b_bytes: int
    by_rows: int
    square: int


@dataclass(frozen=True, slots=True, eq=False)
class Raster:
    """Which tile of C each block takes.

    Tiles have `rows` × `columns` elements. `order` has the tile of each block, counted row by row;
    each of the grid's `parts` layers takes a part of k in that order. Where blocks have several
    tiles each, it has the first ones of `together` blocks, then their second ones, and so on; else
    that is 0. `ran` blocks showed it, `rule` says it where there is one. `problem` is the part of
    the product that whole tiles cover.
    """

    kernel: str
    problem: GemmProblem
    rows: int
    columns: int
    order: Ints
    parts: int
    rule: Rule | None
    ran: int
    together: int = 0

    @property
    def tile_rows(self) -> int:
        """Rows of tiles."""
        return ceil_div(self.problem.m, self.rows)

    @property
    def tile_columns(self) -> int:
        """Columns of tiles."""
        return ceil_div(self.problem.n, self.columns)

    def waves(self, resident: int) -> Iterator[Wave]:
        """What each wave of so many blocks reads; of blocks with several tiles each, what they read
        for a tile of each."""
        resident = self.together or resident
        blocks = self.parts * len(self.order)
        by_rows = np.arange(len(self.order))
        for first in range(0, blocks, resident):
            numbers = np.arange(first, min(first + resident, blocks))
            a_bytes, b_bytes = self._read(self.order, numbers)
            yield Wave(
                first=first,
                count=len(numbers),
                a_bytes=a_bytes,
                b_bytes=b_bytes,
                by_rows=sum(self._read(by_rows, numbers)),
                square=self._least(len(numbers)),
            )

    def _read(self, order: Ints, numbers: Ints) -> tuple[int, int]:
        """Distinct bytes of A and B that some blocks read."""
        layers, within = np.divmod(numbers, len(order))
        rows, columns = np.divmod(order[within], self.tile_columns)
        extents = (self.problem.m, self.rows, rows), (self.problem.n, self.columns, columns)
        found = []
        for extent, size, tiles in extents:
            _, some = np.divmod(np.unique(layers * (extent + 1) + tiles), extent + 1)
            found.append(int(np.minimum(size, extent - some * size).sum()))
        a, b = (self._bytes(each) for each in found)
        return a, b

    def _bytes(self, lines: int) -> int:
        """Bytes of so many rows of A or columns of B, over the k of a layer."""
        return round(lines * self.problem.k * self.problem.item_bytes / self.parts)

    def _least(self, blocks: int) -> int:
        """Bytes of the rectangle of tiles that reads least."""
        blocks = min(blocks, len(self.order))
        sizes = (
            (high, ceil_div(blocks, high))
            for high in range(1, min(blocks, self.tile_rows) + 1)
            if ceil_div(blocks, high) <= self.tile_columns
        )
        lines = min(
            min(high * self.rows, self.problem.m) + min(wide * self.columns, self.problem.n)
            for high, wide in sizes
        )
        return self._bytes(lines)


def resident_blocks(occupied: Occupancy, gpu: GpuSpec) -> int:
    """Blocks that the board holds at once."""
    return occupied.blocks_per_sm * gpu.sm_count


def words_of(rule: Rule | None, tile_rows: int) -> str:
    """An order in words."""
    if rule is None:
        return "in an order of its own"
    if rule.height == 1:
        return "row by row"
    if not rule.across and rule.height >= tile_rows:
        return "column by column"
    lines, each = ("columns", "row") if rule.across else ("rows", "column")
    return f"in groups of {rule.height} {lines} of tiles, {each} by {each} in each"
