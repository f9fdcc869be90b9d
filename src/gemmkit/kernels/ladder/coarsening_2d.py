"""Rung 5: a tile of results per thread, in registers."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.spaces import REGISTER_TILES


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """TM×TN results per thread, copied float by float."""
    return rules.first_reason(
        lambda: rules.positive(config),
        lambda: rules.thread_tile(config, gpu),
        lambda: rules.even_shares(config),
        lambda: rules.static_shared(rules.stage_bytes(config)),
    )


KERNEL = Kernel(
    name="coarsening_2d",
    rung=5,
    idea="A thread computes TM×TN results as outer products in registers: its reads grow as "
    "TM+TN while its arithmetic grows as TM·TN.",
    default=TileConfig(BM=64, BN=64, BK=8, TM=8, TN=8),
    space=REGISTER_TILES,
    launch=launches.block_per_tile("BM", "BN", "BK", "TM", "TN"),
    work=fp32.through_registers(),
    loads=loads.tiles,
    rule=rule,
)
