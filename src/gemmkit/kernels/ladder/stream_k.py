"""Rung 13: even shares of work for a persistent grid."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import loads, rules
from gemmkit.kernels.cut import Cut, even_shares, whole_tiles
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import async_copy
from gemmkit.kernels.mainloops.fp32 import staged
from gemmkit.kernels.plan import SCRATCH_SIGNATURE, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem


def shares_of(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Cut:
    """As many blocks as the board holds at once, but none without a step of BK.

    Tiles are cut unless each block has whole ones.
    """
    whole = whole_tiles(problem, config, config["BM"], config["BN"])
    steps = max(1, ceil_div(problem.k, config["BK"]))
    places = gpu.sm_count * rules.resident_blocks(config, gpu, async_copy.stages_bytes(config))
    blocks = min(places, whole.tiles * steps)
    cut = blocks > 0 and whole.tiles % blocks > 0
    return even_shares(whole, blocks, whole.tiles if cut else 0)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """The blocks of `shares_of`; the workspace has room for two parts of tiles per block."""
    found = shares_of(problem, config, gpu)
    slots = 2 * found.ctas if found.cut_tiles else 0
    return replace(
        async_copy.launch(problem, config, gpu),
        grid=(found.ctas, 1, 1),
        workspace_bytes=FLOAT_BYTES * slots * config["BM"] * config["BN"],
        semaphores=found.cut_tiles,
    )


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """Even shares of all steps of k."""
    shared_bytes = async_copy.stages_bytes(config)
    found = shares_of(problem, config, gpu)
    return staged(found, problem, config, shared_bytes, rules.STATIC_SHARED_BYTES)


def words(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> loads.Words | str:
    """Those of whole tiles, unless blocks share some."""
    if shares_of(problem, config, gpu).cut_tiles:
        return loads.EVEN_SHARES
    return loads.tiles(problem, config, gpu)


KERNEL = Kernel(
    name="stream_k",
    rung=13,
    idea="There are as many blocks as the board holds and each gets an even share of all "
    "steps of k, tiles being cut where a share ends, so that no SM waits for a last wave.",
    default=TileConfig(BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3),
    space=async_copy.KERNEL.space,
    launch=launch,
    work=work,
    loads=words,
    rule=async_copy.rule,
    signature=SCRATCH_SIGNATURE,
)
