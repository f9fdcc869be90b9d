"""How `gemm_tf32_mma` is launched: fp32 on tensor cores by mma.sync, rounded to TF32."""

from __future__ import annotations

from gemmkit.kernels import tensor_cores
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LAYOUTS, TileConfig
from gemmkit.kernels.production import gemm_mma, tf32_mma
from gemmkit.kernels.production.arguments import SIGNATURE

KERNEL = Kernel(
    name="gemm_tf32_mma",
    rung=None,
    idea="Warps round fragments of fp32 to TF32 between shared memory and mma.sync: eight times "
    "the rate of FFMA on an A100, with ten bits of mantissa.",
    default=TileConfig(BM=128, BN=256, BK=16, WM=64, WN=64, stages=3),
    space={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "BK": (16, 32),
        "WM": (16, 32, 64, 128),
        "WN": (16, 32, 64, 128),
        "stages": (2, 3, 4, 5, 6),
    },
    launch=gemm_mma.tile_launch,
    work=tf32_mma.work_of(1, lambda _: 0.0, 0),
    loads=tensor_cores.words,
    rule=gemm_mma.rule,
    signature=SIGNATURE,
    layouts=LAYOUTS,
    result_dtypes=("float32", "float16", "bfloat16"),
    precision="tf32",
    compute_dtype="tf32",
    condition=tf32_mma.condition,
    pairing=tf32_mma.pairing,
)
