"""Rung 17: wgmma, out of tiles that cp.async fills."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, rules, tensor_cores, warpgroups
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.wgmma import copied
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# One stage is multiplied, another may still be: copies go to a third.
FEWEST_STAGES = 3


def shared_bytes(config: TileConfig) -> int:
    """Shared bytes of the circular buffer."""
    return config["stages"] * warpgroups.stage_bytes(config)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Tiles of which every thread copies equally many vectors, in dynamic shared memory."""
    return rules.first_reason(
        lambda: warpgroups.tiles(config, gpu, FEWEST_STAGES),
        lambda: rules.power_of_two(config, "BM"),
        lambda: rules.power_of_two(config, "BN"),
        lambda: rules.dynamic_shared(shared_bytes(config), gpu),
    )


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """A block per tile."""
    sizes = (config["BM"], config["BN"], config["BK"], config["stages"])
    return LaunchShape(
        template=(CUDA_TYPES[problem.dtype], *sizes, launches.vector_width(problem)),
        grid=tile_grid(problem, config["BM"], config["BN"]),
        block=(warpgroups.thread_count(config), 1, 1),
        shared_bytes=shared_bytes(config),
    )


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, whose threads copy and start products."""
    whole, threads = warpgroups.in_cluster(config), warpgroups.thread_count(config)
    return copied(problem, whole, threads, shared_bytes(config))


KERNEL = Kernel(
    name="wgmma",
    rung=17,
    idea="Warpgroups multiply 64×256×16 with one instruction, which reads both operands straight "
    "from swizzled shared memory and runs beside the warps that started it.",
    default=TileConfig(BM=128, BN=256, BK=64, stages=4),
    space={"BM": (64, 128, 256), "BN": (64, 128, 256), "BK": (64,), "stages": (3, 4, 5, 6)},
    launch=launch,
    work=work,
    loads=warpgroups.words,
    rule=rule,
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=warpgroups.condition,
)
