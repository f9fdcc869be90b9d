"""Bugs planted in the rungs that move four floats at a time and divide blocks into warps."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

_COMPLETE = "__syncthreads();  // the tiles are complete"
_UNUSED = "__syncthreads();  // nobody reads the tiles any more"
_DOUBLE = "__syncthreads();  // the tiles are complete, and nobody reads those of two steps ago"

PLANTED = (
    # --- vectorized ---------------------------------------------------------------------------
    Mutation(
        name="quads of B that start one float late",
        kernel="vectorized",
        problem=GemmProblem(32, 32, 8),
        old="b_tiles(element(B, ldb, 0, block_col), ldb)",
        new="b_tiles(element(B, ldb, 0, block_col + 1), ldb)",
        expects=("memcheck",),
    ),
    Mutation(
        name="columns of C stored without a guard",
        kernel="vectorized",
        problem=GemmProblem(32, 36, 8),
        old="if (row < M && col < N) {",
        new="if (row < M) {",
        expects=("memcheck",),
    ),
    Mutation(
        name="a quad transposed into one row",
        kernel="vectorized",
        problem=GemmProblem(32, 32, 8),
        old="tile[Walk::col(step) + v][Walk::row(step)]",
        new="tile[Walk::col(step)][Walk::row(step)]",
        expects=("initcheck",),
        file="tile_io.cuh",
    ),
    Mutation(
        name="a padding that breaks the alignment of quads",
        kernel="vectorized",
        problem=GemmProblem(32, 32, 8),
        old="float As[BK][BM];",
        new="float As[BK][BM + 1];",
        expects=("memcheck",),
    ),
    Mutation(
        name="no barrier before the next tiles",
        kernel="vectorized",
        problem=GemmProblem(32, 32, 16),
        old=_UNUSED,
        new="",
        expects=("racecheck",),
    ),
    # --- conflict_free ------------------------------------------------------------------------
    Mutation(
        name="a warp's barrier where the block's is needed",
        kernel="conflict_free",
        problem=GemmProblem(32, 32, 8),
        old=_COMPLETE,
        new="__syncwarp();",
        expects=("racecheck",),
    ),
    Mutation(
        name="columns taken by the thread's row",
        kernel="conflict_free",
        problem=GemmProblem(32, 32, 8),
        old="load_fragment<THREADS_N>(b, Bs[k], thread_col);",
        new="load_fragment<THREADS_N>(b, Bs[k], thread_row);",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="no column guard in the fetch",
        kernel="conflict_free",
        problem=GemmProblem(32, 32, 12),
        old="if (Walk::row(step) < rows && Walk::col(step) < cols) {",
        new="if (Walk::row(step) < rows) {",
        expects=("memcheck",),
        file="tile_io.cuh",
    ),
    Mutation(
        name="what was held for the last tile stays",
        kernel="conflict_free",
        problem=GemmProblem(32, 32, 12),
        old="for (int v = 0; v < VEC; ++v) held[step][v] = 0.0f;",
        new="for (int v = 0; v < VEC; ++v) held[step][v] += 0.0f;",
        expects=(WRONG_RESULT,),
        file="tile_io.cuh",
    ),
    Mutation(
        name="A walked with the pitch of B",
        kernel="conflict_free",
        problem=GemmProblem(32, 64, 8),
        old="a_tiles(element(A, lda, block_row, 0), lda)",
        new="a_tiles(element(A, lda, block_row, 0), ldb)",
        expects=("memcheck",),
    ),
    # --- double_buffered ----------------------------------------------------------------------
    Mutation(
        name="no barrier",
        kernel="double_buffered",
        problem=GemmProblem(32, 32, 8),
        old=_DOUBLE,
        new="",
        expects=("racecheck",),
    ),
    Mutation(
        name="the stage never changes",
        kernel="double_buffered",
        problem=GemmProblem(32, 32, 16),
        old="K > 0; stage ^= 1)",
        new="K > 0;)",
        expects=("racecheck",),
    ),
    Mutation(
        name="A read from the other stage",
        kernel="double_buffered",
        problem=GemmProblem(32, 32, 8),
        old="load_fragment<THREADS_M>(a, As[stage][k], thread_row);",
        new="load_fragment<THREADS_M>(a, As[stage ^ 1][k], thread_row);",
        expects=("initcheck",),
    ),
    Mutation(
        name="room for one stage of A",
        kernel="double_buffered",
        problem=GemmProblem(32, 32, 16),
        old="float As[2][BK][BM + PAD];",
        new="float As[1][BK][BM + PAD];",
        expects=("memcheck",),
    ),
    Mutation(
        name="the next tile of A fetched as if k had not advanced",
        kernel="double_buffered",
        problem=GemmProblem(32, 32, 8),
        old="a_tiles.fetch(M - block_row, K);  // past",
        new="a_tiles.fetch(M - block_row, K + BK);  // past",
        expects=("memcheck",),
    ),
    Mutation(
        name="barrier at the end of the step",
        kernel="double_buffered",
        problem=GemmProblem(32, 32, 8),
        old=f"{_DOUBLE}\n\n    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);\n    K -= BK;",
        new="if (K > BK) __syncthreads();\n"
        "    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);\n    K -= BK;",
        expects=("racecheck",),
    ),
    # --- warp_tiled ---------------------------------------------------------------------------
    Mutation(
        name="no barrier between warps",
        kernel="warp_tiled",
        problem=GemmProblem(64, 64, 8),
        old=_DOUBLE,
        new="",
        expects=("racecheck",),
    ),
    Mutation(
        name="rows of the warps by their column",
        kernel="warp_tiled",
        problem=GemmProblem(64, 64, 8),
        old="warp_row = warp / (BN / WN) * WM",
        new="warp_row = warp % (BN / WN) * WM",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="barrier for the upper warps only",
        kernel="warp_tiled",
        problem=GemmProblem(64, 64, 8),
        old=_DOUBLE,
        new="if (warp_row == 0) __syncthreads();",
        expects=("racecheck",),
        hangs=True,
    ),
    Mutation(
        name="warps write the same rows of C",
        kernel="warp_tiled",
        problem=GemmProblem(64, 64, 8),
        old="block_row + warp_row, block_col + warp_col",
        new="block_row, block_col + warp_col",
        expects=("racecheck", WRONG_RESULT),
    ),
    Mutation(
        name="the tiles of B lie on the second stage of A",
        kernel="warp_tiled",
        problem=GemmProblem(64, 64, 16),
        old="__shared__ alignas(16) float Bs[2][BK][BN];",
        new="float (&Bs)[2][BK][BN] = reinterpret_cast<float (&)[2][BK][BN]>(As[0][0][16]);",
        expects=("racecheck",),
    ),
)
