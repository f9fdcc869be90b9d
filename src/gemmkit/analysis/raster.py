"""`Raster`: the order in which blocks take tiles of C, and what each wave of blocks reads.

A kernel's order is in its code. It is found from emulated blocks: each runs alone on the launch's
own grid, with a shallow k, and the tile of C that it stores is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.occupancy import Occupancy
from gemmkit.analysis.trace import Trace
from gemmkit.devices.device import Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.errors import DeviceError
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig, ceil_div, names_in
from gemmkit.problem import GemmProblem
from gemmkit.verify.encoding import encode

Ints = NDArray[np.int64]

# Of a larger grid, some blocks run, as many as this many multiply-adds allow; it takes about half a
# second.
_BUDGET, _FEWEST, _MOST = 2e8, 48, 256
# An order without a rule is known only if all blocks run, up to this many.
_MOST_TILES = 1 << 18
# Depths: for gemmkit's own kernels, which take any k, and for a user's.
_DEPTH, _USERS_DEPTH = 16, 64
_MOST_BYTES = 1 << 29
# Of a block, far more than a tile needs with a shallow k.
_STEPS = 50_000_000
# What C holds before: as the other operands are NaN, no result is that.
_MARK = -1.0


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
    each of the grid's `parts` layers takes a part of k in that order. `ran` blocks showed it,
    `rule` says it where there is one. `problem` is the part of the product that whole tiles cover.
    """

    kernel: str
    problem: GemmProblem
    rows: int
    columns: int
    order: Ints
    parts: int
    rule: Rule | None
    ran: int

    @property
    def tile_rows(self) -> int:
        """Rows of tiles."""
        return ceil_div(self.problem.m, self.rows)

    @property
    def tile_columns(self) -> int:
        """Columns of tiles."""
        return ceil_div(self.problem.n, self.columns)

    def waves(self, resident: int) -> Iterator[Wave]:
        """What each wave of so many blocks reads."""
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


def raster(
    kernel: Kernel,
    traced: Trace,
    plan: LaunchPlan,
    binary: Binary,
    problem: GemmProblem,
    gpu: GpuSpec,
    *,
    config: TileConfig | None = None,
    cache_dir: Path | None = None,
) -> Raster | None:
    """Find out which block takes which tile; None where that cannot be known.

    That is so for several products, for blocks with several tiles each or even shares of k, for
    tiles that are no rectangles, and for an order without a rule in a large grid.

    Args:
        kernel: the kernel.
        traced: the requests of its first block, which show the size of a tile.
        plan: the launch.
        binary: its kernel.
        problem: what it computes.
        gpu: the board.
        config: by default the kernel's own.
        cache_dir: root of the emulator's cache; by default the user's.
    """
    if problem.count > 1 or not plan.blocks or plan.table is not None:
        return None
    problem = replace(problem, m=problem.m - plan.residue[0], n=problem.n - plan.residue[1])
    if kernel.shares_tiles:
        # Only the last block of a tile stores it.
        work = kernel.work(problem, config or kernel.default, gpu)
        size: tuple[int, int] | None = (work.rows, work.columns)
    else:
        size = _tile(traced)
    if size is None:
        return None
    rows, columns = size
    tile_rows, tile_columns = ceil_div(problem.m, rows), ceil_div(problem.n, columns)
    tiles = tile_rows * tile_columns
    parts = _parts(plan, tiles, whole=not any(plan.residue))
    if parts == 0 or tiles > _MOST_TILES:
        return None
    shallow = _shallow(problem, plan, user=kernel.user_defined)
    if shallow.m * shallow.n * shallow.out_item_bytes > _MOST_BYTES:
        return None
    device = EmulatedDevice(gpu, max_steps=_STEPS, cache_dir=cache_dir)
    blocks = _Blocks(device, binary, plan, shallow, (rows, columns), tiles, parts)
    affordable = int(_BUDGET / (rows * columns * max(shallow.k, 1) * parts))
    most = min(max(affordable, _FEWEST), _MOST)
    some = _chosen(tiles, most)
    try:
        seen = [blocks.tile(number) for number in some]
        if None in seen:
            return None
        found = np.array(seen, np.int64)
        rule = _rule(np.array(some), found, tile_rows, tile_columns)
        if rule is not None:
            order = rule.order(tile_rows, tile_columns)
        elif len(some) == tiles and len(np.unique(found)) == tiles:
            order = found
        else:
            return None
    except DeviceError:
        return None
    return Raster(
        kernel=traced.kernel,
        problem=problem,
        rows=rows,
        columns=columns,
        order=order,
        parts=parts,
        rule=rule,
        ran=len(some) * parts,
    )


