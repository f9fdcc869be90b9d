"""Residue tiles: a few rows and columns past the last whole tiles, which further blocks compute.

`residue_tiles.cuh` is the other half of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import MAX_GRID_YZ, GpuSpec
from gemmkit.kernels import cut
from gemmkit.kernels.cut import Cut
from gemmkit.kernels.grids import spread_over_yz
from gemmkit.kernels.plan import Dim3, TileConfig, ceil_div
from gemmkit.kernels.production.arguments import named
from gemmkit.kernels.rules import PAD, resident_blocks, thread_count
from gemmkit.problem import GemmProblem

# The widest residue, and the lengths of its tiles: beside whole tiles on an SM they hold these up,
# and so are short.
WIDEST, LENGTH, SHORT_LENGTH = 8, 64, 32

# Whole tiles with sides below this leave no residue.
LEAST_SIDE = 4 * WIDEST

# Tiles of fewer results finish before a residue tile does, and the least before half of one. Blocks
# that may have residue tiles are of so many threads.
LARGE_TILE, LEAST_TILE, RESIDUE_THREADS = 64 * 128, 32 * 64, (64, 128, 256, 512)
RESULTS_PER_THREAD = 16


@dataclass(frozen=True)
class ResidueTiles:
    """The last `rows` and `columns` of C, in tiles of `width` × `length` results.

    A block takes `shared_bytes` for one, in a pipeline of `stages` of `depth` steps of k. `parts`
    blocks share the k of a whole tile. Without a residue all but that are 0.
    """

    rows: int = 0
    columns: int = 0
    width: int = 0
    length: int = 0
    depth: int = 0
    stages: int = 0
    shared_bytes: int = 0
    parts: int = 1

    def __bool__(self) -> bool:
        return any(self.extents)

    @property
    def template(self) -> str:
        """The same as a template argument, `Residue{…}`."""
        return named(
            "Residue",
            {
                "width": self.width,
                "length": self.length,
                "depth": self.depth,
                "stages": self.stages,
                "least_tile": LEAST_SIDE,
                "split": self.parts > 1,
            },
        )

    @property
    def extents(self) -> tuple[int, int]:
        """Its rows and columns."""
        return self.rows, self.columns

    def count(self, problem: GemmProblem) -> int:
        """Tiles along the rows below the tiles, and along the columns beside them."""
        along_rows = ceil_div(problem.n, self.length) if self.rows else 0
        return along_rows + (ceil_div(problem.m - self.rows, self.length) if self.columns else 0)

    def tiles(self, problem: GemmProblem, config: TileConfig) -> tuple[int, int]:
        """Rows and columns of whole tiles."""
        rows, columns = problem.m - self.rows, problem.n - self.columns
        return ceil_div(rows, config["BM"]), ceil_div(columns, config["BN"])

    def grid(self, problem: GemmProblem, config: TileConfig) -> Dim3:
        """Whole tiles as in `tile_grid`, and lines of blocks after them, in each layer of parts."""
        rows, columns = self.tiles(problem, config)
        lines = rows + ceil_div(self.count(problem), columns * self.parts)
        return (columns, lines, self.parts) if self.parts > 1 else (columns, *spread_over_yz(lines))


def residue_extents(problem: GemmProblem, BM: int, BN: int) -> tuple[int, int]:
    """Rows and columns past the last whole tiles, each 0 where a tile is worth it."""
    return _leftover(problem.m, BM), _leftover(problem.n, BN)


def _leftover(extent: int, tile: int) -> int:
    left = extent % tile
    return left if tile >= LEAST_SIDE and left <= WIDEST and left < extent else 0


def residue_tiles_for(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, shared_bytes: int, parts: int = 1
) -> ResidueTiles:
    """The residue tiles of a launch whose whole tiles take so much shared memory, if it has any.

    They must not cost the whole tiles' blocks their place on an SM. Small tiles finish before a
    residue tile does: they leave only what would give some SM a second tile. `parts` blocks share a
    tile; where the grid's y has no room for lines of residue tiles besides, z would have to serve
    twice.
    """
    BM, BN, threads = config["BM"], config["BN"], thread_count(config)
    rows, columns = residue_extents(problem, BM, BN)
    whole = ceil_div(problem.m - rows, BM) * ceil_div(problem.n - columns, BN) * parts
    tiles = ceil_div(problem.m, BM) * ceil_div(problem.n, BN) * parts
    small = BM * BN < LARGE_TILE
    worth = not small or (BM * BN >= LEAST_TILE and whole <= gpu.sm_count < tiles)
    if not (worth and whole < tiles and problem.batch == 1 and threads in RESIDUE_THREADS):
        return ResidueTiles()
    places = resident_blocks(config, gpu, shared_bytes)
    width = WIDEST // 2 if max(rows, columns) <= WIDEST // 2 else WIDEST
    length = LENGTH if places == 1 else SHORT_LENGTH
    # Both tiles are padded. In the end the sums of those who share k take the stages' place.
    stages, depth = 2 if threads > 256 else 4, threads // width
    pipeline = stages * depth * (width + length + 2 * PAD)
    residue_bytes = FLOAT_BYTES * max(pipeline, threads * RESULTS_PER_THREAD)
    if small and places > 2:
        # With room for three, residue tiles would crowd on the SMs that have no other.
        places, limits = 2, gpu.capability
        third = limits.shared_per_sm // 3 - limits.shared_reserved_per_block
        residue_bytes = max(residue_bytes, third + limits.shared_unit)
    residue = ResidueTiles(rows, columns, width, length, depth, stages, residue_bytes, parts)
    if parts > 1 and residue.grid(problem, config)[1] > MAX_GRID_YZ:
        return ResidueTiles()
    with_residue = resident_blocks(config, gpu, max(shared_bytes, residue_bytes))
    return residue if with_residue == places else ResidueTiles()


def cut_with_residue(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, shared_bytes: int, parts: int = 1
) -> tuple[Cut, ResidueTiles]:
    """How blocks share the whole tiles, `parts` of them one tile, and the residue tiles besides."""
    residue = residue_tiles_for(problem, config, gpu, shared_bytes, parts)
    found = cut.whole_tiles(problem, config, config["BM"], config["BN"], parts)
    if residue:
        rows, columns = residue.tiles(problem, config)
        found = found._replace(tiles=rows * columns, ctas=rows * columns * parts)
    return found, residue
