"""Candidates that multiply on tensor cores."""

from __future__ import annotations

from gemmkit.dispatch.candidate import rows

# bfloat16 and float16 on Hopper: of some 90 configurations that were timed at 110 problems on an
# H100, those that are the best somewhere. Consumers with a tile each win where k is short, tiles of
# few rows where C has no more, and blocks that share a tile's k where there are few tiles.
WGMMA = rows(
    "gemm_wgmma",
    "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
    (128, 256, 64, 4, 2, 1, 1, 1, 1),
    (128, 256, 64, 4, 2, 1, 2, 1, 1),
    (256, 128, 64, 4, 2, 1, 1, 1, 1),
    (128, 192, 64, 4, 2, 2, 1, 1, 1),
    (192, 128, 64, 5, 1, 1, 1, 1, 1),
    (128, 176, 64, 5, 2, 2, 2, 1, 1),
    (176, 128, 64, 4, 2, 2, 1, 1, 1),
    (128, 160, 64, 5, 2, 2, 1, 1, 1),
    (160, 128, 64, 5, 2, 2, 1, 1, 1),
    (144, 128, 64, 5, 2, 2, 1, 1, 1),
    (128, 128, 64, 6, 2, 2, 2, 1, 1),
    (128, 128, 64, 6, 2, 1, 1, 1, 1),
    (208, 128, 64, 5, 2, 1, 1, 1, 1),
    (240, 128, 64, 4, 2, 1, 1, 1, 1),
    (144, 128, 64, 5, 2, 1, 1, 1, 1),
    (128, 144, 64, 5, 2, 1, 1, 1, 1),
    (112, 256, 64, 4, 2, 1, 1, 1, 1),
    (128, 112, 64, 6, 2, 1, 1, 1, 1),
    (64, 256, 64, 4, 2, 2, 1, 1, 1),
    (64, 192, 64, 6, 2, 2, 1, 1, 1),
    (64, 128, 64, 8, 2, 2, 1, 1, 1),
    (64, 128, 64, 7, 1, 1, 1, 1, 1),
    (96, 64, 64, 8, 1, 1, 1, 1, 1),
    (80, 64, 64, 8, 1, 1, 1, 1, 1),
    (64, 64, 128, 4, 1, 1, 1, 1, 1),
    (64, 32, 128, 4, 1, 1, 1, 1, 1),
    (32, 128, 64, 8, 1, 1, 1, 1, 1),
    (32, 64, 64, 8, 1, 1, 1, 1, 1),
    (8, 64, 128, 12, 1, 1, 1, 1, 1),
    (128, 64, 64, 6, 2, 1, 1, 1, 2),
    (64, 64, 128, 4, 1, 1, 1, 1, 2),
    (32, 64, 128, 8, 1, 1, 1, 1, 2),
    (16, 64, 128, 8, 1, 1, 1, 1, 2),
)

# float32 where its precision allows tensor cores, on Hopper. Of operands in two parts, two sums for
# each result leave room for smaller tiles; of TF32, tiles are those of 16 bits with half the BK.
FP16X3 = rows(
    "gemm_fp16x3",
    "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
    (128, 192, 64, 2, 2, 1, 1, 1, 1),
    (128, 192, 32, 4, 2, 1, 1, 1, 1),
    (128, 160, 64, 2, 2, 1, 1, 1, 1),
    (128, 144, 64, 2, 2, 1, 1, 1, 1),
    (128, 128, 64, 3, 2, 1, 1, 1, 1),
    (128, 128, 64, 3, 2, 1, 2, 1, 1),
    (128, 96, 64, 3, 2, 1, 1, 1, 1),
    (64, 192, 64, 3, 2, 2, 1, 1, 1),
    (64, 160, 64, 3, 2, 2, 1, 1, 1),
    (64, 128, 64, 4, 2, 2, 1, 1, 1),
    (128, 64, 64, 4, 2, 1, 1, 1, 1),
    (64, 128, 64, 4, 1, 1, 1, 1, 1),
    (64, 64, 64, 6, 1, 1, 1, 1, 1),
    (64, 64, 64, 6, 1, 1, 1, 1, 2),
    (128, 64, 64, 4, 2, 1, 1, 1, 2),
    (64, 32, 64, 8, 1, 1, 1, 1, 1),
    (32, 64, 64, 8, 1, 1, 1, 1, 2),
    (16, 64, 64, 8, 1, 1, 1, 1, 2),
)
# The same without a launch before it: of few rows with a large B, and of some small products.
FP16X3_FUSED = rows(
    "gemm_fp16x3_fused",
    "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
    (128, 128, 32, 4, 2, 1, 1, 1, 2),
    (128, 96, 64, 3, 2, 1, 1, 1, 1),
    (128, 64, 64, 3, 2, 1, 1, 1, 2),
    (64, 64, 64, 6, 1, 1, 1, 1, 2),
    (64, 64, 64, 6, 1, 1, 1, 1, 4),
    (32, 64, 64, 8, 1, 1, 1, 1, 2),
)
TF32 = rows(
    "gemm_tf32",
    "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
    (128, 256, 32, 4, 2, 1, 1, 1, 1),
    (128, 256, 32, 4, 2, 1, 2, 1, 1),
    (256, 128, 32, 4, 2, 1, 1, 1, 1),
    (128, 192, 32, 4, 2, 2, 1, 1, 1),
    (192, 128, 32, 5, 1, 1, 1, 1, 1),
    (128, 160, 32, 5, 2, 2, 1, 1, 1),
    (160, 128, 32, 5, 2, 2, 1, 1, 1),
    (128, 128, 32, 6, 2, 2, 2, 1, 1),
    (128, 128, 32, 6, 2, 1, 1, 1, 1),
    (128, 144, 32, 5, 2, 1, 1, 1, 1),
    (128, 112, 32, 6, 2, 1, 1, 1, 1),
    (64, 256, 32, 4, 2, 2, 1, 1, 1),
    (64, 192, 32, 6, 2, 2, 1, 1, 1),
    (64, 128, 32, 8, 2, 2, 1, 1, 1),
    (64, 128, 32, 7, 1, 1, 1, 1, 1),
    (64, 64, 64, 4, 1, 1, 1, 1, 1),
    (64, 32, 64, 4, 1, 1, 1, 1, 1),
    (32, 64, 32, 8, 1, 1, 1, 1, 1),
    (128, 64, 32, 6, 2, 1, 1, 1, 2),
    (64, 64, 64, 4, 1, 1, 1, 1, 2),
    (32, 64, 64, 8, 1, 1, 1, 1, 2),
    (16, 64, 64, 8, 1, 1, 1, 1, 2),
)

