"""Bugs planted in the kernel for groups: whose tile a block has, its matrices, the next tile."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

# Products of many tiles and of one, one of them empty, with sizes of no tile.
_GROUPS = GemmProblem.of_groups("130x260x20,9x30x33*9,5x0x3,31x17x9")
# More small tiles than the board holds blocks, so that a block has several.
_MANY = GemmProblem.of_groups("4x4x4*900")

PLANTED = (
    Mutation(
        name="the first tile of a product given to the one before",
        kernel="gemm_grouped",
        problem=_GROUPS,
        old="(first(middle) <= tile ? low : high)",
        new="(first(middle) < tile ? low : high)",
        expects=(WRONG_RESULT,),
        file="scheduler/grouped.cuh",
    ),
    Mutation(
        name="rows of B as far apart as those of A",
        kernel="gemm_grouped",
        problem=_GROUPS,
        old="group.ldb, {col, group.N}, K)",
        new="group.lda, {col, group.N}, K)",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="columns of the first product written in all",
        kernel="gemm_grouped",
        problem=_GROUPS,
        old="group.ldc, group.M, group.N,",
        new="group.ldc, group.M, list[0].N,",
        expects=("memcheck", WRONG_RESULT),
    ),
    Mutation(
        name="the next tile's copies started while stages are read",
        kernel="gemm_grouped",
        problem=_MANY,
        old="__syncthreads();  // nobody reads the stages any more",
        new="__syncwarp();",
        expects=("racecheck",),
    ),
    Mutation(
        name="blocks that stop after their first tile",
        kernel="gemm_grouped",
        problem=_MANY,
        old="more = tile_count - tile > static_cast<int>(gridDim.x);",
        new="more = false;",
        expects=(WRONG_RESULT,),
    ),
)
