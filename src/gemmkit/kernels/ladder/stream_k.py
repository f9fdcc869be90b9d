"""Rung 13: even shares of work for a persistent grid."""

from __future__ import annotations

from gemmkit.kernels import launches, rules, work
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import FULL_SCRATCH_SIGNATURE, LAYOUTS, TileConfig
from gemmkit.kernels.spaces import INNER_LOOPS

KERNEL = Kernel(
    name="stream_k",
    rung=13,
    idea="There are as many blocks as the board holds and each gets an even share of all "
    "steps of k, tiles being cut where a share ends, so that no SM waits for a last wave.",
    default=TileConfig(
        BM=128, BN=256, BK=16, WM=64, WN=64, TM=16, TN=8, stages=3, bursts=4, order=1
    ),
    space={
        "BM": (64, 128, 192, 256),
        "BN": (64, 128, 192, 256),
        "BK": (8, 16, 32),
        "WM": (16, 32, 48, 64),
        "WN": (16, 32, 64, 96, 128),
        "TM": (8, 12, 16),
        "TN": (4, 8, 12, 16),
        "stages": (2, 3, 4),
    },
    refinements=INNER_LOOPS,
    launch=launches.stream_k,
    work=work.stream_k,
    rule=rules.async_copy,
    layouts=LAYOUTS,
    pairing=rules.pairing,
    signature=FULL_SCRATCH_SIGNATURE,
)
