"""Rung 10: cp.async, several stages."""

from __future__ import annotations

from gemmkit.kernels import launches, rules, work
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import FULL_SIGNATURE, LAYOUTS, TileConfig
from gemmkit.kernels.spaces import INNER_LOOPS

KERNEL = Kernel(
    name="async_copy",
    rung=10,
    idea="cp.async copies tiles to shared memory several stages ahead without passing through "
    "registers, which leaves room for 16×8 results per thread.",
    default=TileConfig(
        BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3, bursts=4, order=1
    ),
    space={
        "BM": (32, 64, 128, 192, 256),
        "BN": (32, 64, 128, 192, 256),
        "BK": (8, 16, 32),
        "WM": (16, 32, 48, 64, 96, 128),
        "WN": (16, 32, 64, 128),
        "TM": (4, 8, 12, 16),
        "TN": (4, 8, 16),
        "stages": (2, 3, 4),
    },
    refinements=INNER_LOOPS,
    launch=launches.async_copy,
    work=work.staged,
    signature=FULL_SIGNATURE,
    rule=rules.async_copy,
    layouts=LAYOUTS,
    pairing=rules.pairing,
)
