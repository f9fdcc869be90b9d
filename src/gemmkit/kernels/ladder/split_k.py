"""Rung 11: k split over blocks."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import MAX_GRID_YZ, GpuSpec
from gemmkit.kernels import loads, rules
from gemmkit.kernels.cut import whole_tiles
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import async_copy
from gemmkit.kernels.mainloops.fp32 import staged
from gemmkit.kernels.plan import SCRATCH_SIGNATURE, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """That of `async_copy`, and no more parts than a grid has layers."""
    return rules.first_reason(
        lambda: async_copy.rule(config, gpu),
        lambda: (
            None
            if config["split_k"] <= MAX_GRID_YZ
            else f"split_k = {config['split_k']}: a grid has {MAX_GRID_YZ} layers at most"
        ),
    )


def parts_of(problem: GemmProblem, config: TileConfig) -> int:
    """Blocks that share a tile: no more than there are steps of BK."""
    return max(1, min(config["split_k"], ceil_div(problem.k, config["BK"])))


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Tiles on x, the parts of their k on z."""
    BM, BN = config["BM"], config["BN"]
    tiles = ceil_div(problem.m, BM) * ceil_div(problem.n, BN)
    parts = parts_of(problem, config)
    shared_tiles = tiles if parts > 1 else 0
    return replace(
        async_copy.launch(problem, config, gpu),
        grid=(tiles, 1, parts),
        workspace_bytes=FLOAT_BYTES * shared_tiles * parts * BM * BN,
        semaphores=shared_tiles,
    )


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """Parts of the k of a tile per block."""
    found = whole_tiles(problem, config, config["BM"], config["BN"], parts_of(problem, config))
    shared_bytes = async_copy.stages_bytes(config)
    return staged(found, problem, config, shared_bytes, rules.STATIC_SHARED_BYTES)


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words:
    """Tiles, and the partial sums of their parts."""
    found = whole_tiles(problem, config, config["BM"], config["BN"])
    shared = loads.tiles(problem, config, gpu)
    return loads.with_parts(shared, config, found.tiles, parts_of(problem, config))


KERNEL = Kernel(
    name="split_k",
    rung=11,
    idea="Several blocks share the k of one tile and the last of them adds up their partial sums, "
    "so that a product with few tiles keeps every SM busy.",
    default=TileConfig(BM=64, BN=64, BK=16, WM=32, WN=32, TM=8, TN=4, stages=3, split_k=4),
    space={
        "BM": (32, 64, 128),
        "BN": (32, 64, 128),
        "BK": (8, 16, 32),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
        "TM": (4, 8, 16),
        "TN": (4, 8),
        "stages": (2, 3, 4),
        "split_k": (1, 2, 3, 4, 8),
    },
    launch=launch,
    work=work,
    loads=words,
    rule=rule,
    signature=SCRATCH_SIGNATURE,
)
