// Rung 10: cp.async, several stages.
//
// Copies go from global to shared memory by themselves, STAGES - 1 tiles ahead of the arithmetic.
// They pass through no register, which leaves room for 16 x 8 results a thread; and each step along
// k starts its share of them, for a burst would hold up the reads of fragments.
//
//   tile 0 | arithmetic | tile 4 arrives ...           a ring of STAGES pairs of tiles
//   tile 1 |            | arithmetic
//   tile 2 | arrives ...             | arithmetic
// Loads per result, 128 x 256, 16 x 8: 3K/256 from global memory, 3K/16 from shared.
#include "cp_async.cuh"
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int VEC,
          class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    async_copy(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
               float beta, float* C, int ldc, const float* bias) {
  constexpr int THREADS = BM * BN / (TM * TN), LANES_M = WM / TM, LANES_N = WN / TN;
  constexpr int PAD = 4, PANEL = 8;
  static_assert(LANES_M * LANES_N == 32, "a warp has 32 lanes");
  struct Stage {
    alignas(16) float As[BK][BM + PAD];
    alignas(16) float Bs[BK][BN];
  };
  extern __shared__ float4 shared[];
  Stage* stages = reinterpret_cast<Stage*>(shared);

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N> lane;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TileWalk<THREADS, 1, BM, BK, PANEL> a_tiles(element(A, lda, block_row, 0), lda);
  TileWalk<THREADS, VEC, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  const auto copy_part = [&](Stage& stage, int k) {  // one of BK parts; past K it writes zeros
    cp_async_transposed<BK>(stage.As, a_tiles, M - block_row, K, k);
    cp_async_tile<BK, VEC>(stage.Bs, b_tiles, K, N - block_col, k);
  };
  const auto next_tiles = [&] {
    cp_async_commit();
    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    K -= BK;  // what is left to copy
  };

  const int tiles = (K + BK - 1) / BK;
  for (int stage = 0; stage < STAGES - 1; ++stage) {
#pragma unroll
    for (int k = 0; k < BK; ++k) copy_part(stages[stage], k);
    next_tiles();
  }

  float sums[TM][TN] = {};
  for (int tile = 0, read = 0, write = STAGES - 1; tile < tiles; ++tile) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // the tiles of this step are there, and nobody reads those of the last

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      load_fragment<LANES_M>(a, &stages[read].As[k][warp_row], lane.row);
      load_fragment<LANES_N>(b, &stages[read].Bs[k][warp_col], lane.col);
      copy_part(stages[write], k);
      outer_product(sums, a, b);
    }
    next_tiles();
    read = read + 1 == STAGES ? 0 : read + 1;
    write = write + 1 == STAGES ? 0 : write + 1;
  }
  cp_async_wait<0>();  // no copy may outlive its block

  store_results<VEC, LANES_M, LANES_N>(sums, Epilogue{alpha, beta, bias}, C, ldc, M, N,
                                       block_row + warp_row, block_col + warp_col, lane.row,
                                       lane.col);
}
