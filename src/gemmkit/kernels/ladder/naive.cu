// Rung 2: one thread per result, coalesced.
//
// Neighboring threads of a warp compute neighboring COLUMNS of C. In each step they read one
// float of A, the same for all, and 32 contiguous floats of B: 1 and 4 sectors, not 32 and 1.
//
//   warp:  A[row][k]   B[k][col 0] B[k][col 1] B[k][col 2] ...   C[row][col 0] C[row][col 1] ...
//          1 sector    128 contiguous bytes: 4 sectors           4 sectors
//
// Loads per result: 2K from global memory.
#include "epilogue.cuh"
#include "layout.cuh"

template <int BM, int BN, class Epilogue>
__global__ void __launch_bounds__(BM* BN)
    naive(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
          float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  const int row = grid_row() * BM + threadIdx.y;
  const int col = blockIdx.x * BN + threadIdx.x;
  if (row >= M || col >= N) return;
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += *element(A, lda, row, k) * *element(B, ldb, k, col);

  Epilogue{alpha, beta, bias, {} CUSTOM}.store(element(C, ldc, row, col), sum, row, col);
}
