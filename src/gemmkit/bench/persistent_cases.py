"""Problems in which the blocks of a persistent kernel take several tiles each.

The blocks of such a kernel are as many as the SMs, or another number that does not grow with M and
N, and loop over the tiles. What a block leaves behind for its next tile, such as an accumulator
that is not cleared or a stage of shared memory that is overwritten too early, only shows in a
second tile, which problems of a few tiles do not have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gemmkit.bench.edge_cases import LITTLE
from gemmkit.errors import GemmkitError
from gemmkit.frontends.tiles import Tiles
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.problem import GemmProblem

SEVERAL_TILES = "several tiles per block"
SEVERAL_TILES_DEEP = "several tiles, more steps"
# The same where the problem had to be smaller than its blocks need for a second tile.
FEWER_TILES = "as many tiles as fit"

# Tiles per block: with at least two, whatever the order, some block has to clear up after one.
WAVES = 3
# The same where no more fit.
ENOUGH = 1.25
# The most elements of C and the most products of such a problem, some seconds on the emulator.
MOST_RESULTS, MOST_PRODUCTS = 2**23, 2**27
# The most products of the same problem with as many steps as a pipeline has stages, if it is run.
MOST_DEEP_PRODUCTS = 2**25
# Blocks per assumed tile from which on the tile is taken to be wrong: split-K has several, too.
FAR_MORE = 64
# Sizes of M and N between which a grid has to grow to follow them.
SMALLEST, LARGEST = 16, 2**14


def persistent_cases(
    kernel: Kernel, config: TileConfig, gpu: GpuSpec, tiles: Tiles, *, cubes: bool
) -> Iterator[tuple[str, GemmProblem]]:
    """Problems with their names, if the kernel's grid has a limit that M and N do not raise.

    With `cubes`, M, N and K are the same.
    """
    wave = _first_wave(kernel, config, gpu, tiles, cubes=cubes)
    if wave is None:
        return
    # With an even number of steps, a block would find two stages as it did at first.
    k = 1 if tiles.step <= LITTLE else LITTLE
    most = min(MOST_RESULTS, MOST_PRODUCTS // k)
    if cubes:
        most = min(most, int(MOST_PRODUCTS ** (2 / 3)))
    # One tile beyond a multiple per axis, and a partial one at each end.
    down = math.isqrt(ceil_div(WAVES * wave, tiles.rows * tiles.columns)) + 1
    m, n = down * tiles.rows + 1, down * tiles.columns + 1
    name = SEVERAL_TILES
    if m * n > most:
        shrunk = math.sqrt(most / (m * n))
        m, n = (max(int(size * shrunk), 1) for size in (m, n))
        if m * n < ENOUGH * wave:
            if not kernel.user_defined:
                # Stream-K, whose blocks share tiles: problems of more steps have them take several.
                return
            name = FEWER_TILES
    yield name, GemmProblem(m, n, max(m, n) if cubes else k)
    deep = max(tiles.stages, 2) * tiles.step
    if not cubes and name == SEVERAL_TILES and m * n * deep <= MOST_DEEP_PRODUCTS:
        yield SEVERAL_TILES_DEEP, GemmProblem(m, n, deep)


def with_own_tiles(kernel: Kernel, config: TileConfig, gpu: GpuSpec, tiles: Tiles) -> Tiles:
    """The tiles, or smaller ones where the grid has blocks for far more of them.

    A grid such as `M*N/16` does not say what its tiles are, and the assumed ones are too large.
    """
    rows, columns = 4 * tiles.rows, 4 * tiles.columns
    try:
        blocks = math.prod(kernel.launch(GemmProblem(rows, columns, tiles.step), config, gpu).grid)
    except (GemmkitError, ArithmeticError):
        return tiles
    if blocks * tiles.rows * tiles.columns <= FAR_MORE * rows * columns:
        return tiles
    side = max(math.isqrt(rows * columns // blocks), 1)
    return replace(tiles, rows=side, columns=side).enough


def _first_wave(
    kernel: Kernel, config: TileConfig, gpu: GpuSpec, tiles: Tiles, *, cubes: bool
) -> int | None:
    """The elements of C after which blocks take a second tile; None where the grid grows on.

    They are those of the smallest square problem that has all blocks. Where every problem has them,
    they are as many tiles.
    """

    def blocks(size: int) -> int:
        k = size if cubes else max(tiles.step, 1)
        grid = kernel.launch(GemmProblem(size, size, k), config, gpu).grid
        return math.prod(grid)

    try:
        most = blocks(LARGEST)
        if most != blocks(LARGEST // 2) or most != blocks(LARGEST // 4):
            return None
        if blocks(SMALLEST) == most:
            return most * tiles.rows * tiles.columns
        low, high = SMALLEST, LARGEST // 4
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if blocks(middle) == most else (middle, high)
    except (GemmkitError, ArithmeticError):
        return None
    return high * high