# Of 8 bits on Hopper: steps of the same bytes, and two sums for each result. The first two tiles
# are for fast accumulation, which has one.
FP8 = (
    *rows(
        "gemm_fp8",
        "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k",
        (128, 256, 128, 3, 2, 1, 1, 1, 1),
        (256, 128, 128, 3, 2, 1, 1, 1, 1),
        (128, 192, 128, 4, 2, 1, 2, 1, 1),
        (128, 192, 128, 4, 2, 1, 1, 1, 1),
        (128, 160, 128, 4, 2, 1, 1, 1, 1),
        (128, 128, 128, 5, 2, 1, 2, 1, 1),
        (128, 128, 128, 5, 2, 1, 1, 1, 1),
        (128, 96, 128, 6, 2, 1, 1, 1, 1),
        (64, 192, 128, 5, 2, 2, 1, 1, 1),
        (64, 128, 128, 6, 2, 2, 1, 1, 1),
        (128, 64, 128, 6, 2, 1, 1, 1, 1),
        (64, 128, 128, 6, 1, 1, 1, 1, 1),
        (64, 64, 128, 8, 1, 1, 1, 1, 1),
        (64, 64, 128, 8, 1, 1, 1, 1, 2),
        (128, 64, 128, 6, 2, 1, 1, 1, 2),
        (64, 32, 128, 8, 1, 1, 1, 1, 1),
        (32, 64, 128, 8, 1, 1, 1, 1, 1),
        (32, 64, 128, 8, 1, 1, 1, 1, 2),
        (16, 64, 128, 8, 1, 1, 1, 1, 2),
    ),
    # Those whose promotion overlaps with products.
    *rows(
        "gemm_fp8",
        "BM BN BK stages consumers pingpong accumulators cluster_m cluster_n cluster_k",
        (128, 128, 128, 6, 2, 1, 2, 2, 1, 1),
        (128, 128, 128, 5, 2, 1, 2, 2, 1, 1),
        (128, 128, 128, 5, 2, 1, 2, 1, 2, 1),
        (128, 128, 128, 5, 2, 1, 2, 1, 1, 1),
        (64, 128, 128, 6, 2, 2, 2, 1, 1, 1),
        (64, 128, 128, 6, 1, 1, 2, 1, 1, 1),
        (64, 64, 128, 8, 1, 1, 2, 1, 1, 1),
    ),
)

# On boards with cp.async. Each was the fastest of these somewhere from 512 to 8192 on an H100,
# where `gemm_wgmma` overtakes all of 16 bits, but for the one of three stages: of that, boards with
# 100 KB of shared memory hold two blocks per SM.
MMA = rows(
    "gemm_mma",
    "BM BN BK WM WN stages",
    (128, 256, 32, 64, 64, 4),
    (128, 128, 32, 64, 64, 4),
    (128, 128, 32, 64, 64, 3),
    (128, 64, 32, 64, 32, 4),
    (64, 64, 64, 32, 32, 4),
    (32, 64, 64, 16, 32, 5),
    (64, 32, 64, 32, 16, 5),
    # Of fp64.
    (128, 128, 16, 64, 32, 4),
    (128, 64, 16, 32, 32, 4),
    (64, 64, 16, 32, 32, 4),
    (64, 32, 16, 16, 16, 4),
)

# float32 where its precision allows tensor cores, on boards with cp.async and without wgmma. None
# was timed there: these are the tiles of the above of which registers hold everything. In three
# products a lane has parts of its fragments too, and so half as many results.
TF32_MMA = rows(
    "gemm_tf32_mma",
    "BM BN BK WM WN stages",
    (128, 256, 16, 64, 64, 4),
    (128, 256, 16, 64, 64, 3),
    (256, 128, 16, 64, 64, 3),
    (128, 128, 16, 64, 32, 4),
    (128, 128, 16, 64, 32, 3),
    (128, 64, 16, 64, 32, 4),
    (64, 64, 32, 32, 32, 4),
    (64, 64, 32, 32, 32, 3),
    (64, 32, 32, 32, 16, 4),
    (32, 64, 32, 16, 32, 4),
    (32, 32, 32, 16, 16, 4),
)
TF32X3 = rows(
    "gemm_tf32x3",
    "BM BN BK WM WN stages",
    (128, 128, 16, 64, 32, 4),
    (128, 128, 16, 64, 32, 3),
    (128, 64, 16, 64, 32, 4),
    (64, 128, 16, 32, 64, 4),
    (64, 64, 32, 32, 32, 3),
    (64, 64, 16, 32, 32, 4),
    (64, 32, 32, 32, 16, 4),
    (32, 64, 32, 16, 32, 4),
    (32, 32, 32, 16, 16, 4),
)
