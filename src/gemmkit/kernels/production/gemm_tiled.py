"""How `gemm_tiled` is launched: one tile of C per thread block."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launches import vector_width
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.production import cp_async_fma
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS, SIGNATURE, access, launch_shape
from gemmkit.kernels.production.residue import cut_with_residue
from gemmkit.kernels.production.schedule import chunks_of, raster_rows, schedule_argument
from gemmkit.kernels.rules import resident_blocks, thread_count
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Values of k that are accumulated in chunks: they take up to 3 % of the speed, and are only for k
# for which cuBLAS splits sums too.
LONG = range(2049, 8193)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Column tiles on x, row tiles on y and z; residue tiles in further rows."""
    BM, BN = config["BM"], config["BN"]
    pipeline, width = cp_async_fma.pipeline_bytes(problem, config), vector_width(problem)
    chunks, apart = chunks_of(problem, LONG, config, gpu, pipeline)
    places = gpu.sm_count * resident_blocks(config, gpu, pipeline)
    raster = raster_rows(problem, BM, BN, places)
    _, residue = cut_with_residue(problem, config, gpu, pipeline + apart)
    shape = launch_shape(
        (
            cp_async_fma.tile_argument(config),
            access(width, width, width),
            CUDA_LAYOUTS[problem.layout],
            schedule_argument(problem, chunks=chunks, raster=raster, residue=residue),
        ),
        residue.grid(problem, config) if residue else tile_grid(problem, BM, BN),
        thread_count(config),
        max(pipeline + apart, residue.shared_bytes),
    )
    return replace(shape, residue=residue.extents, chunks=chunks, rasterized=raster > 0)


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile per block, and residue tiles."""
    pipeline = cp_async_fma.pipeline_bytes(problem, config)
    found = cut_with_residue(problem, config, gpu, pipeline)
    return cp_async_fma.work(problem, config, gpu, found, pipeline)


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words | str:
    """Those of whole tiles, where k is accumulated in one chunk."""
    pipeline = cp_async_fma.pipeline_bytes(problem, config)
    chunks, apart = chunks_of(problem, LONG, config, gpu, pipeline)
    if chunks > 1:
        return loads.CHUNKS
    _, residue = cut_with_residue(problem, config, gpu, pipeline + apart)
    return cp_async_fma.words(problem, config, vector_width(problem), residue)


KERNEL = Kernel(
    name="gemm_tiled",
    rung=None,
    idea="cp.async copies tiles to shared memory several stages ahead without passing through "
    "registers, which leaves room for 16×8 results per thread.",
    default=TileConfig(
        BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3, interleave=4, order=1
    ),
    space={
        "BM": (32, 64, 128, 192, 256),
        "BN": (32, 64, 128, 192, 256),
        "BK": (8, 16, 32),
        "WM": (16, 32, 48, 64, 96, 128),
        "WN": (16, 32, 64, 128),
        "TM": (4, 8, 12, 16),
        "TN": (4, 8, 16),
        "stages": (2, 3, 4),
    },
    refinements=cp_async_fma.INNER_LOOPS,
    launch=launch,
    work=work,
    loads=words,
    signature=SIGNATURE,
    rule=cp_async_fma.rule,
    layouts=LAYOUTS,
    pairing=cp_async_fma.pairing,
)
