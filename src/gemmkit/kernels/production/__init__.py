"""`PRODUCTION`: the kernels that dispatch launches for the library."""

from __future__ import annotations

from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.production import (
    gemm_fp8,
    gemm_fp16x3,
    gemm_fp16x3_fused,
    gemm_grouped,
    gemm_mma,
    gemm_skinny,
    gemm_small_k,
    gemm_split_k,
    gemm_stream_k,
    gemm_tf32,
    gemm_tf32_mma,
    gemm_tf32_rs,
    gemm_tf32x3,
    gemm_tiled,
    gemm_wgmma,
    grouped_fp16x3,
    grouped_mma,
    grouped_typed,
    grouped_wgmma,
    skinny_mma,
    typed,
    typed_mma,
)

PRODUCTION: tuple[Kernel, ...] = (
    gemm_tiled.KERNEL,
    gemm_split_k.KERNEL,
    gemm_stream_k.KERNEL,
    gemm_skinny.KERNEL,
    gemm_small_k.KERNEL,
    gemm_grouped.KERNEL,
    typed.KERNEL,
    typed_mma.KERNEL,
    gemm_mma.KERNEL,
    skinny_mma.KERNEL,
    gemm_wgmma.KERNEL,
    gemm_fp16x3.KERNEL,
    gemm_fp16x3_fused.KERNEL,
    gemm_tf32.KERNEL,
    gemm_tf32_rs.KERNEL,
    gemm_tf32x3.KERNEL,
    gemm_tf32_mma.KERNEL,
    gemm_fp8.KERNEL,
    grouped_fp16x3.KERNEL,
    grouped_typed.KERNEL,
    grouped_mma.KERNEL,
    grouped_wgmma.KERNEL,
)
