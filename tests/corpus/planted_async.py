"""Bugs planted in the main loop of production kernels that copies tiles by cp.async."""

from __future__ import annotations

from cp_async_bugs import STAGES_PROBLEM, copies_past_the_matrix, waiting_bugs
from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

_RING = "mainloop/cp_async_fma.cuh"
_BARRIER = "__syncthreads();  // the tiles of this step are there"

PLANTED = (
    *waiting_bugs("gemm_tiled", _BARRIER, _RING),
    Mutation(
        name="copies into the stage that is read",
        kernel="gemm_tiled",
        problem=STAGES_PROBLEM,
        old="write = (STAGES - 1) * SIZE",
        new="write = 0",
        expects=("racecheck",),
        file=_RING,
    ),
    Mutation(
        name="one stage too few filled at the start",
        kernel="gemm_tiled",
        problem=STAGES_PROBLEM,
        old="stage < STAGES - 1",
        new="stage < STAGES - 2",
        expects=("initcheck",),
        file=_RING,
    ),
    Mutation(
        name="a ring with one stage too few",
        kernel="gemm_tiled",
        problem=STAGES_PROBLEM,
        old="read = read == (STAGES - 1) * SIZE",
        new="read = read == (STAGES - 2) * SIZE",
        expects=("racecheck",),
        file=_RING,
    ),
    copies_past_the_matrix("gemm_tiled"),
    Mutation(
        name="rows of A padded to no multiple of a quad",
        kernel="gemm_tiled",
        problem=STAGES_PROBLEM,
        old="PAD = TILE.pad",
        new="PAD = TILE.pad - 1",
        expects=("memcheck",),
        file=_RING,
    ),
    Mutation(
        name="A copied without transposing it",
        kernel="gemm_tiled",
        problem=STAGES_PROBLEM,
        old="(TRANSPOSED ? col * PITCH + row : row * PITCH + col)",
        new="(row * PITCH + col)",
        expects=("memcheck", "racecheck"),
        file="mainloop/copy_walk.cuh",
    ),
    Mutation(
        name="no copy where the matrix ends",
        kernel="gemm_tiled",
        problem=GemmProblem(64, 64, 12),
        old="cp_async<VEC>(reinterpret_cast<float*>(place)",
        new="if (inside(TRANSPOSED ? col : row)) cp_async<VEC>(reinterpret_cast<float*>(place)",
        expects=("initcheck",),
        file="mainloop/copy_walk.cuh",
    ),
    Mutation(
        name="results of the last step left out",
        kernel="gemm_tiled",
        problem=STAGES_PROBLEM,
        old="max(feed.left - chunk, 0) : 0;",
        new="max(feed.left - chunk, 0) : 1;",
        expects=(WRONG_RESULT,),
        file=_RING,
    ),
)
