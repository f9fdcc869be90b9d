// Rung 7: no bank conflicts.
//
// Shared memory has 32 banks, one float wide; two words of one bank cost two cycles. PAD floats
// per row of As, and a thread map of A that is MAP_K columns wide, spread a warp's transposed
// stores over all banks. Columns are interleaved by fours: a warp's 128-bit loads are contiguous.
//
//   rung 6:  |0 0 0 0 0 0 0 0|1 1 1 1 1 1 1 1|2 ...       columns of thread 0, 1, 2 ...
//   here:    |0 0 0 0|1 1 1 1|2 2 2 2| ... |0 0 0 0|1 1 1 1| ...
//
// Loads per result: those of rung 6.
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int TM, int TN, int PAD, int MAP_K, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    conflict_free(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                  int ldb, float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS_M = BM / TM, THREADS_N = BN / TN, THREADS = THREADS_M * THREADS_N;
  __shared__ alignas(16) float As[BK][BM + PAD];
  __shared__ alignas(16) float Bs[BK][BN];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / THREADS_N, thread_col = threadIdx.x % THREADS_N;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TileFetch<THREADS, VEC, BM, BK, MAP_K> a_tiles(element(A, lda, block_row, 0), lda);
  TileFetch<THREADS, VEC, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  float sums[TM][TN] = {};
  for (; K > 0; K -= BK) {  // K: what is left
    a_tiles.fetch(M - block_row, K);
    b_tiles.fetch(K, N - block_col);
    a_tiles.put_transposed(As);
    b_tiles.put(Bs);
    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    __syncthreads();  // the tiles are complete

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      load_fragment<THREADS_M>(a, As[k], thread_row);
      load_fragment<THREADS_N>(b, Bs[k], thread_col);
      outer_product(sums, a, b);
    }
    __syncthreads();  // no thread reads the tiles any more
  }

  store_results<VEC, THREADS_M, THREADS_N>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M,
                                           N, block_row, block_col, thread_row, thread_col);
}
