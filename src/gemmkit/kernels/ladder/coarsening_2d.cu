// Rung 5: TM x TN results per thread, as an outer product in registers.
//
// For each k a thread reads TM floats of A and TN of B into registers and multiplies each with
// each: reads grow as TM + TN, multiply-adds as TM * TN.
//
//                    b[0] b[1] ... b[TN-1]
//   a[0]             sums[0][0]    ...
//   a[TM-1]          ...           sums[TM-1][TN-1]
//
// Loads per result, 64 x 64 tiles, 8 x 8 per thread: K/32 from global memory, K/4 from shared.
#include "epilogue.cuh"
#include "tile_io.cuh"

template <int BM, int BN, int BK, int TM, int TN, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN))
    coarsening_2d(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                  int ldb, float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM * BN / (TM * TN);
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM, thread_col = threadIdx.x % (BN / TN) * TN;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TileWalk<THREADS, 1, BM, BK> a_tiles(element(A, lda, block_row, 0), lda);
  TileWalk<THREADS, 1, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  float sums[TM][TN] = {};
  for (; K > 0; K -= BK) {  // K: what is left
    load_tile(As, a_tiles, M - block_row, K);
    load_tile(Bs, b_tiles, K, N - block_col);
    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    __syncthreads();  // the tiles are complete

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) a[i] = As[thread_row + i][k];
#pragma unroll
      for (int j = 0; j < TN; ++j) b[j] = Bs[k][thread_col + j];
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
    for (int j = 0; j < TN; ++j) {
      const int row = block_row + thread_row + i, col = block_col + thread_col + j;
      if (row < M && col < N) epilogue.store(element(C, ldc, row, col), sums[i][j], row, col);
    }
  }
}
