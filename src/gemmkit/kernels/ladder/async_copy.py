"""Rung 10: cp.async, a circular buffer of stages."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.cut import whole_tiles
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.fp32 import staged
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# Template parameters of the `.cu` file, and of those of the rungs that copy like it.
TEMPLATE = ("BM", "BN", "BK", "WM", "WN", "TM", "TN", "STAGES", "PAD", "MAP_K", "VEC")


def stages_bytes(config: TileConfig) -> int:
    """Shared bytes of the circular buffer."""
    return config["stages"] * rules.stage_bytes(config, rules.PAD)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The warp tiles of `warp_tiled`, with their stages in dynamic shared memory."""
    return rules.first_reason(
        lambda: rules.has_cp_async(gpu),
        lambda: rules.quads(config, gpu),
        lambda: rules.warps(config),
        lambda: rules.enough_stages(config),
        lambda: rules.divides(config, rules.MAP_K, "BK"),
        lambda: rules.even_shares(config, b_vector=4, a_width=rules.MAP_K),
        lambda: rules.dynamic_shared(stages_bytes(config), gpu),
    )


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """A block per tile."""
    shape = launches.block_per_tile(*TEMPLATE)(problem, config, gpu)
    return replace(shape, shared_bytes=stages_bytes(config))


def work(problem: GemmProblem, config: TileConfig, _: GpuSpec) -> Work:
    """A tile per block."""
    found = whole_tiles(problem, config, config["BM"], config["BN"])
    return staged(found, problem, config, stages_bytes(config))


KERNEL = Kernel(
    name="async_copy",
    rung=10,
    idea="cp.async copies tiles to shared memory several stages ahead without passing through "
    "registers, which leaves room for 16×8 results per thread.",
    default=TileConfig(BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3),
    space={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "BK": (8, 16, 32),
        "WM": (16, 32, 64, 128),
        "WN": (16, 32, 64, 128),
        "TM": (4, 8, 16),
        "TN": (4, 8, 16),
        "stages": (2, 3, 4),
    },
    launch=launch,
    work=work,
    loads=loads.tiles,
    rule=rule,
)
