"""Rung 3: block tiles in shared memory."""

from __future__ import annotations

from gemmkit.gpu import GpuSpec
from gemmkit.kernels import launches, loads, rules
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops import fp32
from gemmkit.kernels.plan import TileConfig


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """Square tiles, one float of each for every thread."""
    square = config["BM"] == config["BN"] == config["BK"]
    return rules.first_reason(
        lambda: rules.positive(config),
        lambda: None if square else "BM, BN and BK must be equal: a thread copies one float each",
        lambda: rules.threads_fit(config, gpu),
    )


KERNEL = Kernel(
    name="shared_tiling",
    rung=3,
    idea="A block copies tiles of A and B to shared memory once and reads them there many "
    "times, which divides global traffic by the tile size.",
    default=TileConfig(BM=32, BN=32, BK=32),
    space={"BM": (8, 16, 32), "BN": (8, 16, 32), "BK": (8, 16, 32)},
    launch=launches.thread_per_result("BM", "BN", "BK"),
    work=fp32.through_registers(),
    loads=loads.tiles,
    rule=rule,
)
