"""Rung 19: a producer loads, consumers multiply."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules, tensor_cores, warpgroups
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import tma
from gemmkit.kernels.mainloops.wgmma import one_tile
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The tiles of `tma`, of two consumers."""
    return rules.first_reason(
        lambda: tma.rule(config, gpu), lambda: warpgroups.two_consumers(config)
    )


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """A block per tile, with one more warpgroup."""
    return tma.block_per_tile(problem, config, producers=1)


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block."""
    whole, threads = warpgroups.in_cluster(config), warpgroups.thread_count(config, producers=1)
    return one_tile(problem, whole, threads, warpgroups.shared_bytes(config))


KERNEL = Kernel(
    name="warp_specialized",
    rung=19,
    idea="A producer waits for empty stages and loads; consumers wait for full ones and multiply, "
    "with the registers that the producer gives up.",
    default=TileConfig(BM=128, BN=256, BK=64, stages=4),
    space={"BM": (128,), "BN": (64, 128, 192, 256), "BK": (64,), "stages": (2, 3, 4, 5, 6)},
    launch=launch,
    work=work,
    loads=warpgroups.words,
    rule=rule,
    signature=warpgroups.MAPS_SIGNATURE,
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=warpgroups.loaded_by_tma,
)