def _tile(traced: Trace) -> tuple[int, int] | None:
    """Rows and columns of C that the first block stores, if they are a rectangle where a tile of
    that size begins."""
    item = traced.problem.out_item_bytes
    offsets = {
        offset // item + each
        for access in traced.accesses
        if access.array == "C" and access.kind in ("store", "atomic")
        for offset in access.offsets
        if offset is not None
        for each in range(max(access.bytes_per_lane // item, 1))
    }
    places = {traced.element("C", each * item) for each in offsets}
    rows = {place[0] for place in places if place is not None}
    columns = {place[1] for place in places if place is not None}
    whole = len(rows) * len(columns) == len(places) > 0
    for lines in (rows, columns):
        if not whole or max(lines) - min(lines) + 1 != len(lines) or min(lines) % len(lines):
            return None
    return len(rows), len(columns)


def _parts(plan: LaunchPlan, tiles: int, *, whole: bool) -> int:
    """Layers of the grid that share each tile, 1 for a block per tile; 0 if neither is so.

    Blocks for residue tiles come after the others.
    """
    if plan.blocks == tiles or (not whole and plan.grid[2] == 1 and plan.blocks > tiles):
        return 1
    return plan.grid[2] if plan.grid[0] * plan.grid[1] == tiles else 0


def _shallow(problem: GemmProblem, plan: LaunchPlan, *, user: bool) -> GemmProblem:
    """The same rows and columns with a smaller k, whose rest by 16 stays, and so that of A's and
    B's leading dimensions."""
    depth = _USERS_DEPTH if user else _DEPTH
    if problem.k <= 2 * depth or "K" not in names_in(plan.signature):
        return problem
    k = depth + problem.k % 16
    a_along, b_along = not problem.transa, problem.transb
    lda = k + (problem.lda - problem.k) % 16 if a_along else problem.lda
    ldb = k + (problem.ldb - problem.k) % 16 if b_along else problem.ldb
    return replace(problem, k=k, lda=lda, ldb=ldb)


def _chosen(tiles: int, most: int) -> list[int]:
    """Blocks to run: all, or the first and last ones and others between."""
    if tiles <= most:
        return list(range(tiles))
    third = most // 3
    between = np.linspace(third, tiles - third - 1, most - 2 * third).astype(int).tolist()
    return sorted({*range(third), *between, *range(tiles - third, tiles)})


def _rule(some: Ints, found: Ints, tile_rows: int, tile_columns: int) -> Rule | None:
    """The rule by which these blocks got these tiles; None if there is none, or several that
    differ elsewhere."""
    rules = [Rule(1), Rule(tile_rows)]
    rules += [Rule(height) for height in range(2, tile_rows)]
    rules += [Rule(width, across=True) for width in range(2, tile_columns)]
    fitting: list[Rule] = []
    for rule in rules:
        order = rule.order(tile_rows, tile_columns)
        if (order[some] == found).all():
            if not fitting:
                fitting, first = [rule], order
            elif (order != first).any():
                return None
    return fitting[0] if fitting else None


class _Blocks:
    """Blocks that run alone, and the tile that each stores."""

    def __init__(
        self,
        device: EmulatedDevice,
        binary: Binary,
        plan: LaunchPlan,
        problem: GemmProblem,
        size: tuple[int, int],
        tiles: int,
        parts: int,
    ) -> None:
        self._device, self._binary, self._plan = device, binary, plan
        self._layers = [tiles * part for part in range(parts)]
        self._operands = Operands.empty(device, problem)
        bound = bind_arguments(problem, self._operands)
        self._scratch = Scratch.of(device, plan, bound)
        self._arguments = bound | self._scratch.arguments
        mark = encode(np.array([_MARK]), problem.result_dtype)
        self._mark = mark.view(f"u{ITEM_BYTES[problem.result_dtype]}")[0]
        c = self._operands.c
        results = device.memory.view(c.address, c.nbytes).view(self._mark.dtype)
        results[:] = self._mark
        rows, columns = np.arange(0, problem.m, size[0]), np.arange(0, problem.n, size[1])
        down, right = (1, problem.ldc) if problem.transc else (problem.ldc, 1)
        self._results, self._corners = results, np.add.outer(rows * down, columns * right).ravel()

    def tile(self, number: int) -> int | None:
        """The tile of a block, and of those that share it; None if it is not one."""
        for layer in self._layers:
            only = range(layer + number, layer + number + 1)
            self._device.execute(self._binary, self._plan, self._arguments, only=only)
        stored = np.flatnonzero(self._results[self._corners] != self._mark)
        self._results[self._corners[stored]] = self._mark
        return int(stored[0]) if len(stored) == 1 else None


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
