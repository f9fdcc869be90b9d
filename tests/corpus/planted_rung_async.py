"""Bugs planted in the rung whose tiles are copied by cp.async, in a buffer of three stages."""

from __future__ import annotations

from cp_async_bugs import STAGES_PROBLEM, copies_past_the_matrix, waiting_bugs
from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

_BARRIER = "__syncthreads();  // the tiles of this stage"

PLANTED = (
    *waiting_bugs("async_copy", _BARRIER),
    Mutation(
        name="copies into the stage that is read",
        kernel="async_copy",
        problem=STAGES_PROBLEM,
        old="copy(previous, k, BK);",
        new="copy(stage, k, BK);",
        expects=("racecheck",),
    ),
    Mutation(
        name="one stage too few filled at the start",
        kernel="async_copy",
        problem=STAGES_PROBLEM,
        old="stage < STAGES - 1; ++stage",
        new="stage < STAGES - 2; ++stage",
        expects=("initcheck",),
    ),
    Mutation(
        name="a circular buffer with one stage too few",
        kernel="async_copy",
        problem=STAGES_PROBLEM,
        old="stage + 1 < STAGES ?",
        new="stage + 2 < STAGES ?",
        expects=("racecheck",),
    ),
    copies_past_the_matrix("async_copy"),
    Mutation(
        name="rows of A read past the last",
        kernel="async_copy",
        problem=GemmProblem(65, 64, 8),
        old="row < M - block_row && k < k_left);",
        new="k < k_left);",
        expects=("memcheck",),
    ),
    Mutation(
        name="rows of A padded to no multiple of 16 bytes",
        kernel="async_copy",
        problem=STAGES_PROBLEM,
        old="As[BK][BM + PAD];",
        new="As[BK][BM + PAD - 1];",
        expects=("memcheck",),
    ),
    Mutation(
        name="A copied without transposing it",
        kernel="async_copy",
        problem=STAGES_PROBLEM,
        old="As[k][row]",
        new="As[row][k]",
        expects=("memcheck", "racecheck"),
    ),
    Mutation(
        name="no zeros where k ends",
        kernel="async_copy",
        problem=GemmProblem(64, 64, 12),
        old="cp_async<1>(",
        new="if (k < k_left) cp_async<1>(",
        expects=("initcheck",),
    ),
    Mutation(
        name="the last step left out",
        kernel="async_copy",
        problem=STAGES_PROBLEM,
        old="K > 0; K -= BK",
        new="K > BK; K -= BK",
        expects=(WRONG_RESULT,),
    ),
)
