// Rung 9: warp tiles between block and thread tiles.
//
// Each warp owns a WM x WN tile of the block's tile, and its lanes are numbered in pairs: of lanes
// i, i ^ 1 and i ^ 2 two share a column and two share a row. Shared memory then serves a 128-bit
// load of either fragment in two wavefronts of 16 lanes, of which two and two read the same.
//
//   block tile   | warp 0 | warp 1 |     warp tile    lane 0  2  4  6 ...    TM x TN results each,
//                | warp 2 | warp 3 |                       1  3  5  7 ...    in 4 x 4 blocks
//
// Loads per result: those of rung 8, in two thirds of the wavefronts.
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int PAD, int MAP_K, int VEC,
          class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    warp_tiled(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
               float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM * BN / (TM * TN), LANES_M = WM / TM, LANES_N = WN / TN;
  static_assert(LANES_M * LANES_N == 32, "a warp has 32 lanes");
  __shared__ alignas(16) float As[2][BK][BM + PAD];
  __shared__ alignas(16) float Bs[2][BK][BN];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N> lane;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TileFetch<THREADS, VEC, BM, BK, MAP_K> a_tiles(element(A, lda, block_row, 0), lda);
  TileFetch<THREADS, VEC, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  float sums[TM][TN] = {};

  a_tiles.fetch(M - block_row, K);
  b_tiles.fetch(K, N - block_col);
  for (int stage = 0; K > 0; stage ^= 1) {
    a_tiles.put_transposed(As[stage]);
    b_tiles.put(Bs[stage]);
    __syncthreads();  // this stage is complete; no thread reads the other one

    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    K -= BK;  // K: what is left

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      load_fragment<LANES_M>(a, &As[stage][k][warp_row], lane.row);
      load_fragment<LANES_N>(b, &Bs[stage][k][warp_col], lane.col);
      if (k == 2) {  // any earlier, they would delay the loads of the first fragments
        a_tiles.fetch(M - block_row, K);  // past the last tiles nothing is read
        b_tiles.fetch(K, N - block_col);
      }
      outer_product(sums, a, b);
    }
  }

  store_results<VEC, LANES_M, LANES_N>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                                       block_row + warp_row, block_col + warp_col, lane.row,
                                       lane.col);
}
