"""How `gemm_skinny` is launched: products of at most 16 rows or columns."""

from __future__ import annotations

from gemmkit.kernels import skinny
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import FULL_SCRATCH_SIGNATURE, TileConfig

KERNEL = Kernel(
    name="gemm_skinny",
    rung=None,
    idea="A product of at most 16 rows or columns reads its large matrix once, copies always "
    "under way, with k shared by lanes, warps and blocks whose sums meet by shuffles.",
    default=TileConfig(BN=32, BK=256, WN=32, stages=2, split_k=128),
    space={
        "BN": (16, 32, 64, 128),
        "BK": (32, 64, 128, 256, 512),
        "WN": (16, 32, 64, 128),
        "stages": (1, 2, 3),
        "split_k": (1, 2, 4, 8, 16, 32, 128),
    },
    launch=skinny.launch,
    work=skinny.work,
    rule=skinny.rule,
    signature=FULL_SCRATCH_SIGNATURE,
    condition=skinny.accepts,
)
