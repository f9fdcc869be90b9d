"""Rung 6: 128-bit loads."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.spaces import REGISTER_TILES


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """128-bit copies and fragments, plain tiles."""
    return rules.first_reason(
        lambda: rules.quads(config, gpu),
        lambda: rules.even_shares(config, a_vector=4, b_vector=4),
        lambda: rules.static_shared(rules.stage_bytes(config)),
    )


KERNEL = Kernel(
    name="vectorized",
    rung=6,
    idea="Global and shared memory are read four floats at a time, with A transposed on the "
    "way in, so a quarter of the load instructions move the same data.",
    default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
    space=REGISTER_TILES,
    launch=launches.block_per_tile("BM", "BN", "BK", "TM", "TN", "VEC"),
    work=fp32.through_registers(vectors=True),
    loads=loads.tiles,
    rule=rule,
)
