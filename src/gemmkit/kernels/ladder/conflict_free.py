"""Rung 7: no bank conflicts."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.spaces import REGISTER_TILES


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """128-bit copies, a padded A tile with a thread map of its own."""
    return rules.first_reason(
        lambda: rules.quads(config, gpu),
        lambda: rules.divides(config, rules.MAP_K, "BK"),
        lambda: rules.even_shares(config, a_vector=4, b_vector=4, a_width=rules.MAP_K),
        lambda: rules.static_shared(rules.stage_bytes(config, rules.PAD)),
    )


KERNEL = Kernel(
    name="conflict_free",
    rung=7,
    idea="Padding, and columns interleaved among threads by fours, keep the accesses of a warp in "
    "different banks, so shared memory serves each in as few cycles as its bytes need.",
    default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
    space=REGISTER_TILES,
    launch=launches.block_per_tile("BM", "BN", "BK", "TM", "TN", "PAD", "MAP_K", "VEC"),
    work=fp32.through_registers(vectors=True, bounded=True),
    loads=loads.tiles,
    rule=rule,
)
