"""Bugs planted in the rungs whose blocks share a result, by way of the workspace."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

# Three parts of k, the first of them a step longer.
_SPLIT = GemmProblem(64, 64, 64)
# Two tiles of twelve steps, fewer than the board holds blocks: twelve blocks share each tile.
_STREAM = GemmProblem(64, 128, 96)
# Tiles of one step, more than the board holds blocks: some have two of them.
_WHOLE_TILES = GemmProblem(64, 64 * 1200, 8)

PLANTED = (
    # --- split_k ------------------------------------------------------------------------------
    Mutation(
        name="a count that releases nothing",
        kernel="split_k",
        problem=_SPLIT,
        old="__threadfence();  // and visible",
        new="// and visible",
        expects=("racecheck",),
    ),
    Mutation(
        name="a count that acquires nothing",
        kernel="split_k",
        problem=_SPLIT,
        old="      __threadfence();\n    }",
        new="    }",
        expects=("racecheck",),
    ),
    Mutation(
        name="a fence in the scope of the block",
        kernel="split_k",
        problem=_SPLIT,
        old="__threadfence();  // and visible",
        new="__threadfence_block();  // and visible",
        expects=("racecheck",),
    ),
    Mutation(
        name="a count in the scope of the block",
        kernel="split_k",
        problem=_SPLIT,
        old="atomicInc(",
        new="atomicInc_block(",
        expects=("racecheck",),
    ),
    Mutation(
        name="no barrier between the partial sums and the count",
        kernel="split_k",
        problem=_SPLIT,
        old="__syncthreads();  // the block's partial sums",
        new="//",
        expects=("racecheck",),
    ),
    Mutation(
        name="no barrier between the count and its readers",
        kernel="split_k",
        problem=_SPLIT,
        old="__syncthreads();\n    if (!last)",
        new="if (!last)",
        expects=("racecheck",),
    ),
    Mutation(
        name="parts added up before all are written",
        kernel="split_k",
        problem=_SPLIT,
        old="if (!last) return;",
        new="",
        expects=("initcheck", "racecheck"),
    ),
    Mutation(
        name="all parts in one slot",
        kernel="split_k",
        problem=_SPLIT,
        old="tile * parts + of_part",
        new="tile * parts",
        expects=("racecheck",),
    ),
    Mutation(
        name="one counter for all tiles",
        kernel="split_k",
        problem=GemmProblem(64, 192, 64),
        old="&semaphores[tile]",
        new="&semaphores[0]",
        expects=("initcheck", "racecheck"),
    ),
    Mutation(
        name="counter not back at zero",
        kernel="split_k",
        problem=_SPLIT,
        old="atomicInc(&semaphores[tile], parts - 1)",
        new="atomicAdd(&semaphores[tile], 1)",
        expects=("synccheck",),
    ),
    Mutation(
        name="longer first parts forgotten",
        kernel="split_k",
        problem=_SPLIT,
        old="steps / parts * part + min(steps % parts, part)",
        new="steps / parts * part",
        expects=(WRONG_RESULT,),
    ),
    # --- stream_k -----------------------------------------------------------------------------
    Mutation(
        name="parts added up before all are written",
        kernel="stream_k",
        problem=_STREAM,
        old="if (!last) continue;",
        new="",
        expects=("initcheck", "racecheck"),
    ),
    Mutation(
        name="one part too few awaited",
        kernel="stream_k",
        problem=_STREAM,
        old="- first_block + 1;",
        new="- first_block;",
        expects=("synccheck",),
    ),
    Mutation(
        name="blocks that share a tile share a slot",
        kernel="stream_k",
        problem=_STREAM,
        old="2 * block + (block == first_block)",
        new="2 * first_block",
        expects=("racecheck",),
    ),
    Mutation(
        name="each share begins at the first step",
        kernel="stream_k",
        problem=_STREAM,
        old="B, ldb, first_step * BK, block_col",
        new="B, ldb, 0, block_col",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="next tile's copies started while stages are read",
        kernel="stream_k",
        problem=_WHOLE_TILES,
        old="__syncthreads();  // the stages are free",
        new="//",
        expects=("racecheck",),
    ),
)
