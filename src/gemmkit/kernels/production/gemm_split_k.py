"""How `gemm_split_k` is launched: thread blocks, and slices of each, share the k of a tile."""

from __future__ import annotations

from gemmkit.kernels import launches, rules, work
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import FULL_SCRATCH_SIGNATURE, LAYOUTS, TileConfig
from gemmkit.kernels.spaces import INNER_LOOPS

KERNEL = Kernel(
    name="gemm_split_k",
    rung=None,
    idea="Several blocks, and several warps of each, share the k of one tile, so that small "
    "products keep the whole board busy too.",
    default=TileConfig(
        BM=64,
        BN=128,
        BK=32,
        WM=32,
        WN=64,
        TM=8,
        TN=8,
        stages=3,
        split_k=2,
        slice_k=2,
        bursts=4,
        order=5,
    ),
    space={
        "BM": (16, 32, 48, 64, 96, 128, 192),
        "BN": (32, 48, 64, 96, 128),
        "BK": (16, 32, 64),
        "WM": (16, 32, 48, 64, 96),
        "WN": (32, 48, 64, 96),
        "TM": (4, 8, 12, 16),
        "TN": (4, 8, 12),
        "stages": (2, 3, 4),
        "split_k": (1, 2, 3, 4, 7, 8),
        "slice_k": (1, 2, 4, 8),
    },
    refinements=INNER_LOOPS,
    launch=launches.split_k,
    work=work.split_k,
    rule=rules.split_k,
    layouts=LAYOUTS,
    pairing=rules.pairing,
    signature=FULL_SCRATCH_SIGNATURE,
)
