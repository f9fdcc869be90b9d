"""Bugs planted in the rungs that copy tiles to shared memory one float at a time."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.problem import GemmProblem

_BARRIER = "__syncthreads();"
_COMPLETE = "__syncthreads();  // the tiles are complete"
_UNUSED = "__syncthreads();  // nobody reads the tiles any more"

PLANTED = (
    # --- shared_tiling ------------------------------------------------------------------------
    Mutation(
        name="no barrier before the tiles are overwritten",
        kernel="shared_tiling",
        problem=GemmProblem(16, 16, 32),
        old="__syncthreads();  // nobody reads the last tiles any more",
        new="",
        expects=("racecheck",),
    ),
    Mutation(
        name="no barrier before the tiles are read",
        kernel="shared_tiling",
        problem=GemmProblem(16, 16, 16),
        old="__syncthreads();  // the new ones are complete",
        new="",
        expects=("racecheck",),
    ),
    Mutation(
        name="barrier in a divergent branch",
        kernel="shared_tiling",
        problem=GemmProblem(17, 16, 16),
        old="__syncthreads();  // the new ones are complete",
        new="if (row < M) __syncthreads();",
        expects=("synccheck",),
        hangs=True,
    ),
    Mutation(
        name="threads outside C return before the barriers",
        kernel="shared_tiling",
        problem=GemmProblem(16, 17, 16),
        old="if (row - thread_row >= M) return;",
        new="if (row >= M || col >= N) return;",
        expects=("initcheck",),
        hangs=True,
    ),
    Mutation(
        name="one column of A too many",
        kernel="shared_tiling",
        problem=GemmProblem(17, 16, 5),
        old="row < M && thread_col < K",
        new="row < M && thread_col <= K",
        expects=("memcheck",),
    ),
    Mutation(
        name="one row of A too many",
        kernel="shared_tiling",
        problem=GemmProblem(17, 16, 16),
        old="row < M && thread_col < K",
        new="row <= M && thread_col < K",
        expects=("memcheck",),
    ),
    Mutation(
        name="one column of B too many",
        kernel="shared_tiling",
        problem=GemmProblem(16, 17, 16),
        old="thread_row < K && col < N",
        new="thread_row < K && col <= N",
        expects=("memcheck",),
    ),
    Mutation(
        name="no guard along k",
        kernel="shared_tiling",
        problem=GemmProblem(16, 16, 19),
        old="thread_row < K && col < N",
        new="col < N",
        expects=("memcheck",),
    ),
    Mutation(
        name="A stored transposed, read as it was",
        kernel="shared_tiling",
        problem=GemmProblem(16, 16, 16),
        old="As[thread_row][thread_col] = a;",
        new="As[thread_col][thread_row] = a;",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="column and k swapped in the tile of B",
        kernel="shared_tiling",
        problem=GemmProblem(16, 16, 16),
        old="Bs[k][thread_col]",
        new="Bs[thread_col][k]",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="no zeros where the tile of A ends",
        kernel="shared_tiling",
        problem=GemmProblem(16, 16, 5),
        old="As[thread_row][thread_col] = a;",
        new="if (row < M && thread_col < K) As[thread_row][thread_col] = a;",
        expects=("initcheck",),
    ),
    Mutation(
        name="rows of the tile one float too short",
        kernel="shared_tiling",
        problem=GemmProblem(16, 16, 16),
        old="__shared__ float As[BM][BK];",
        new="__shared__ float As[BM][BK - 1];",
        expects=("racecheck",),
    ),
    Mutation(
        name="last products dropped",
        kernel="shared_tiling",
        problem=GemmProblem(16, 16, 19),
        old="for (; K > 0; K -= BK",
        new="for (; K >= BK; K -= BK",
        expects=(WRONG_RESULT,),
    ),
    # --- coarsening_1d ------------------------------------------------------------------------
    Mutation(
        name="rows of a thread stored without a guard",
        kernel="coarsening_1d",
        problem=GemmProblem(17, 16, 16),
        old="if (row + i < M && col < N)",
        new="if (row < M && col < N)",
        expects=("memcheck",),
    ),
    Mutation(
        name="rows of the threads overlap",
        kernel="coarsening_1d",
        problem=GemmProblem(16, 16, 16),
        old="threadIdx.x / BN * TM",
        new="threadIdx.x / BN",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="A and B step in each other's direction",
        kernel="coarsening_1d",
        problem=GemmProblem(16, 16, 32),
        old="a_tiles.advance(0, BK), b_tiles.advance(BK, 0);",
        new="a_tiles.advance(BK, 0), b_tiles.advance(0, BK);",
        expects=("memcheck",),
    ),
    Mutation(
        name="no second barrier",
        kernel="coarsening_1d",
        problem=GemmProblem(16, 16, 32),
        old=_UNUSED,
        new="",
        expects=("racecheck",),
    ),
    Mutation(
        name="barrier for the first warp only",
        kernel="coarsening_1d",
        problem=GemmProblem(16, 16, 16),
        old=_COMPLETE,
        new="if (threadIdx.x < 32) __syncthreads();",
        expects=("racecheck",),
        hangs=True,
    ),
    Mutation(
        name="one row too far in the tile of B",
        kernel="coarsening_1d",
        problem=GemmProblem(16, 16, 16),
        old="const float b = Bs[k][thread_col];",
        new="const float b = Bs[k + 1][thread_col];",
        expects=("memcheck",),
    ),
    Mutation(
        name="warps wait at different barriers",
        kernel="coarsening_1d",
        problem=GemmProblem(16, 16, 16),
        old=_COMPLETE,
        new='asm volatile("bar.sync %0, 64;" ::"r"(threadIdx.x / 32 + 1));',
        expects=("synccheck",),
        hangs=True,
    ),
    # --- coarsening_2d ------------------------------------------------------------------------
    Mutation(
        name="no first barrier",
        kernel="coarsening_2d",
        problem=GemmProblem(32, 32, 8),
        old=_COMPLETE,
        new="",
        expects=("racecheck",),
    ),
    Mutation(
        name="rows of C taken for tight",
        kernel="coarsening_2d",
        problem=GemmProblem(32, 30, 8, ldc=33),
        old="element(C, ldc, row, col)",
        new="element(C, N, row, col)",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="the tile of B lies on the tile of A",
        kernel="coarsening_2d",
        problem=GemmProblem(32, 32, 8),
        old="__shared__ float Bs[BK][BN];",
        new="float (&Bs)[BK][BN] = reinterpret_cast<float (&)[BK][BN]>(As);",
        # No race: each thread overwrites only what it wrote itself.
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="tile copied one row too far",
        kernel="coarsening_2d",
        problem=GemmProblem(33, 32, 8),
        old="row < rows && col < cols ? *walk.source(step)",
        new="row <= rows && col < cols ? *walk.source(step)",
        expects=("memcheck",),
        file="tile_io.cuh",
    ),
    Mutation(
        name="no zeros outside the matrix",
        kernel="coarsening_2d",
        problem=GemmProblem(32, 32, 5),
        old="tile[row][col] = row < rows && col < cols ? *walk.source(step) : 0.0f;",
        new="if (row < rows && col < cols) tile[row][col] = *walk.source(step);",
        expects=("initcheck",),
        file="tile_io.cuh",
    ),
    Mutation(
        name="sums start from shared memory of which a part is cleared",
        kernel="coarsening_2d",
        problem=GemmProblem(32, 32, 8),
        old="float sums[TM][TN] = {};",
        new="""__shared__ float start[TM][TN];
  if (threadIdx.x < TM) start[threadIdx.x][0] = 0.0f;
  __syncthreads();
  float sums[TM][TN];
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; ++j) sums[i][j] = start[i][j];""",
        expects=("initcheck",),
    ),
    Mutation(
        name="surplus threads return before the barriers",
        kernel="coarsening_2d",
        problem=GemmProblem(20, 32, 8),
        old="if (block_row >= M) return;",
        new="if (block_row + thread_row >= M) return;",
        expects=("initcheck",),
        hangs=True,
    ),
)
