"""Bugs planted in the rung for skinny products: its stages, its shuffles, its warps' sums."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

# Few rows, and few columns; neither side nor k fills a tile.
_WIDE = GemmProblem(3, 70, 310)
_TALL = GemmProblem(70, 3, 310)
# Few rows that are aligned: copied four floats at a time.
_ALIGNED = GemmProblem(5, 72, 312)

PLANTED = (
    Mutation(
        name="lanes that share k left out",
        kernel="warp_reduce",
        problem=_WIDE,
        old=": 0b11000;",
        new=": 0b10000;",
        expects=("racecheck",),
    ),
    Mutation(
        name="a shuffle in which only some lanes take part",
        kernel="warp_reduce",
        problem=_TALL,
        old="if (K_LANES & bit) sums",
        new="if ((K_LANES & bit) && lane < 16) sums",
        expects=("synccheck",),
    ),
    Mutation(
        name="the sums of one warp left out",
        kernel="warp_reduce",
        problem=_WIDE,
        old="warp < WARPS_K; ++warp",
        new="warp < WARPS_K - 1; ++warp",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="rows read past the end of k",
        kernel="warp_reduce",
        problem=_WIDE,
        old="row < (TALL ? n_left : k_left) &&",
        new="row < (TALL ? n_left : BK) &&",
        expects=("memcheck",),
    ),
    Mutation(
        name="lines read past their end",
        kernel="warp_reduce",
        problem=_WIDE,
        old="from, k < k_left);",
        new="from, true);",
        expects=("memcheck",),
    ),
    Mutation(
        name="no barrier between the stages and the sums",
        kernel="warp_reduce",
        problem=_TALL,
        old="__syncthreads();  // the stages are free",
        new="//",
        expects=("racecheck",),
    ),
    Mutation(
        name="no barrier between the sums of the warps and their reader",
        kernel="warp_reduce",
        problem=_WIDE,
        old="  __syncthreads();\n\n  const Epilogue",
        new="  const Epilogue",
        expects=("racecheck",),
    ),
    Mutation(
        name="copies into the stage that is read",
        kernel="warp_reduce",
        problem=_TALL,
        old="start_copies(stages[previous]);",
        new="start_copies(stages[stage]);",
        expects=("racecheck",),
    ),
    Mutation(
        name="one stage too many left under way",
        kernel="warp_reduce",
        problem=_TALL,
        old="cp_async_wait<STAGES - 2>();",
        new="cp_async_wait<STAGES - 1>();",
        expects=("racecheck",),
    ),
    Mutation(
        name="lines read before other warps have copied them",
        kernel="warp_reduce",
        problem=_ALIGNED,
        old="__syncthreads();  // this stage is complete",
        new="__syncwarp();  // this stage is complete",
        expects=("racecheck",),
    ),
    Mutation(
        name="lines padded to no multiple of 16 bytes",
        kernel="warp_reduce",
        problem=_ALIGNED,
        old="lines[SMALL][BK + PAD];",
        new="lines[SMALL][BK + PAD - 1];",
        expects=("memcheck",),
    ),
)
