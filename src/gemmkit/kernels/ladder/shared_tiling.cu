// Rung 3: block tiles in shared memory.
//
// A block steps along K. In each step its threads copy one BM x BK tile of A and one BK x BN tile
// of B to shared memory, one element each; every element is then read from there BK times.
//
//              B [BK x BN]
//   A [BM x BK]  C [BM x BN]     every float fetched from global memory serves a whole row or
//                                column of the block's C tile
//
// Loads per result, tiles of T x T: 2K/T from global memory, 2K from shared memory.
#include "epilogue.cuh"
#include "layout.cuh"

template <int BM, int BN, int BK, class Epilogue>
__global__ void __launch_bounds__(BM* BN)
    shared_tiling(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                  int ldb, float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  static_assert(BM == BK && BN == BK, "each thread copies one element of each tile");
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];

  const int thread_row = threadIdx.y, thread_col = threadIdx.x;
  const int row = grid_row() * BM + thread_row;
  const int col = blockIdx.x * BN + thread_col;
  if (row - thread_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;           // BLAS: alpha = 0 never reads A or B

  A = element(A, lda, row, thread_col);  // this thread's elements of the first tiles
  B = element(B, ldb, thread_row, col);
  const long long step_b = static_cast<long long>(BK) * ldb;

  float sum = 0.0f;
  for (; K > 0; K -= BK, A += BK, B += step_b) {  // K: what is left
    const float a = row < M && thread_col < K ? *A : 0.0f;
    const float b = thread_row < K && col < N ? *B : 0.0f;
    __syncthreads();  // no thread reads the previous tiles any more
    As[thread_row][thread_col] = a;
    Bs[thread_row][thread_col] = b;
    __syncthreads();  // the tiles are complete

#pragma unroll
    for (int k = 0; k < BK; ++k) sum += As[thread_row][k] * Bs[k][thread_col];
  }

  if (row < M && col < N) {
    Epilogue{alpha, beta, bias, {} CUSTOM}.store(element(C, ldc, row, col), sum, row, col);
  }
}
