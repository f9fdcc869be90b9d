"""Bugs planted in the rung that copies tiles by cp.async, in a pipeline of three stages."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

_RING = "mainloop/cp_async_fma.cuh"
_WAIT = "cp_async_wait<STAGES - 2>();"
_BARRIER = "__syncthreads();  // the tiles of this step are there"
_PROBLEM = GemmProblem(64, 64, 32)

PLANTED = (
    Mutation(
        name="no wait",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old=_WAIT,
        new="",
        expects=("racecheck",),
        file=_RING,
    ),
    Mutation(
        name="wait for one group too few",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old=_WAIT,
        new="cp_async_wait<STAGES - 1>();",
        expects=("racecheck",),
        file=_RING,
    ),
    Mutation(
        name="no commit",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old="cp_async_commit();",
        new="",
        expects=("racecheck",),
        file=_RING,
    ),
    Mutation(
        name="no barrier after the wait",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old=_BARRIER,
        new="//",
        expects=("racecheck",),
        file=_RING,
    ),
    Mutation(
        name="barrier before the wait",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old=_WAIT,
        new=f"__syncthreads(); {_WAIT} if (false)",  # ... the barrier that follows
        expects=("racecheck",),
        file=_RING,
    ),
    Mutation(
        name="copies into the stage that is read",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old="write = (STAGES - 1) * SIZE",
        new="write = 0",
        expects=("racecheck",),
        file=_RING,
    ),
    Mutation(
        name="one stage too few filled at the start",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old="stage < STAGES - 1",
        new="stage < STAGES - 2",
        expects=("initcheck",),
        file=_RING,
    ),
    Mutation(
        name="a ring with one stage too few",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old="read = read == (STAGES - 1) * SIZE",
        new="read = read == (STAGES - 2) * SIZE",
        expects=("racecheck",),
        file=_RING,
    ),
    Mutation(
        name="copies read past the matrix",
        kernel="gemm_tiled",
        problem=GemmProblem(65, 64, 8),
        old="const int bytes = inside ? 4 * VEC : 0;",
        new="const int bytes = 4 * VEC;",
        expects=("memcheck",),
        file="cp_async.cuh",
    ),
    Mutation(
        name="rows of A padded to no multiple of a quad",
        kernel="gemm_tiled",
        problem=_PROBLEM,
        old="PAD = TILE.pad",
        new="PAD = TILE.pad - 1",
        expects=("memcheck",),
        file=_RING,
    ),
    Mutation(
        name="A copied without transposing it",
        kernel="gemm_tiled",
        problem=_PROBLEM,
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
        problem=_PROBLEM,
        old="max(feed.left - chunk, 0) : 0;",
        new="max(feed.left - chunk, 0) : 1;",
        expects=(WRONG_RESULT,),
        file=_RING,
    ),
)
