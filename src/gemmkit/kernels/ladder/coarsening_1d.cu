// Rung 4: TM results per thread, in a column.
//
// A float of B, once read from shared memory, is used for TM rows. There are TM times fewer
// threads and occupancy falls, yet it is faster: fewer shared loads, more independent work.
//
//                Bs[k][thread_col]  ->  one register
//   As[row 0][k]     sums[0]
//   As[row 1][k]     sums[1]            rows thread_row * TM ... + TM - 1
//
// Loads per result, 16 x 16 tiles: K/8 from global memory for any TM, K (TM + 1) / TM from shared.
#include "epilogue.cuh"
#include "tile_io.cuh"

template <int BM, int BN, int BK, int TM, class Epilogue>
__global__ void __launch_bounds__(BM* BN / TM)
    coarsening_1d(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                  int ldb, float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM * BN / TM;
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / BN * TM, thread_col = threadIdx.x % BN;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TileWalk<THREADS, 1, BM, BK> a_tiles(element(A, lda, block_row, 0), lda);
  TileWalk<THREADS, 1, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  float sums[TM] = {};
  for (; K > 0; K -= BK) {  // K: what is left
    load_tile(As, a_tiles, M - block_row, K);
    load_tile(Bs, b_tiles, K, N - block_col);
    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    __syncthreads();  // the tiles are complete

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      const float b = Bs[k][thread_col];
#pragma unroll
      for (int i = 0; i < TM; ++i) sums[i] += As[thread_row + i][k] * b;
    }
    __syncthreads();  // no thread reads the tiles any more
  }

  const Epilogue epilogue{alpha, beta, bias, {} CUSTOM};
  const int row = block_row + thread_row, col = block_col + thread_col;
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    if (row + i < M && col < N)
      epilogue.store(element(C, ldc, row + i, col), sums[i], row + i, col);
  }
}
