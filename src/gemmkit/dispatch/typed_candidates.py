"""Candidates for every type, and those for groups of different shapes."""

from __future__ import annotations

from gemmkit.dispatch.candidate import WGMMA_KEYS, Candidate, rows
from gemmkit.kernels.production import ragged_fp8, ragged_wgmma

# Tiles that elements of any type come to through registers, for mma.sync and for FFMA.
_MMA_KEYS, _MMA_TILES = (
    "BM BN BK WM WN",
    (
        (128, 128, 32, 64, 64),
        (128, 128, 16, 64, 32),
        (64, 64, 32, 32, 32),
        (64, 64, 16, 32, 32),
        (32, 32, 32, 16, 16),
        (32, 32, 16, 16, 16),
    ),
)
_FMA_KEYS, _FMA_TILES = (
    "BM BN BK WM WN TM TN",
    (
        (128, 128, 16, 32, 64, 8, 8),
        (128, 128, 8, 32, 64, 8, 8),
        (64, 128, 16, 32, 32, 8, 4),
        (64, 64, 16, 32, 32, 8, 4),
        (32, 32, 16, 16, 32, 4, 4),
    ),
)

# Other types than float32; without cp.async also other layouts and batches.
TYPED_MMA = rows("typed_mma", _MMA_KEYS, *_MMA_TILES)
TYPED = (*TYPED_MMA, *rows("typed", _FMA_KEYS, *_FMA_TILES))

# Groups of different shapes. `interleave` and `order` are those for which ptxas needs the fewest
# issue cycles of this kernel for compute capability 9.0, aligned or not; for 48 x 64 the fastest of
# those tried.
GROUPED = rows(
    "gemm_grouped",
    "BM BN BK WM WN TM TN stages interleave order",
    (128, 256, 16, 32, 128, 16, 8, 2, 4, 1),
    (256, 128, 16, 64, 64, 16, 8, 3, 1, 6),
    (128, 192, 16, 64, 48, 8, 12, 3, 1, 7),
    (128, 128, 16, 32, 64, 8, 8, 3, 8, 6),
    (128, 64, 16, 64, 32, 8, 8, 2, 1, 5),
    (64, 128, 32, 32, 32, 8, 4, 4, 4, 2),
    (64, 64, 16, 32, 64, 8, 8, 2, 1, 5),
    (64, 64, 32, 32, 32, 8, 4, 2, 1, 2),
    (64, 64, 16, 32, 32, 8, 4, 4, 4, 2),
    (48, 64, 8, 48, 32, 12, 4, 3, 4, 5),
    (32, 128, 32, 32, 32, 8, 4, 3, 4, 5),
    (64, 32, 16, 32, 32, 8, 4, 2, 1, 2),
    (32, 64, 32, 32, 16, 4, 4, 3, 4, 2),
    (32, 32, 32, 16, 32, 4, 4, 2, 1, 2),
    (32, 32, 16, 32, 32, 8, 4, 2, 1, 2),
    (16, 32, 16, 16, 32, 4, 4, 2, 1, 2),
)

# And of other types; float32 on boards without cp.async.
GROUPED_TYPED = (
    *rows("grouped_mma", _MMA_KEYS, *_MMA_TILES),
    *rows("grouped_typed", _FMA_KEYS, *_FMA_TILES),
)

# float32 where its precision allows tensor cores, on Hopper: most of those of `gemm_fp16x3` whose
# blocks do not share the k of a tile, and tiles of few rows.
GROUPED_FP16X3 = rows(
    "grouped_fp16x3",
    WGMMA_KEYS,
    (128, 192, 64, 2, 2, 1, 1, 1, 1),
    (128, 192, 32, 4, 2, 1, 1, 1, 1),
    (128, 160, 64, 2, 2, 1, 1, 1, 1),
    (128, 128, 64, 3, 2, 1, 1, 1, 1),
    (128, 128, 64, 3, 2, 1, 2, 1, 1),
    (128, 96, 64, 3, 2, 1, 1, 1, 1),
    (64, 192, 64, 3, 2, 2, 1, 1, 1),
    (64, 128, 64, 4, 2, 2, 1, 1, 1),
    (128, 64, 64, 4, 2, 1, 1, 1, 1),
    (64, 128, 64, 4, 1, 1, 1, 1, 1),
    (64, 64, 64, 6, 1, 1, 1, 1, 1),
    (64, 32, 64, 8, 1, 1, 1, 1, 1),
    (32, 64, 64, 8, 1, 1, 1, 1, 1),
    (16, 64, 64, 8, 1, 1, 1, 1, 1),
)

