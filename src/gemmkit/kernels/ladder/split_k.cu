// Rung 11: k split over blocks.
//
// A small product has fewer tiles than the GPU has SMs. Here gridDim.z blocks share a tile, each on
// its part of k. Each leaves its partial sums in the workspace; the last of a tile, as the tile's
// semaphore tells, adds them up in the order of k, so that the result has the same bits each time.
//
//   tile 0:  | block z = 0 | block z = 1 | block z = 2 |   ->  workspace  ->  sum, epilogue, C
//            k = 0 ............................... K - 1
//
// Loads per result: those of rung 10 with the same tile, and one of the workspace per part.
#include "cp_async.cuh"
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int PAD, int MAP_K,
          int VEC, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    split_k(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
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

  const int tile = blockIdx.x, tile_cols = (N + BN - 1) / BN;
  const int block_row = tile / tile_cols * BM, block_col = tile % tile_cols * BN;
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N> lane;
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  // This part's k, in whole steps of BK; where they do not divide evenly, the first have one more.
  const int parts = gridDim.z, part = blockIdx.z, steps = (K + BK - 1) / BK;
  const int first_step = steps / parts * part + min(steps % parts, part);
  const int own_steps = steps / parts + (part < steps % parts);
  int k_left = min(K - first_step * BK, own_steps * BK);  // not yet copied

  TileWalk<THREADS, 1, BM, BK, MAP_K> a_tiles(element(A, lda, block_row, first_step * BK), lda);
  TileWalk<THREADS, VEC, BK, BN> b_tiles(element(B, ldb, first_step * BK, block_col), ldb);

  // Starts part `share` of `shares` of the copies of the next tiles; past the last, zeros.
  const auto copy = [&](int stage, int share, int shares) {
#pragma unroll
    for (int i = share; i < a_tiles.STEPS; i += shares) {
      const int row = a_tiles.row(i), k = a_tiles.col(i);
      cp_async<1>(&stages[stage].As[k][row], a_tiles.source(i), row < M - block_row && k < k_left);
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
  for (int step = 0, stage = 0, previous = STAGES - 1; step < own_steps; ++step) {
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
  cp_async_wait<0>();  // a block must not end before its copies

  if (parts > 1) {
    // A thread finds its own results there again, so it may lay them out as it likes: coalesced.
    const auto partial = [&](int of_part, int i, int j) {
      return element(workspace, BM * BN, tile * parts + of_part, (i * TN + j) * THREADS) +
             threadIdx.x;
    };
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int j = 0; j < TN; ++j) *partial(part, i, j) = sums[i][j], sums[i][j] = 0.0f;
    }

    __shared__ bool last;
    __syncthreads();  // the block's partial sums are written
    if (threadIdx.x == 0) {
      __threadfence();  // and visible to every block that finds them counted
      last = atomicInc(&semaphores[tile], parts - 1) == parts - 1;  // back to 0 after the last
      __threadfence();
    }
    __syncthreads();
    if (!last) return;

    for (int of_part = 0; of_part < parts; ++of_part) {
#pragma unroll
      for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j] += *partial(of_part, i, j);
      }
    }
  }

  store_results<VEC, LANES_M, LANES_N>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                                       block_row + warp_row, block_col + warp_col, lane.row,
                                       lane.col);
}
