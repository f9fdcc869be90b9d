"""Bugs planted in the rungs for tensor cores: fragments, swizzled tiles, a pipeline of stages."""

from __future__ import annotations

from cp_async_bugs import copies_past_the_matrix, waiting_bugs
from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

# Whole tiles, in as many steps as a buffer of three stages needs.
_WHOLE = GemmProblem(32, 32, 64, dtype="bfloat16")
# Rows past the last tile, of whole vectors and of single elements.
_VECTORS = GemmProblem(40, 32, 16, dtype="bfloat16")
_ELEMENTS = GemmProblem(33, 33, 17, dtype="bfloat16")
_DOUBLE = "__syncthreads();  // this stage is complete; no thread reads the other one"
_PIPELINED = "__syncthreads();  // the tiles of this stage"

PLANTED = (
    # --- wmma ---------------------------------------------------------------------------------
    Mutation(
        name="no barrier before fragments are loaded",
        kernel="wmma",
        problem=_WHOLE,
        old=_DOUBLE,
        new="",
        expects=("racecheck",),
    ),
    Mutation(
        name="results read before all lanes have stored theirs",
        kernel="wmma",
        problem=_WHOLE,
        old="tc::mem_row_major);\n      __syncwarp();",
        new="tc::mem_row_major);",
        expects=("racecheck",),
    ),
    Mutation(
        name="rows of C stored without a guard",
        kernel="wmma",
        problem=_VECTORS,
        old="if (block_row + row < M && block_col + col < N) {",
        new="if (block_col + col < N) {",
        expects=("memcheck",),
    ),
    Mutation(
        name="a pitch without the padding",
        kernel="wmma",
        problem=_WHOLE,
        old="BK + PAD);",
        new="BK);",
        expects=("initcheck",),
    ),
    # --- mma_sync -----------------------------------------------------------------------------
    Mutation(
        name="no barrier before ldmatrix",
        kernel="mma_sync",
        problem=_WHOLE,
        old=_DOUBLE,
        new="",
        expects=("racecheck",),
    ),
    Mutation(
        name="fragments of B not transposed",
        kernel="mma_sync",
        problem=_WHOLE,
        old="m8n8.x4.trans.shared",
        new="m8n8.x4.shared",
        expects=(WRONG_RESULT,),
        file="mma.cuh",
    ),
    Mutation(
        name="halves of a fragment's rows mixed up",
        kernel="mma_sync",
        problem=_WHOLE,
        old="i * 16 + lane % 16, k + lane / 16 * 8)",
        new="i * 16 + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8)",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="chunks moved by a sum in place of an exclusive or",
        kernel="mma_sync",
        problem=_WHOLE,
        old="col / CHUNK ^ row",
        new="col / CHUNK + row",
        expects=("racecheck",),
        file="typed_tile.cuh",
    ),
    Mutation(
        name="rows of A read past the last",
        kernel="mma_sync",
        problem=_ELEMENTS,
        old="if (Walk::row(step) < rows && Walk::col(step) < cols)",
        new="if (Walk::col(step) < cols)",
        expects=("memcheck",),
        file="typed_tile.cuh",
    ),
    # --- mma_pipelined ------------------------------------------------------------------------
    *waiting_bugs("mma_pipelined", _PIPELINED, problem=_WHOLE),
    copies_past_the_matrix("mma_pipelined", _VECTORS),
    Mutation(
        name="copies into the stage that is read",
        kernel="mma_pipelined",
        problem=_WHOLE,
        old="copy(stages[previous], ",
        new="copy(stages[stage], ",
        expects=("racecheck",),
    ),
    Mutation(
        name="a circular buffer with one stage too few",
        kernel="mma_pipelined",
        problem=_WHOLE,
        old="stage + 1 < STAGES ?",
        new="stage + 2 < STAGES ?",
        expects=("racecheck",),
    ),
    Mutation(
        name="no zeros past the matrix",
        kernel="mma_pipelined",
        problem=_ELEMENTS,
        old="held.store(tile.at(row, col));",
        new="if (inside) held.store(tile.at(row, col));",
        expects=("initcheck",),
        file="typed_async.cuh",
    ),
)
