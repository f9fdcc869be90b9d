"""Bugs planted in the rungs whose blocks share a result through the workspace."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

# Three splits of k, the first of them one step longer; every block has work in each.
_SPLIT = GemmProblem(64, 64, 64)
# Two tiles, each shared by three blocks.
_STREAM = GemmProblem(64, 128, 96)

PLANTED = (
    # --- split_k ------------------------------------------------------------------------------
    Mutation(
        name="a count that orders nothing",
        kernel="gemm_split_k",
        problem=_SPLIT,
        old="atom.acq_rel.gpu",
        new="atom.relaxed.gpu",
        expects=("racecheck",),
        file="epilogue/fix_up.cuh",
    ),
    Mutation(
        name="a count that does not release the part",
        kernel="gemm_split_k",
        problem=_SPLIT,
        old=".acq_rel.gpu",
        new=".acquire.gpu",
        expects=("racecheck",),
        file="epilogue/fix_up.cuh",
    ),
    Mutation(
        name="a count in the scope of the block",
        kernel="gemm_split_k",
        problem=_SPLIT,
        old=".acq_rel.gpu",
        new=".acq_rel.cta",
        expects=("racecheck",),
        file="epilogue/fix_up.cuh",
    ),
    Mutation(
        name="no barrier between the part and the count",
        kernel="gemm_split_k",
        problem=_SPLIT,
        old="__syncthreads();  // all of the part",
        new="//",
        expects=("racecheck",),
        file="epilogue/fix_up.cuh",
    ),
    Mutation(
        name="parts added up before all have arrived",
        kernel="gemm_split_k",
        problem=_SPLIT,
        old="if (!is_last_part(args.semaphores + tile, parts)) return;",
        new="is_last_part(args.semaphores + tile, parts);",
        expects=("initcheck", "racecheck"),
    ),
    Mutation(
        name="all parts in one slot",
        kernel="gemm_split_k",
        problem=_SPLIT,
        old="element(tile_parts, BM * BN, part, 0)",
        new="element(tile_parts, BM * BN, 0, 0)",
        expects=("initcheck", "racecheck"),
    ),
    Mutation(
        name="one counter for all tiles",
        kernel="gemm_split_k",
        problem=GemmProblem(64, 192, 64),
        old="is_last_part(args.semaphores + tile, parts)",
        new="is_last_part(args.semaphores, parts)",
        expects=("initcheck", "racecheck"),
    ),
    Mutation(
        name="counter not back at zero",
        kernel="gemm_split_k",
        problem=_SPLIT,
        old="global.inc.u32 %0, [%1], %2",
        new="global.add.u32 %0, [%1], 1",
        expects=("synccheck",),
        file="epilogue/fix_up.cuh",
    ),
    Mutation(
        name="longer first parts forgotten",
        kernel="gemm_split_k",
        problem=_SPLIT,
        old="(part * share + min(part, more)) * BK",
        new="part * share * BK",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="sums of slices stored on tiles in use",
        kernel="gemm_split_k",
        problem=GemmProblem(64, 64, 32),
        old="if (SLICES > 1) __syncthreads();  // nobody",
        new="//",
        expects=("racecheck",),
    ),
    Mutation(
        name="sums of slices read before they are stored",
        kernel="gemm_split_k",
        problem=GemmProblem(64, 64, 32),
        old="__syncthreads();\n    const auto read",
        new="const auto read",
        expects=("racecheck",),
    ),
    # --- stream_k -----------------------------------------------------------------------------
    Mutation(
        name="parts added up before all have arrived",
        kernel="gemm_stream_k",
        problem=_STREAM,
        old="if (!whole && is_last_part(args.semaphores + work.tile, parts)) {",
        new="if (!whole) {\n      is_last_part(args.semaphores + work.tile, parts);",
        expects=("initcheck", "racecheck"),
    ),
    Mutation(
        name="one part too few awaited",
        kernel="gemm_stream_k",
        problem=_STREAM,
        old="- first + 1;",
        new="- first;",
        expects=("synccheck",),
    ),
    Mutation(
        name="blocks that share a tile share a slot",
        kernel="gemm_stream_k",
        problem=_STREAM,
        old="2 * (first + part)",
        new="2 * first",
        expects=("racecheck",),
    ),
    Mutation(
        name="each share begins at the first step",
        kernel="gemm_stream_k",
        problem=_STREAM,
        old="k = work.first * BK;",
        new="k = 0 * BK;",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="next copies started while stages are read",
        kernel="gemm_stream_k",
        problem=GemmProblem(
            64, 128, 72
        ),  # a block has the end of one tile and the start of the next
        old="__syncthreads();  // nobody reads the stages",
        new="//",
        expects=("racecheck",),
    ),
)
