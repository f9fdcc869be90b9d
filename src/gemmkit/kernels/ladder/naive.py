"""Rung 2: coalesced accesses."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import TileConfig


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """One thread per result: a block has BM×BN threads."""
    return rules.first_reason(
        lambda: rules.positive(config), lambda: rules.threads_fit(config, gpu)
    )


KERNEL = Kernel(
    name="naive",
    rung=2,
    idea="Neighboring threads take neighboring columns, so a warp reads B and writes C in "
    "whole 128-byte lines and needs a single sector of A.",
    default=TileConfig(BM=32, BN=32),
    space={"BM": (4, 8, 16, 32), "BN": (16, 32, 64)},
    launch=launches.thread_per_result("BM", "BN"),
    work=fp32.per_result(),
    loads=loads.per_result,
    rule=rule,
)
