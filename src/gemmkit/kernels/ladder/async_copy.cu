// Rung 10: cp.async, STAGES tiles in a circular buffer.
//
// Copies go from global to shared memory by themselves, STAGES - 1 tiles ahead of the arithmetic.
// They pass through no register, which leaves room for 16 x 8 results a thread.
//
//   stage 0   multiplied    tile 3 arrives  ............    ............
//   stage 1   ............  multiplied      tile 4 arrives  ............    one barrier a step
//   stage 2   ............  ............    multiplied      tile 5 arrives
//
// Loads per result, 128 x 256, 16 x 8: 3K/256 from global memory, 3K/16 from shared.
#include "cp_async.cuh"
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int PAD, int MAP_K,
          int VEC, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    async_copy(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
               float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM * BN / (TM * TN), LANES_M = WM / TM, LANES_N = WN / TN;
  static_assert(LANES_M * LANES_N == 32, "a warp has 32 lanes");
  struct Stage {
    float As[BK][BM + PAD];
    float Bs[BK][BN];
  };
  extern __shared__ float4 shared[];
  Stage* const stages = reinterpret_cast<Stage*>(shared);  // STAGES of them

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N> lane;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TileWalk<THREADS, 1, BM, BK, MAP_K> a_tiles(element(A, lda, block_row, 0), lda);
  TileWalk<THREADS, VEC, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  int k_left = K;  // from the tiles that are copied next to the end

  // Starts part `part` of `parts` of the copies of the next tiles; past the last, zeros.
  const auto copy = [&](int stage, int part, int parts) {
#pragma unroll
    for (int step = part; step < a_tiles.STEPS; step += parts) {
      const int row = a_tiles.row(step), k = a_tiles.col(step);
      cp_async<1>(&stages[stage].As[k][row], a_tiles.source(step),
                  row < M - block_row && k < k_left);
    }
#pragma unroll
    for (int step = part; step < b_tiles.STEPS; step += parts) {
      const int k = b_tiles.row(step), col = b_tiles.col(step);
      cp_async<VEC>(&stages[stage].Bs[k][col], b_tiles.source(step),
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
  for (int stage = 0, previous = STAGES - 1; K > 0; K -= BK) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // the tiles of this stage are complete; nobody reads the previous stage

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      load_fragment<LANES_M>(a, &stages[stage].As[k][warp_row], lane.row);
      load_fragment<LANES_N>(b, &stages[stage].Bs[k][warp_col], lane.col);
      copy(previous, k, BK);  // a part for each k: all at once would delay the fragments
      outer_product(sums, a, b);
    }
    next_tiles();
    previous = stage;
    stage = stage + 1 < STAGES ? stage + 1 : 0;
  }
  cp_async_wait<0>();  // a block must not end before its copies

  store_results<VEC, LANES_M, LANES_N>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                                       block_row + warp_row, block_col + warp_col, lane.row,
                                       lane.col);
}
