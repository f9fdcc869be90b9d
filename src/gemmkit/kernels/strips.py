"""The fringe: a few rows and columns past the last whole tiles, which further blocks compute.

They do so in strips; fringe.cuh is the other half of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.gpu import GpuSpec
from gemmkit.kernels.grids import spread_over_yz
from gemmkit.kernels.plan import MAX_GRID_YZ, Dim3, TileConfig, ceil_div
from gemmkit.kernels.rules import PAD, resident_blocks, thread_count
from gemmkit.problem import FLOAT_BYTES, GemmProblem

# The widest fringe, and the lengths of the strips that it is cut into: beside tiles on an SM strips
# hold these up, and so are short.
FRINGE, STRIP, SHORT_STRIP = 8, 64, 32

# Tiles of fewer results finish before a strip does, and the least before half of one. Blocks that
# may have strips are of so many threads.
LARGE_TILE, LEAST_TILE, FRINGE_THREADS = 64 * 128, 32 * 64, (64, 128, 256, 512)
RESULTS_PER_THREAD = 16


@dataclass(frozen=True)
class Strips:
    """How a fringe of `rows` and `columns` is cut up: into strips of `width` × `length` results.

    A block takes `shared_bytes` for one. `parts` blocks share the k of a tile. Without a fringe all
    but that are 0.
    """

    rows: int = 0
    columns: int = 0
    width: int = 0
    length: int = 0
    shared_bytes: int = 0
    parts: int = 1

    def __bool__(self) -> bool:
        return any(self.fringe)

    @property
    def template(self) -> str:
        """The size as fringe.cuh writes it."""
        return f"StripSize<{self.width}, {self.length}{', true' if self.parts > 1 else ''}>"

    @property
    def fringe(self) -> tuple[int, int]:
        """Its rows and columns."""
        return self.rows, self.columns

    def count(self, problem: GemmProblem) -> int:
        """Strips along the rows below the tiles, and along the columns beside them."""
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


def fringe(problem: GemmProblem, BM: int, BN: int) -> tuple[int, int]:
    """Rows and columns past the last whole tiles, each 0 where a tile is worth it."""
    return _leftover(problem.m, BM), _leftover(problem.n, BN)


def _leftover(extent: int, tile: int) -> int:
    left = extent % tile
    return left if tile >= 4 * FRINGE and left <= FRINGE and left < extent else 0


def strips_for(
    problem: GemmProblem, config: TileConfig, gpu: GpuSpec, shared_bytes: int, parts: int = 1
) -> Strips:
    """The strips of a launch whose tiles take so much shared memory, if it has any.

    They must not cost the tiles' blocks their place on an SM. Small tiles finish before a strip
    does: they leave strips only what would give some SM a second tile. `parts` blocks share a tile;
    where the grid's y has no room for lines of strips besides, z would have to serve twice.
    """
    BM, BN, threads = config["BM"], config["BN"], thread_count(config)
    rows, columns = fringe(problem, BM, BN)
    whole = ceil_div(problem.m - rows, BM) * ceil_div(problem.n - columns, BN) * parts
    tiles = ceil_div(problem.m, BM) * ceil_div(problem.n, BN) * parts
    small = BM * BN < LARGE_TILE
    worth = not small or (BM * BN >= LEAST_TILE and whole <= gpu.sm_count < tiles)
    if not (worth and whole < tiles and problem.batch == 1 and threads in FRINGE_THREADS):
        return Strips()
    places = resident_blocks(config, gpu, shared_bytes)
    width = FRINGE // 2 if max(rows, columns) <= FRINGE // 2 else FRINGE
    length = STRIP if places == 1 else SHORT_STRIP
    # Both tiles are padded. In the end the sums of those who share k take the stages' place.
    stages, depth = 2 if threads > 256 else 4, threads // width
    ring = stages * depth * (width + length + 2 * PAD)
    strip_bytes = FLOAT_BYTES * max(ring, threads * RESULTS_PER_THREAD)
    if small and places > 2:
        # With room for three, strips would crowd on the SMs that have no tile.
        places, limits = 2, gpu.capability
        third = limits.shared_per_sm // 3 - limits.shared_reserved_per_block
        strip_bytes = max(strip_bytes, third + limits.shared_unit)
    strips = Strips(rows, columns, width, length, strip_bytes, parts)
    if parts > 1 and strips.grid(problem, config)[1] > MAX_GRID_YZ:
        return Strips()
    with_strips = resident_blocks(config, gpu, max(shared_bytes, strip_bytes))
    return strips if with_strips == places else Strips()
