"""Finds out in which order blocks take tiles of C.

A kernel's order is in its code. It is found from emulated blocks: each runs alone on the launch's
own grid, with a shallow k, and the tiles of C that it stores are its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.raster import Raster, Rule
from gemmkit.analysis.trace import Trace
from gemmkit.devices.device import Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.emulator.watching import WatchedAccess
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
# Tiles that a block has in turn, at most.
_MOST_TURNS = 16
# Depths: for gemmkit's own kernels, which take any k, and for a user's.
_DEPTH, _USERS_DEPTH = 16, 64
_MOST_BYTES = 1 << 29
# Of a block, far more than a tile needs with a shallow k.
_STEPS = 50_000_000
# What C holds before: as the other operands are NaN, no result is that.
_MARK = -1.0


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

    That is so for several products, for blocks with even shares of k or with tiles from a counter,
    for tiles that are no rectangles, and for an order without a rule in a large grid.

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
    shallow = _shallow(problem, plan, user=kernel.user_defined)
    if shallow.m * shallow.n * shallow.out_item_bytes > _MOST_BYTES:
        return None
    size = _size(kernel, traced, problem, gpu, config or kernel.default)
    if size is None:
        return None
    rows, columns = size
    tiles = ceil_div(problem.m, rows) * ceil_div(problem.n, columns)
    if tiles > _MOST_TILES:
        return None
    device = EmulatedDevice(gpu, max_steps=_STEPS, cache_dir=cache_dir)
    blocks = _Blocks(device, binary, plan, shallow, (rows, columns))
    blank = Raster(traced.kernel, problem, rows, columns, np.zeros(0, np.int64), 1, None, 0)
    try:
        if plan.blocks < tiles and not kernel.shares_tiles:
            return _in_turn(blank, blocks, plan.blocks, tiles)
        return _at_once(blank, blocks, _parts(plan, tiles), tiles, shallow.k)
    except DeviceError:
        return None


def _at_once(blank: Raster, blocks: _Blocks, parts: int, tiles: int, depth: int) -> Raster | None:
    """The order if each block has one tile, or a part of one."""
    if parts == 0:
        return None
    affordable = int(_BUDGET / (blank.rows * blank.columns * max(depth, 1) * parts))
    some = _chosen(tiles, min(max(affordable, _FEWEST), _MOST))
    seen = [blocks.tiles(number + tiles * part for part in range(parts)) for number in some]
    if any(len(each) != 1 for each in seen):
        return None
    found = np.concatenate(seen)
    rule = _rule(np.array(some), found, blank.tile_rows, blank.tile_columns)
    if rule is not None:
        order = rule.order(blank.tile_rows, blank.tile_columns)
    elif len(some) == tiles and len(np.unique(found)) == tiles:
        order = found
    else:
        return None
    return replace(blank, order=order, parts=parts, rule=rule, ran=len(some) * parts)


def _in_turn(blank: Raster, blocks: _Blocks, count: int, tiles: int) -> Raster | None:
    """The order if each block has several tiles, one every so many blocks of an order by rule.

    All blocks show which tiles they have, the first and the last one in which order.
    """
    if tiles > _MOST_TURNS * count or count > _MOST:
        return None
    turns = {number: blocks.turns(number) for number in {0, count - 1}}
    seen = [blocks.tiles([number]) for number in range(count)]
    for rule in _rules(blank.tile_rows, blank.tile_columns):
        order = rule.order(blank.tile_rows, blank.tile_columns)
        own = [order[number::count] for number in range(count)]
        if all(turns[number] == own[number].tolist() for number in turns) and all(
            np.array_equal(np.sort(mine), each) for mine, each in zip(own, seen, strict=True)
        ):
            return replace(blank, order=order, rule=rule, ran=count, together=count)
    return None


def _size(
    kernel: Kernel, traced: Trace, problem: GemmProblem, gpu: GpuSpec, config: TileConfig
) -> tuple[int, int] | None:
    """Rows and columns of a tile."""
    if kernel.shares_tiles:
        # Only the last block of a tile stores it.
        work = kernel.work(problem, config, gpu)
        return work.rows, work.columns
    sizes = {each and each[2:] for each in _stored(traced)}
    return sizes.pop() if len(sizes) == 1 else None


# The first row and column of a tile, and how many it has.
Rectangle = tuple[int, int, int, int]


def _stored(traced: Trace) -> Iterator[Rectangle | None]:
    """The tiles of C that a block stores, in turn; None for one that is no rectangle where a tile
    of its size begins.

    A warp has a new tile when it has loaded A or B since it stored the last one.
    """
    numbers: defaultdict[int, int] = defaultdict(int)
    storing: set[int] = set()
    tiles: defaultdict[int, list[WatchedAccess]] = defaultdict(list)
    for access in traced.accesses:
        if access.array == "C" and access.kind in ("store", "atomic"):
            storing.add(access.warp)
            tiles[numbers[access.warp]].append(access)
        elif access.array in ("A", "B") and access.warp in storing:
            storing.remove(access.warp)
            numbers[access.warp] += 1
    return (_rectangle(traced, each) for _, each in sorted(tiles.items()))


def _rectangle(traced: Trace, accesses: Iterable[WatchedAccess]) -> Rectangle | None:
    """The elements of C that requests access, if they are a rectangle where a tile begins."""
    item = traced.problem.out_item_bytes
    offsets = {
        offset // item + each
        for access in accesses
        for offset in access.offsets
        if offset is not None
        for each in range(max(access.bytes_per_lane // item, 1))
    }
    places = {place for each in offsets if (place := traced.element("C", each * item)) is not None}
    rows, columns = ({place[axis] for place in places} for axis in (0, 1))
    for lines in (rows, columns):
        if not lines or max(lines) - min(lines) + 1 != len(lines) or min(lines) % len(lines):
            return None
    if len(rows) * len(columns) != len(places):
        return None
    return min(rows), min(columns), len(rows), len(columns)


def _parts(plan: LaunchPlan, tiles: int) -> int:
    """Layers of the grid that share each tile, 1 for a block per tile; 0 if neither is so.

    Blocks for residue tiles come after the others.
    """
    residue = any(plan.residue) and plan.grid[2] == 1 and plan.blocks > tiles
    if plan.blocks == tiles or residue:
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
    fitting: list[Rule] = []
    for rule in _rules(tile_rows, tile_columns):
        order = rule.order(tile_rows, tile_columns)
        if (order[some] == found).all():
            if not fitting:
                fitting, first = [rule], order
            elif (order != first).any():
                return None
    return fitting[0] if fitting else None


def _rules(tile_rows: int, tile_columns: int) -> Iterator[Rule]:
    """Every rule, the plain ones first."""
    yield from (Rule(1), Rule(tile_rows))
    yield from (Rule(height) for height in range(2, tile_rows))
    yield from (Rule(width, across=True) for width in range(2, tile_columns))


class _Blocks:
    """Blocks that run alone, and the tiles that each stores."""

    def __init__(
        self,
        device: EmulatedDevice,
        binary: Binary,
        plan: LaunchPlan,
        problem: GemmProblem,
        size: tuple[int, int],
    ) -> None:
        self._device, self._binary, self._plan = device, binary, plan
        self._problem, self._size = problem, size
        self._operands = Operands.zeros(device, problem)
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

    def tiles(self, numbers: Iterable[int]) -> Ints:
        """The tiles of C that some blocks, one after the other, store."""
        for number in numbers:
            only = range(number, number + 1)
            self._device.execute(self._binary, self._plan, self._arguments, only=only)
        stored = np.flatnonzero(self._results[self._corners] != self._mark)
        self._results[self._corners[stored]] = self._mark
        return stored

    def turns(self, number: int) -> list[int] | None:
        """The tiles that a block stores, in turn; None if they are not those of one size."""
        only = range(number, number + 1)
        watched = self._device.watch(self._binary, self._plan, self._arguments, only)
        self._results[self._corners] = self._mark
        rows, columns = self._size
        wide, found = ceil_div(self._problem.n, columns), []
        for each in _stored(Trace("", self._problem, self._plan, watched.accesses)):
            if each is None:
                return None
            found.append(each[0] // rows * wide + each[1] // columns)
        return found