# float16 and bfloat16 on Hopper, where TMA can load all rows: those of `gemm_wgmma` whose blocks do
# not share the k of a tile, and of few rows, for experts that few tokens come to.
GROUPED_WGMMA = rows(
    "grouped_wgmma",
    WGMMA_KEYS,
    (128, 256, 64, 4, 2, 1, 1, 1, 1),
    (128, 256, 64, 4, 2, 1, 2, 1, 1),
    (256, 128, 64, 4, 2, 1, 1, 1, 1),
    (128, 192, 64, 4, 2, 2, 1, 1, 1),
    (192, 128, 64, 5, 1, 1, 1, 1, 1),
    (128, 160, 64, 5, 2, 2, 1, 1, 1),
    (160, 128, 64, 5, 2, 2, 1, 1, 1),
    (128, 128, 64, 6, 2, 2, 2, 1, 1),
    (128, 128, 64, 6, 2, 1, 1, 1, 1),
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
    (16, 128, 64, 8, 1, 1, 1, 1, 1),
    (16, 64, 128, 8, 1, 1, 1, 1, 1),
    (8, 64, 128, 12, 1, 1, 1, 1, 1),
)

# 8 bits on Hopper, with B along k: those of `gemm_fp8` whose blocks do not share the k of a tile,
# and of few rows.
GROUPED_FP8 = (
    *rows(
        "grouped_fp8",
        WGMMA_KEYS,
        (128, 256, 128, 3, 2, 1, 1, 1, 1),
        (256, 128, 128, 3, 2, 1, 1, 1, 1),
        (128, 192, 128, 4, 2, 1, 1, 1, 1),
        (128, 160, 128, 4, 2, 1, 1, 1, 1),
        (128, 128, 128, 5, 2, 1, 2, 1, 1),
        (128, 128, 128, 5, 2, 1, 1, 1, 1),
        (128, 96, 128, 6, 2, 1, 1, 1, 1),
        (128, 64, 128, 6, 2, 1, 1, 1, 1),
        (64, 128, 128, 6, 2, 2, 1, 1, 1),
        (64, 128, 128, 6, 1, 1, 1, 1, 1),
        (96, 64, 128, 8, 1, 1, 1, 1, 1),
        (64, 64, 128, 8, 1, 1, 1, 1, 1),
        (32, 64, 128, 8, 1, 1, 1, 1, 1),
        (16, 128, 128, 8, 2, 1, 1, 1, 1),
        (16, 64, 128, 8, 1, 1, 1, 1, 1),
        (8, 64, 128, 12, 1, 1, 1, 1, 1),
    ),
    # Those whose promotion overlaps with products.
    *rows(
        "grouped_fp8",
        "BM BN BK stages consumers pingpong accumulators cluster_m cluster_n cluster_k",
        (128, 128, 128, 5, 2, 1, 2, 1, 1, 1),
        (64, 128, 128, 6, 2, 2, 2, 1, 1, 1),
        (64, 128, 128, 6, 1, 1, 2, 1, 1, 1),
        (64, 64, 128, 8, 1, 1, 2, 1, 1, 1),
    ),
)

# The same of ragged groups, but for those with more sums than its threads have registers for.
RAGGED_WGMMA, RAGGED_FP8 = (
    tuple(
        Candidate(kernel.name, each.config)
        for each in alike
        if ragged_wgmma.too_many_sums(each.config) is None
    )
    for kernel, alike in (
        (ragged_wgmma.KERNEL, GROUPED_WGMMA),
        (ragged_fp8.KERNEL, GROUPED_FP8),
    )
)
