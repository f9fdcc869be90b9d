"""How tiles are scheduled: grouped rasterization, chunked accumulation, residue tiles."""

from __future__ import annotations

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.production.arguments import named
from gemmkit.kernels.production.residue import ResidueTiles
from gemmkit.kernels.rules import STATIC_SHARED_BYTES, resident_blocks
from gemmkit.problem import GemmProblem

# Rows of C that a group of tiles spans, and how many times as much a wave of blocks must read in
# row-by-row order for groups to pay.
RASTER_EXTENT, LEAST_SAVING = 2048, 2.5

# Rows of tiles in a group, for kernels that always go through groups.
RASTER_ROWS = 8

# A long k is accumulated in so many chunks where shared memory has room for the sums of another.
CHUNKS = 4


def raster_rows(problem: GemmProblem, BM: int, BN: int, places: int) -> int:
    """Rows of tiles in a group that blocks go through column by column; 0 for row by row.

    Blocks at work together, `places` of them, share more of what they read in groups: the L2 cache
    gets it from memory once for all. It pays where it saves 60 % and more.
    """
    rows, columns = ceil_div(problem.m, BM), ceil_div(problem.n, BN)
    if problem.batch != 1 or not rows * columns:
        return 0

    def read_by_wave(height: int) -> int:
        """Rows of A and columns of B, in groups of so many rows of tiles."""
        groups = ceil_div(places, height * columns)
        return min(columns, ceil_div(places, height)) * BN + min(rows, groups * height) * BM

    height = RASTER_EXTENT // BM
    saves = read_by_wave(1) > LEAST_SAVING * read_by_wave(min(rows, height))
    return height if saves else 0


def chunks_of(
    problem: GemmProblem, long: range, config: TileConfig, gpu: GpuSpec, shared_bytes: int
) -> tuple[int, int]:
    """Chunks of k, and the shared bytes that their sums take besides.

    There is one where k is not `long`, or more would not fit or cost blocks their place on an SM.
    """
    apart = FLOAT_BYTES * config["BM"] * config["BN"]
    most = shared_bytes + apart + STATIC_SHARED_BYTES
    without, with_sums = (resident_blocks(config, gpu, each) for each in (shared_bytes, most))
    fits = most <= gpu.capability.max_shared_per_block and without == with_sums
    return (CHUNKS, apart) if problem.k in long and fits else (1, 0)


def schedule_argument(
    problem: GemmProblem,
    *,
    chunks: int = 1,
    raster: int = 0,
    residue: ResidueTiles | None = None,
) -> str:
    """The template argument `Schedule{…}`."""
    fields: dict[str, int | bool | str] = {
        "batched": problem.batch != 1,
        "chunks": chunks,
        "raster": raster,
    }
    if residue:
        fields["residue"] = residue.template
    return named("Schedule", fields)
