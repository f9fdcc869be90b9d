"""Rung 21: persistent clusters, whose results leave by TMA while the next operands arrive."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules, tensor_cores, warpgroups
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import cluster_multicast
from gemmkit.kernels.ladder.cluster_multicast import CLUSTER
from gemmkit.kernels.mainloops import wgmma
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.policy import CUDA_TYPES
from gemmkit.kernels.tensor_maps import MapRule
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Rows of tiles in a group, in tiles of a cluster.
RASTER = 8
# Buffers for results of each consumer.
BUFFERS = 2


def shared_bytes(config: TileConfig) -> int:
    """Shared bytes of stages, buffers and barriers."""
    return warpgroups.shared_bytes(config, BUFFERS * warpgroups.LINE_BYTES * config["BM"])


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The tiles of `cluster_multicast`, with buffers beside them."""
    return rules.first_reason(
        lambda: cluster_multicast.rule(config, gpu),
        lambda: rules.dynamic_shared(shared_bytes(config), gpu, "stages and buffers"),
    )


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """Operands that TMA can load, and results that it can store."""
    reason = warpgroups.loaded_by_tma(problem, gpu)
    if reason is not None or warpgroups.stores_by_tma(problem) or not problem.m * problem.n:
        return reason
    item = problem.out_item_bytes
    return (
        f"TMA stores rows of C that are a multiple of {warpgroups.TMA_UNIT} bytes long and apart: "
        f"these are {problem.n * item} and {problem.ldc * item}"
    )


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As many clusters as the board has room for, or fewer where there are fewer tiles."""
    sizes = (config["BM"], config["BN"], config["BK"], config["stages"])
    columns = warpgroups.line(problem.out_item_bytes)
    box = (columns, warpgroups.ROWS)
    stored = MapRule("map_c", "C", box, swizzle=warpgroups.LINE_BYTES)
    blocks = wgmma.clusters(problem, warpgroups.in_cluster(config, CLUSTER), gpu).ctas
    return LaunchShape(
        template=(CUDA_TYPES[problem.dtype], *sizes, RASTER),
        grid=(blocks, 1, 1),
        block=(warpgroups.thread_count(config, producers=1), 1, 1),
        cluster=(CLUSTER, 1, 1),
        shared_bytes=shared_bytes(config),
        rasterized=True,
        tensor_maps=(*warpgroups.maps(problem, config), stored),
    )


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile at a time per block."""
    whole = warpgroups.in_cluster(config, CLUSTER)
    threads = warpgroups.thread_count(config, producers=1)
    return wgmma.persistent(problem, whole, gpu, threads, shared_bytes(config))


KERNEL = Kernel(
    name="persistent",
    rung=21,
    idea="One cluster for each pair of SMs goes from tile to tile: while its results leave through "
    "shared memory by TMA, the next tile's operands arrive.",
    default=TileConfig(BM=128, BN=256, BK=64, stages=4),
    space={"BM": (128,), "BN": (128, 256), "BK": (64,), "stages": (2, 3, 4, 5, 6)},
    launch=launch,
    work=work,
    loads=cluster_multicast.words,
    rule=rule,
    signature=("map_a", "map_b", "map_c", *warpgroups.MAPS_SIGNATURE[2:]),
    dtypes=tensor_cores.HALVES,
    result_dtypes=tensor_cores.RESULTS,
    condition=condition,
)
