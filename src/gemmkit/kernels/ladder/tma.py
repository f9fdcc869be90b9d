"""Rung 18: tensor copies by TMA into stages with full and empty barriers."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, rules, tensor_cores, warpgroups
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.wgmma import one_tile
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Tiles of whole boxes, with their stages in dynamic shared memory."""
    return rules.first_reason(
        lambda: warpgroups.tiles(config, gpu),
        lambda: rules.dynamic_shared(warpgroups.shared_bytes(config), gpu),
    )


def block_per_tile(problem: GemmProblem, config: TileConfig, producers: int = 0) -> LaunchShape:
    """A block per tile, with maps of A and B."""
    sizes = (config["BM"], config["BN"], config["BK"], config["stages"])
    return LaunchShape(
        template=(CUDA_TYPES[problem.dtype], *sizes, launches.vector_width(problem)),
        grid=tile_grid(problem, config["BM"], config["BN"]),
        block=(warpgroups.thread_count(config, producers), 1, 1),
        shared_bytes=warpgroups.shared_bytes(config),
        tensor_maps=warpgroups.maps(problem, config),
    )


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """One of whose threads loads."""
    return block_per_tile(problem, config)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block."""
    whole, threads = warpgroups.in_cluster(config), warpgroups.thread_count(config)
    return one_tile(problem, whole, threads, warpgroups.shared_bytes(config))


KERNEL = Kernel(
    name="tma",
    rung=18,
    idea="One thread starts the copy of a whole tile, with swizzle and zeros past the matrix; "
    "barriers that count its bytes, and the warps that have read it, replace __syncthreads.",
    default=TileConfig(BM=128, BN=256, BK=64, stages=4),
    space={
        "BM": (64, 128, 192, 256),
        "BN": (64, 128, 192, 256),
        "BK": (64,),
        "stages": (2, 3, 4, 5, 6),
    },
    launch=launch,
    work=work,
    loads=warpgroups.words,
    rule=rule,
    signature=warpgroups.MAPS_SIGNATURE,
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=warpgroups.loaded_by_tma,
)
