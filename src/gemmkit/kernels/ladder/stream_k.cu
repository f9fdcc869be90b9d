// Rung 13: as many blocks as the GPU holds, and each gets the same share of the steps along k.
//
// Tiles seldom fill the last wave of blocks, and SMs idle. Here the steps of all tiles form one
// line, of which each block takes an even share; where a share ends, a tile is cut. Partial sums of
// a tile are added up as in rung 11, by the last block that leaves some (the fix-up).
//
//   tiles  |    0    |    1    |    2    |
//   blocks |   0   |   1   |   2   |   3   |   ...
//
// Loads per result: those of rung 10, and a few of the workspace: two parts of tiles per block.
#include "cp_async.cuh"
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int PAD, int MAP_K,
          int VEC, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    stream_k(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
             float beta, float* C, int ldc, const float* bias, float* workspace,
             unsigned* semaphores CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM * BN / (TM * TN), LANES_M = WM / TM, LANES_N = WN / TN;
  static_assert(LANES_M * LANES_N == 32, "a warp has 32 lanes");
  struct Stage {
    float As[BK][BM + PAD];
    float Bs[BK][BN];
  };
  extern __shared__ __align__(128) float4 shared[];        // 128: `last` must not misalign copies
  Stage* const stages = reinterpret_cast<Stage*>(shared);  // STAGES of them
  __shared__ bool last;

  const int warp = threadIdx.x / 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N> lane;
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  // The line of all steps: where a block's share begins, and which block has a step.
  const int tile_cols = (N + BN - 1) / BN, steps = max(1, (K + BK - 1) / BK), blocks = gridDim.x;
  const long long all_steps = static_cast<long long>((M + BM - 1) / BM) * tile_cols * steps;
  const auto begin = [&](int block) { return all_steps * block / blocks; };
  const auto owner = [&](long long step) -> int { return ((step + 1) * blocks - 1) / all_steps; };

  for (long long step = begin(blockIdx.x), end = begin(blockIdx.x + 1); step < end;) {
    const int tile = step / steps, first_step = step % steps;
    const int own_steps = min(static_cast<long long>(steps - first_step), end - step);
    step += own_steps;
    const int block_row = tile / tile_cols * BM, block_col = tile % tile_cols * BN;
    int k_left = min(K - first_step * BK, own_steps * BK);  // not yet copied

    TileWalk<THREADS, 1, BM, BK, MAP_K> a_tiles(element(A, lda, block_row, first_step * BK), lda);
    TileWalk<THREADS, VEC, BK, BN> b_tiles(element(B, ldb, first_step * BK, block_col), ldb);

    // Starts part `share` of `shares` of the copies of the next tiles; past the last, zeros.
    const auto copy = [&](int stage, int share, int shares) {
#pragma unroll
      for (int i = share; i < a_tiles.STEPS; i += shares) {
        const int row = a_tiles.row(i), k = a_tiles.col(i);
        cp_async<1>(&stages[stage].As[k][row], a_tiles.source(i),
                    row < M - block_row && k < k_left);
      }
#pragma unroll
      for (int i = share; i < b_tiles.STEPS; i += shares) {
        const int k = b_tiles.row(i), col = b_tiles.col(i);
        cp_async<VEC>(&stages[stage].Bs[k][col], b_tiles.source(i),
                      k < k_left && col < N - block_col);
      }
    };
    const auto next_tiles = [&] {
      cp_async_commit();
      a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
      k_left -= BK;
    };

    for (int stage = 0; stage < STAGES - 1; ++stage) copy(stage, 0, 1), next_tiles();
    float sums[TM][TN] = {};
    for (int i = 0, stage = 0, previous = STAGES - 1; i < own_steps; ++i) {
      cp_async_wait<STAGES - 2>();
      __syncthreads();  // the tiles of this stage are complete; nobody reads the previous stage

#pragma unroll
      for (int k = 0; k < BK; ++k) {
        alignas(16) float a[TM], b[TN];
        load_fragment<LANES_M>(a, &stages[stage].As[k][warp_row], lane.row);
        load_fragment<LANES_N>(b, &stages[stage].Bs[k][warp_col], lane.col);
        copy(previous, k, BK);
        outer_product(sums, a, b);
      }
      next_tiles();
      previous = stage;
      stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    cp_async_wait<0>();
    __syncthreads();  // the stages are free for the next tile

    if (own_steps < steps) {
      // A block's share ends at most one tile that others began, and begins one that others end: it
      // has a place in the workspace for each.
      const int first_block = owner(static_cast<long long>(tile) * steps);
      const int parts = owner(static_cast<long long>(tile + 1) * steps - 1) - first_block + 1;
      const auto partial = [&](int block, int i, int j) {
        return element(workspace, BM * BN, 2 * block + (block == first_block),
                       (i * TN + j) * THREADS) +
               threadIdx.x;
      };
#pragma unroll
      for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) *partial(blockIdx.x, i, j) = sums[i][j], sums[i][j] = 0.0f;
      }

      __syncthreads();  // the block's partial sums are written
      if (threadIdx.x == 0) {
        __threadfence();  // and visible to every block that finds them counted
        last = atomicInc(&semaphores[tile], parts - 1) == parts - 1;  // back to 0 after the last
        __threadfence();
      }
      __syncthreads();
      if (!last) continue;

      for (int block = first_block; block < first_block + parts; ++block) {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
          for (int j = 0; j < TN; ++j) sums[i][j] += *partial(block, i, j);
        }
      }
    }

    store_results<VEC, LANES_M, LANES_N>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                                         block_row + warp_row, block_col + warp_col, lane.row,
                                         lane.col);
  }
}
