// Rung 1: one thread per result, with the indices the wrong way round (kept to be seen).
//
// Neighboring threads of a warp compute neighboring ROWS of C. In each step they read one column
// of A, whose elements are lda floats apart: 32 memory sectors of 32 bytes for 32 floats.
//
//   warp:  A[row 0][k]            C[row 0][col]
//          A[row 1][k]   B[k][col]  C[row 1][col]     one sector per lane for A and C
//          A[row 2][k]            C[row 2][col]
//
// Loads per result: 2K from global memory.
#include "layout.cuh"

template <int BM, int BN>
__global__ void __launch_bounds__(BM* BN)
    naive_uncoalesced(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                      int ldb, float beta, float* C, int ldc, const float* /*bias*/) {
  const int row = blockIdx.x * BM + threadIdx.x;
  const int col = grid_row() * BN + threadIdx.y;
  if (row >= M || col >= N) return;
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += *element(A, lda, row, k) * *element(B, ldb, k, col);

  float* c = element(C, ldc, row, col);
  *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;  // BLAS: beta = 0 never reads C
}
