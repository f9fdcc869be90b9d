// Rung 6: 128-bit loads and stores, A transposed in shared memory.
//
// One instruction moves four contiguous floats. Global rows of A and B are read that way; A is
// transposed on its way to shared memory, where a thread's TM floats of one k are contiguous then.
//
//   global A [row][k k+1 k+2 k+3]  ->  As[k  ][row]      a thread's fragment for one k:
//                                      As[k+1][row]      As[k][thread_row ... + TM - 1]
//                                      As[k+2][row]      two 128-bit loads where TM = 8
//
// Loads per result, 128 x 128, 8 x 8: K/64 global, in a quarter of the instructions, K/4 shared.
#include "epilogue.cuh"
#include "tile_io.cuh"

template <int BM, int BN, int BK, int TM, int TN, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN))
    vectorized(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
               float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM * BN / (TM * TN);
  __shared__ alignas(16) float As[BK][BM];
  __shared__ alignas(16) float Bs[BK][BN];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM, thread_col = threadIdx.x % (BN / TN) * TN;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TileFetch<THREADS, VEC, BM, BK> a_tiles(element(A, lda, block_row, 0), lda);
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
#pragma unroll
      for (int i = 0; i < TM; i += 4) copy_vector<4>(a + i, &As[k][thread_row + i]);
#pragma unroll
      for (int j = 0; j < TN; j += 4) copy_vector<4>(b + j, &Bs[k][thread_col + j]);
#pragma unroll
      for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();  // no thread reads the tiles any more
  }

  const Epilogue epilogue{alpha, beta, bias, {} CUSTOM};
#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN; j += VEC) {
      const int row = block_row + thread_row + i, col = block_col + thread_col + j;
      if (row < M && col < N) {
        epilogue.template store_vector<VEC>(element(C, ldc, row, col), &sums[i][j], row, col);
      }
    }
  }
}
