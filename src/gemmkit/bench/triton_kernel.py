"""The Triton peer's kernel: a tiled fp32 product in IEEE arithmetic or TF32, edges masked.

Importing this module needs Triton, which reads annotations itself: it takes none but its own.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


def _matmul(
    a,
    b,
    c,
    bias,
    M,
    N,
    K,
    lda,
    ldb,
    ldc,
    stride_a,
    stride_b,
    stride_c,
    alpha,
    beta,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    BATCHED: tl.constexpr,
    SCALED: tl.constexpr,
    ADDED: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """C = relu(alpha·A·B + beta·C + bias), row-major, with the parts that the constants ask for."""
    if BATCHED:
        product = tl.program_id(1).to(tl.int64)
        a += product * stride_a
        b += product * stride_b
        c += product * stride_c
    # Tiles go in groups of GROUP rows of tiles, column by column, so that they share L2.
    tile = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = tile // (GROUP * tiles_n)
    first = group * GROUP
    height = min(tiles_m - first, GROUP)
    tile_m = first + (tile % (GROUP * tiles_n)) % height
    tile_n = (tile % (GROUP * tiles_n)) // height

    rows = (tile_m * BM + tl.arange(0, BM)).to(tl.int64)
    columns = tile_n * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    a_tile = a + rows[:, None] * lda + depth[None, :]
    b_tile = b + depth[:, None].to(tl.int64) * ldb + columns[None, :]
    inside_m, inside_n = rows[:, None] < M, columns[None, :] < N
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        inside = depth < K - k
        a_part = tl.load(a_tile, mask=inside_m & inside[None, :], other=0.0)
        b_part = tl.load(b_tile, mask=inside_n & inside[:, None], other=0.0)
        sums = tl.dot(a_part, b_part, sums, input_precision=PRECISION)
        a_tile += BK
        b_tile += BK * ldb
    if SCALED:
        sums *= alpha
    c_tile = c + rows[:, None] * ldc + columns[None, :]
    if ADDED:
        sums += beta * tl.load(c_tile, mask=inside_m & inside_n, other=0.0)
    if BIAS:
        sums += tl.load(bias + columns, mask=columns < N, other=0.0)[None, :]
    if RELU:
        sums = tl.maximum(sums, 0.0)
    tl.store(c_tile, sums, mask=inside_m & inside_n)


matmul = triton.jit(_matmul)
