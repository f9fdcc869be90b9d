"""Rung 4: several results per thread, in a column."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import TileConfig

COARSENING_STRIDES = (1, 2, 4, 8, 16)


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """TM results per thread; the stride is one of `COARSENING_STRIDES`."""
    strides = ", ".join(map(str, COARSENING_STRIDES))
    return rules.first_reason(
        lambda: rules.positive(config),
        lambda: None if config["TM"] in COARSENING_STRIDES else f"TM is the stride: {strides}",
        lambda: rules.divides(config, "TM", "BM"),
        lambda: rules.threads_fit(config, gpu),
        lambda: rules.even_shares(config),
        lambda: rules.static_shared(rules.stage_bytes(config)),
    )


KERNEL = Kernel(
    name="coarsening_1d",
    rung=4,
    idea="A thread computes TM results of a column and uses each float of B for all of them, "
    "which saves shared-memory reads and gives it independent work.",
    default=TileConfig(BM=16, BN=16, BK=16, TM=8),
    space={"BM": (16, 32, 64), "BN": (16, 32, 64), "BK": (8, 16, 32), "TM": COARSENING_STRIDES},
    launch=launches.block_per_tile("BM", "BN", "BK", "TM"),
    work=fp32.through_registers(),
    loads=loads.tiles,
    rule=rule,
    aliases={"stride": "TM"},
)
