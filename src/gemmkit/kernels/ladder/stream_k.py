"""Rung 13: even shares of work for a persistent grid."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import async_copy
from gemmkit.kernels.plan import SCRATCH_SIGNATURE, LaunchShape, TileConfig, ceil_div
from gemmkit.problem import FLOAT_BYTES, GemmProblem


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """As many blocks as the board holds at once, but none without a step of BK.

    The workspace has room for two parts of tiles per block.
    """
    BM, BN = config["BM"], config["BN"]
    shape = async_copy.launch(problem, config, gpu)
    tiles = ceil_div(problem.m, BM) * ceil_div(problem.n, BN)
    steps = max(1, ceil_div(problem.k, config["BK"]))
    places = gpu.sm_count * rules.resident_blocks(config, gpu, shape.shared_bytes)
    blocks = min(places, tiles * steps)
    cut = tiles % blocks > 0 if blocks else False  # else each block has whole tiles
    return replace(
        shape,
        grid=(blocks, 1, 1),
        workspace_bytes=FLOAT_BYTES * 2 * blocks * BM * BN if cut else 0,
        arrivals=tiles if cut else 0,
    )


KERNEL = Kernel(
    name="stream_k",
    rung=13,
    idea="There are as many blocks as the board holds and each gets an even share of all "
    "steps of k, tiles being cut where a share ends, so that no SM waits for a last wave.",
    default=TileConfig(BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3),
    space=async_copy.KERNEL.space,
    launch=launch,
    rule=async_copy.rule,
    signature=SCRATCH_SIGNATURE,
)
