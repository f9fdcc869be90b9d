"""Rung 8: the next tile loads while this one computes."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import conflict_free
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.spaces import REGISTER_TILES


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Two stages of the tiles of `conflict_free`."""
    return rules.first_reason(
        lambda: conflict_free.rule(config, gpu),
        lambda: rules.static_shared(2 * rules.stage_bytes(config, rules.PAD)),
    )


KERNEL = Kernel(
    name="double_buffered",
    rung=8,
    idea="The next tiles are fetched while the current ones are multiplied, so the latency of "
    "global memory hides behind arithmetic and one barrier per step suffices.",
    default=TileConfig(BM=128, BN=128, BK=16, TM=8, TN=8),
    space=REGISTER_TILES,
    launch=launches.block_per_tile("BM", "BN", "BK", "TM", "TN", "PAD", "MAP_K", "VEC"),
    work=fp32.through_registers(vectors=True, bounded=True, overlapped=True),
    loads=loads.tiles,
    rule=rule,
)
