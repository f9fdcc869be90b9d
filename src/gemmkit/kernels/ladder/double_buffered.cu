// Rung 8: the next tile loads while this one computes.
//
// Shared memory holds two stages. Loads of the next tiles start early in the arithmetic on the
// current ones and arrive during it, in registers; one barrier per step instead of two.
//
//   global -> registers    tile 1 ......    tile 2 ......    tile 3 ......
//   arithmetic             tile 0           tile 1           tile 2
//   registers -> shared           tile 1           tile 2           tile 3
//
// Loads per result: those of rung 7.
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int TM, int TN, int PAD, int MAP_K, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    double_buffered(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                    int ldb, float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS_M = BM / TM, THREADS_N = BN / TN, THREADS = THREADS_M * THREADS_N;
  __shared__ alignas(16) float As[2][BK][BM + PAD];
  __shared__ alignas(16) float Bs[2][BK][BN];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / THREADS_N, thread_col = threadIdx.x % THREADS_N;
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
      load_fragment<THREADS_M>(a, As[stage][k], thread_row);
      load_fragment<THREADS_N>(b, Bs[stage][k], thread_col);
      if (k == 2) {  // any earlier, they would delay the loads of the first fragments
        a_tiles.fetch(M - block_row, K);  // past the last tiles nothing is read
        b_tiles.fetch(K, N - block_col);
      }
      outer_product(sums, a, b);
    }
  }

  store_results<VEC, THREADS_M, THREADS_N>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M,
                                           N, block_row, block_col, thread_row, thread_col);
}
