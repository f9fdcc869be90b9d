"""Rung 20: clusters of two blocks that share the tile of B."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads, rules, tensor_cores, warpgroups
from gemmkit.kernels.grids import tile_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import tma, warp_specialized
from gemmkit.kernels.mainloops.wgmma import one_tile
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Blocks of a cluster, one above the other in C.
CLUSTER = 2


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The tiles of `warp_specialized`, of which each block loads as many boxes of B."""
    return rules.first_reason(
        lambda: warp_specialized.rule(config, gpu),
        lambda: rules.divides(config, CLUSTER * warpgroups.line(tensor_cores.HALF_BYTES), "BN"),
    )


def launch(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> LaunchShape:
    """A cluster for each pair of tiles, its blocks along x."""
    columns, y, z = tile_grid(problem, CLUSTER * config["BM"], config["BN"])
    return replace(
        tma.block_per_tile(problem, config, producers=1),
        grid=(CLUSTER * columns, y, z),
        cluster=(CLUSTER, 1, 1),
    )


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block, also where some of these lie outside of C."""
    whole = warpgroups.in_cluster(config, CLUSTER)
    threads = warpgroups.thread_count(config, producers=1)
    return one_tile(problem, whole, threads, warpgroups.shared_bytes(config))


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words:
    """Each block loads half of the tile of B."""
    return warpgroups.words(problem, warpgroups.in_cluster(config, CLUSTER), gpu)


KERNEL = Kernel(
    name="cluster_multicast",
    rung=20,
    idea="Two blocks of a cluster need the same tile of B: each loads half of it and multicasts "
    "that half to both, so that L2 delivers a third less.",
    default=TileConfig(BM=128, BN=256, BK=64, stages=4),
    space={"BM": (128,), "BN": (128, 256), "BK": (64,), "stages": (2, 3, 4, 5, 6)},
    launch=launch,
    work=work,
    loads=words,
    rule=rule,
    signature=warpgroups.MAPS_SIGNATURE,
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=warpgroups.loaded_by_tma,
)
