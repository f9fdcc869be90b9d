"""Bugs planted in the kernel for skinny products: its stream, its lines along k, its sums."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

# Few rows, and few columns; m, n and k are not multiples of the tile, and k is split in three.
_WIDE = GemmProblem(3, 70, 110)
_TALL = GemmProblem(70, 3, 110)
# Few, aligned rows, so that everything is copied to shared memory.
_COPIED = GemmProblem(5, 72, 112)

PLANTED = (
    Mutation(
        name="lanes that forget which half they kept",
        kernel="gemm_skinny",
        problem=_WIDE,
        old="return (upper ? HALF : 0) +",
        new="return",
        expects=("initcheck", WRONG_RESULT),
        file="mainloop/skinny.cuh",
    ),
    Mutation(
        name="the sums of one warp left out",
        kernel="gemm_skinny",
        problem=GemmProblem(3, 70, 32),
        old="(ring, WARPS_K, finish)",
        new="(ring, WARPS_K - 1, finish)",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="even shares where k is cut unevenly",
        kernel="gemm_skinny",
        problem=_WIDE,
        old="steps = share + (part < more)",
        new="steps = share",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="lines of rows that are not there",
        kernel="gemm_skinny",
        problem=_WIDE,
        old="min(s, lines_there - 1)",
        new="s",
        expects=("memcheck",),
    ),
    Mutation(
        name="lines read past their end",
        kernel="gemm_skinny",
        problem=_WIDE,
        old="} else if (k < k_left) {",
        new="} else {",
        expects=("memcheck",),
    ),
    Mutation(
        name="no barrier between the lines and the sums",
        kernel="gemm_skinny",
        problem=_TALL,
        old="__syncthreads();  // the ring is free",
        new="//",
        expects=("racecheck",),
    ),
    Mutation(
        name="no barrier between the sums of the warps and their reader",
        kernel="gemm_skinny",
        problem=_WIDE,
        old="  __syncthreads();\n\n  const Epilogue",
        new="  const Epilogue",
        expects=("racecheck",),
    ),
    Mutation(
        name="lines copied to the stage that is read",
        kernel="gemm_skinny",
        problem=_TALL,
        old="stage == 0 ? STAGES : stage - 1",
        new="stage",
        expects=("racecheck",),
    ),
    Mutation(
        name="one stage too many left under way",
        kernel="gemm_skinny",
        problem=_TALL,
        old="cp_async_wait<STAGES - 1>();",
        new="cp_async_wait<STAGES>();",
        expects=("racecheck",),
    ),
    Mutation(
        name="rows read before other lanes have copied them",
        kernel="gemm_skinny",
        problem=_COPIED,
        old=": __syncwarp();",
        new=": (void)0;",
        expects=("racecheck",),
    ),
    Mutation(
        name="copies of rows that are not there",
        kernel="gemm_skinny",
        problem=_COPIED,
        old="line < lines_left && k < own_left",
        new="k < own_left",
        expects=("memcheck",),
        file="mainloop/skinny.cuh",
    ),
)
