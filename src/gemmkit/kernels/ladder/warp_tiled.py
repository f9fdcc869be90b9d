"""Rung 9: warp tiles between block and thread tiles."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import double_buffered
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import TileConfig


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Warp tiles that a warp's 32 lanes cover, inside `double_buffered` blocks."""
    return rules.first_reason(
        lambda: rules.quads(config, gpu),
        lambda: rules.warps(config),
        lambda: double_buffered.rule(config, gpu),
    )


KERNEL = Kernel(
    name="warp_tiled",
    rung=9,
    idea="Each warp owns a compact tile within the block's tile, with its lanes placed so that "
    "neighbors read the same floats, which shared memory serves in fewer wavefronts.",
    default=TileConfig(BM=128, BN=128, BK=16, WM=32, WN=64, TM=8, TN=8),
    space={
        "BM": (32, 64, 128),
        "BN": (32, 64, 128),
        "BK": (8, 16),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
        "TM": (4, 8),
        "TN": (4, 8),
    },
    launch=launches.block_per_tile("BM", "BN", "BK", "WM", "WN", "TM", "TN", "PAD", "MAP_K", "VEC"),
    work=fp32.through_registers(vectors=True, bounded=True, overlapped=True),
    loads=loads.tiles,
    rule=rule,
)
