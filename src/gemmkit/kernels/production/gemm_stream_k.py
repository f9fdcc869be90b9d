"""How `gemm_stream_k` is launched: a grid as large as the board, with even shares of work."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads
from gemmkit.kernels.cut import Cut, even_shares
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launches import vector_width
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.production import cp_async_fma
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS, SPLIT_SIGNATURE, access, launch_shape
from gemmkit.kernels.production.residue import ResidueTiles, cut_with_residue
from gemmkit.kernels.production.schedule import RASTER_ROWS, chunks_of, schedule_argument
from gemmkit.kernels.rules import STATIC_SHARED_BYTES, resident_blocks, thread_count
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Steps of k below which no block gets a share of its own.
LEAST_STEPS = 4

# Values of k that are accumulated in chunks.
LONG = range(1025, 2**31)


def split_tiles(tiles: int, blocks: int) -> int:
    """Tiles whose k is split, as `StreamK` in scheduler/stream_k.cuh does.

    These are what whole waves leave over, and one wave more if they leave anything.
    """
    left = tiles % blocks if blocks else 0
    return left + blocks if left and tiles > blocks else left


def shares_of(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> tuple[Cut, ResidueTiles]:
    """As many blocks as the board holds, but none with less than `LEAST_STEPS` of work."""
    pipeline = cp_async_fma.pipeline_bytes(problem, config)
    whole, residue = cut_with_residue(problem, config, gpu, pipeline)
    shares = whole.tiles * max(1, ceil_div(problem.k, config["BK"]) // LEAST_STEPS)
    blocks = min(gpu.sm_count * resident_blocks(config, gpu, pipeline), shares)
    return even_shares(whole, blocks, split_tiles(whole.tiles, blocks)), residue


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """Even shares of all steps of k, and residue tiles."""
    pipeline = cp_async_fma.pipeline_bytes(problem, config)
    found = shares_of(problem, config, gpu)
    return cp_async_fma.work(problem, config, gpu, found, pipeline, STATIC_SHARED_BYTES)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Blocks on x as `shares_of` has them; further lines of them have residue tiles.

    A block leaves at most the last part of one tile and
    the first of another in the workspace.
    """
    pipeline, width = cp_async_fma.pipeline_bytes(problem, config), vector_width(problem)
    chunks, apart = chunks_of(problem, LONG, config, gpu, pipeline)
    found, residue = shares_of(problem, config, gpu)
    blocks, split = found.ctas, found.cut_tiles
    slots = 2 * blocks if split else 0
    lines = ceil_div(residue.count(problem), blocks) if residue else 0
    shape = launch_shape(
        (
            cp_async_fma.tile_argument(config),
            access(width, width, width),
            CUDA_LAYOUTS[problem.layout],
            schedule_argument(problem, chunks=chunks, raster=RASTER_ROWS, residue=residue),
        ),
        (blocks, 1 + lines, 1),
        thread_count(config),
        max(pipeline + apart, residue.shared_bytes),
    )
    return replace(
        shape,
        workspace_bytes=FLOAT_BYTES * slots * config["BM"] * config["BN"],
        semaphores=split,
        residue=residue.extents,
        chunks=chunks,
        rasterized=True,
    )


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words | str:
    """Those of whole tiles, unless blocks share some or k is accumulated in chunks."""
    pipeline = cp_async_fma.pipeline_bytes(problem, config)
    found, residue = shares_of(problem, config, gpu)
    if found.cut_tiles:
        return loads.EVEN_SHARES
    if chunks_of(problem, LONG, config, gpu, pipeline)[0] > 1:
        return loads.CHUNKS
    return cp_async_fma.words(problem, config, vector_width(problem), residue)


KERNEL = Kernel(
    name="gemm_stream_k",
    rung=None,
    idea="There are as many blocks as the board holds and each gets an even share of all "
    "steps of k, tiles being cut where a share ends, so that no SM waits for a last wave.",
    default=TileConfig(
        BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3, interleave=4, order=1
    ),
    space={
        "BM": (64, 128, 192, 256),
        "BN": (64, 128, 192, 256),
        "BK": (8, 16, 32),
        "WM": (16, 32, 48, 64),
        "WN": (16, 32, 64, 96, 128),
        "TM": (8, 12, 16),
        "TN": (4, 8, 12, 16),
        "stages": (2, 3, 4),
    },
    refinements=cp_async_fma.INNER_LOOPS,
    launch=launch,
    work=work,
    loads=words,
    rule=cp_async_fma.rule,
    layouts=LAYOUTS,
    pairing=cp_async_fma.pairing,
    signature=SPLIT_SIGNATURE,
)
