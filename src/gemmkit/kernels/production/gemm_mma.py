"""How `gemm_mma` is launched, and what it refuses: types of 16 bits by mma.sync and cp.async."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules, tensor_cores
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.typed import tensor
from gemmkit.kernels.operand_copies import aligned_copies, moved_bytes
from gemmkit.kernels.plan import LAYOUTS, LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.production.arguments import (
    CUDA_LAYOUTS,
    SIGNATURE,
    access,
    launch_shape,
    named,
)
from gemmkit.kernels.production.schedule import raster_rows, schedule_argument
from gemmkit.kernels.production.typed import access_widths
from gemmkit.kernels.production.typed_mma import WIDTH_OF_C
from gemmkit.kernels.work import VECTOR_BYTES, Work
from gemmkit.problem import GemmProblem

# Elements of 16 bits per copy, and steps of k for which fragments alternate between registers.
VECTOR, DEPTH_STEP = VECTOR_BYTES // tensor_cores.HALF_BYTES, 2 * tensor_cores.DEPTH


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Column tiles on x, row tiles on y and z, in groups of rows where that saves reads."""
    BM, BN, threads = config["BM"], config["BN"], tensor_cores.thread_count(config)
    # One block per SM: the stages of most configurations leave no room for another.
    raster = raster_rows(problem, BM, BN, gpu.sm_count)
    copies = aligned_copies(problem)
    shape = launch_shape(
        (
            CUDA_TYPES[problem.dtype],
            named("Tile", {**config.as_dict(), "threads": threads}),
            access(VECTOR, VECTOR, access_widths(problem, WIDTH_OF_C)[2]),
            CUDA_LAYOUTS[problem.layout],
            schedule_argument(problem, raster=raster),
        ),
        tile_grid(problem, BM, BN),
        threads,
        shared_bytes(config),
    )
    return replace(shape, rasterized=raster > 0, copies=copies if problem.flops else ())


def shared_bytes(config: TileConfig) -> int:
    """Shared bytes of all stages."""
    return config["stages"] * tensor_cores.stage_bytes(config)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, on the tensor cores, of rows that are aligned once they have been copied."""
    threads, copies = tensor_cores.thread_count(config), aligned_copies(problem)
    found = tensor(threads, shared_bytes(config), problem, config, aligned=True)
    return found._replace(copied_bytes=moved_bytes(problem, copies))


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """Types of 16 bits, on a board with cp.async."""
    if problem.dtype not in tensor_cores.HALVES:
        return f"it multiplies types of 16 bits, not {problem.dtype}"
    return rules.has_cp_async(gpu) or tensor_cores.condition(problem, gpu)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Warp tiles of pairs of products, tiles of whole vectors, and room for their stages."""
    return rules.first_reason(
        lambda: rules.has_cp_async(gpu),
        lambda: tensor_cores.warp_tiles(config, gpu, tensor_cores.WIDE_COLUMNS),
        lambda: rules.divides(config, DEPTH_STEP, "BK"),
        lambda: next(
            (
                f"{key} = {config[key]}: swizzled tiles have powers of two of rows and columns"
                for key in ("BM", "BN", "BK")
                if config[key] & (config[key] - 1)
            ),
            None,
        ),
        lambda: _even_copies(config),
        lambda: rules.enough_stages(config),
        lambda: rules.dynamic_shared(shared_bytes(config), gpu),
    )


def _even_copies(config: TileConfig) -> str | None:
    """Every thread has as many vectors of each tile, whatever the layout."""
    threads = tensor_cores.thread_count(config)
    for key in ("BM", "BN"):
        vectors = config[key] * config["BK"] // VECTOR
        if vectors % threads:
            return f"{threads} threads cannot share {vectors} copies of a tile ({key} × BK) evenly"
    return None


KERNEL = Kernel(
    name="gemm_mma",
    rung=None,
    idea="cp.async copies tiles of 16-bit elements several stages ahead, and warps multiply them by "
    "mma.sync while they read the next fragments, in every layout.",
    default=TileConfig(BM=128, BN=256, BK=32, WM=64, WN=64, stages=4),
    space={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "BK": (32, 64),
        "WM": (16, 32, 64, 128),
        "WN": (16, 32, 64, 128),
        "stages": (2, 3, 4, 5, 6),
    },
    launch=launch,
    work=work,
    loads=tensor_cores.words,
    rule=rule,
    signature=SIGNATURE,
    layouts=LAYOUTS,
    # Of float32 it makes results alone.
    dtypes=(*tensor_cores.HALVES, "float32"),
    condition=condition,
)
