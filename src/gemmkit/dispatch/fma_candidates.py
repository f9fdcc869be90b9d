"""Candidates that multiply float32 by FFMA, and such of every type for a short k."""

from __future__ import annotations

from gemmkit.dispatch.candidate import rows

# Where two are estimated alike, the earlier is taken: large tiles stand before small ones. Many won
# when shapes were tuned on an H100; the others have the `interleave` and `order` of which ptxas
# makes the fewest issue cycles for compute capability 9.0, or nearly, where rows that are not
# aligned would suffer. The largest tile with BK = 32 is left to tables: it wins at 8192, but loses
# a tenth at 2048, and the estimates do not tell why.
TILED = (
    *rows(
        "gemm_tiled",
        "BM BN BK WM WN TM TN stages interleave order",
        (128, 256, 16, 32, 128, 16, 8, 2, 4, 1),
        (128, 256, 16, 64, 64, 16, 8, 2, 4, 1),
        (256, 128, 16, 64, 64, 16, 8, 3, 1, 6),
        (192, 192, 16, 96, 32, 12, 8, 3, 4, 6),
        (192, 192, 16, 48, 96, 12, 12, 3, 1, 6),
        (128, 192, 16, 64, 48, 8, 12, 3, 1, 7),
        (192, 128, 16, 48, 64, 12, 8, 3, 1, 6),
        (128, 128, 16, 32, 64, 8, 8, 3, 8, 6),
        (64, 128, 32, 32, 32, 8, 4, 4, 4, 2),
        (64, 64, 16, 32, 32, 8, 4, 4, 4, 2),
        (32, 128, 32, 32, 32, 8, 4, 3, 4, 2),
        (32, 64, 32, 32, 16, 4, 4, 3, 4, 2),
    ),
    *rows(
        "gemm_stream_k",
        "BM BN BK WM WN TM TN stages interleave order",
        (128, 256, 16, 64, 64, 16, 8, 4, 4, 1),
        (128, 256, 8, 64, 64, 16, 8, 3, 1, 6),
        (256, 128, 16, 64, 64, 16, 8, 3, 4, 6),
        (256, 128, 16, 64, 64, 16, 8, 4, 4, 1),
        (256, 128, 32, 32, 64, 8, 8, 3, 8, 5),
        (64, 192, 16, 32, 96, 8, 12, 2, 2, 4),
        (128, 128, 16, 32, 64, 8, 8, 3, 4, 5),
    ),
    # Each also with k cut as suits the problem.
    *rows(
        "gemm_split_k",
        "BM BN BK WM WN TM TN stages split_k slice_k interleave order",
        (128, 256, 16, 64, 64, 16, 8, 3, 1, 1, 4, 1),
        (256, 128, 16, 64, 64, 16, 8, 3, 1, 1, 4, 1),
        (192, 96, 32, 96, 32, 12, 8, 2, 1, 2, 4, 5),
        (128, 128, 32, 64, 64, 16, 8, 2, 1, 2, 4, 5),
        (128, 128, 16, 64, 64, 16, 8, 3, 1, 1, 4, 5),
        (128, 128, 16, 32, 64, 8, 8, 3, 1, 1, 8, 3),
        (96, 96, 32, 48, 96, 12, 12, 3, 1, 4, 2, 8),
        (64, 128, 32, 64, 32, 8, 8, 3, 1, 2, 4, 5),
        (64, 128, 32, 32, 64, 8, 8, 3, 1, 2, 4, 5),
        (64, 128, 16, 32, 64, 8, 8, 3, 1, 1, 8, 3),
        (48, 96, 32, 48, 96, 12, 12, 3, 1, 4, 4, 5),
        (96, 48, 64, 96, 48, 12, 12, 2, 1, 8, 4, 3),
        (64, 64, 32, 32, 64, 8, 8, 3, 1, 4, 4, 4),
        (32, 64, 64, 32, 64, 8, 8, 3, 1, 8, 4, 3),
        (32, 64, 32, 32, 32, 8, 4, 3, 1, 2, 4, 2),
        (32, 48, 64, 32, 48, 4, 12, 3, 1, 4, 8, 7),
        (32, 32, 32, 32, 32, 8, 4, 4, 1, 4, 4, 6),
        (16, 64, 64, 16, 64, 8, 4, 3, 1, 8, 2, 4),
        (32, 32, 32, 16, 32, 4, 4, 4, 1, 2, 4, 4),
        (16, 32, 64, 16, 32, 4, 4, 3, 1, 4, 1, 3),
    ),
    # These cut k themselves, until each SM has a block.
    *rows(
        "gemm_skinny",
        "BN BK WN stages split_k",
        (32, 256, 32, 2, 128),
        (32, 256, 32, 1, 128),
        (32, 128, 32, 2, 128),
        (32, 128, 32, 3, 128),
        (64, 128, 64, 2, 128),
        (64, 64, 64, 2, 128),
        (32, 64, 32, 2, 128),
        (64, 32, 32, 2, 128),
        (16, 256, 64, 2, 128),
        (16, 512, 64, 2, 128),
    ),
)

# Products of a short k, of every type; BK covers k. Of some 25 configurations of each BK that were
# timed at 47 problems on an H100 these were the best of small and of large C.
SHORT_K = rows(
    "gemm_small_k",
    "BM BN BK WM WN TM",
    (64, 256, 4, 16, 128, 4),
    (32, 256, 4, 16, 128, 1),
    (32, 64, 4, 8, 64, 1),
    (32, 512, 8, 16, 64, 4),
    (32, 256, 8, 16, 32, 2),
    (64, 128, 12, 16, 128, 1),
    (32, 256, 12, 16, 32, 2),
    (64, 128, 16, 16, 128, 1),
    (32, 64, 16, 16, 32, 8),
    (64, 256, 20, 64, 64, 2),
    (32, 128, 20, 16, 64, 2),
    (64, 256, 24, 64, 64, 2),
    (32, 128, 24, 16, 64, 2),
    (64, 256, 28, 64, 64, 2),
    (32, 128, 28, 16, 64, 2),
    (64, 256, 32, 64, 64, 2),
    (32, 128, 32, 16, 64, 2),
)

# For boards without cp.async.
WITHOUT_ASYNC = rows(
    "warp_tiled",
    "BM BN BK WM WN TM TN",
    (128, 128, 16, 32, 64, 8, 8),
    (64, 64, 16, 32, 32, 8, 4),
    (32, 32, 16, 16, 32, 4, 4),
)

# Runs everywhere, whatever the problem: nothing is left without a choice.
FALLBACK = rows("naive", "BM BN", (8, 32))

# For many products that are no larger than a tile: few threads and little shared memory, so that
# an SM has many of them at once, and no warps that share k, whose sums would have to meet. Copies
# begin once a step: with more, ptxas runs out of the registers that so many CTAs leave it.
SMALL_TILES = rows(
    "gemm_tiled",
    "BM BN BK WM WN TM TN stages interleave order",
    (128, 64, 16, 64, 32, 8, 8, 2, 1, 5),
    (64, 64, 16, 32, 64, 8, 8, 2, 1, 1),
    (64, 64, 32, 32, 32, 8, 4, 2, 1, 2),
    (64, 32, 16, 32, 32, 8, 4, 2, 1, 2),
    (32, 32, 32, 16, 32, 4, 4, 2, 1, 2),
    (32, 32, 16, 32, 32, 8, 4, 2, 1, 2),
    (16, 32, 16, 16, 32, 4, 4, 2, 1, 2),
)
