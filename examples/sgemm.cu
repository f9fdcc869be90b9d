// C = alpha * A * B + beta * C for row-major fp32 matrices of any size. A block computes BM x BN
// elements of C, each of its threads TM x TN of them, in registers.
#include <cuda_runtime.h>

template <int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__(BM / TM * BN / TN)
    sgemm(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
  constexpr int THREADS = BM / TM * BN / TN;
  __shared__ float a_tile[BK][BM + 4];  // so that a warp's stores go to 32 different banks
  __shared__ float b_tile[BK][BN];

  const int tile_row = blockIdx.y * BM, tile_column = blockIdx.x * BN;
  // A thread's rows are adjacent; its columns are APART, so that a warp reads and writes rows.
  constexpr int APART = BN / TN;
  const int row = threadIdx.x / APART * TM, column = threadIdx.x % APART;
  float sum[TM][TN] = {};
  if (alpha == 0.0f) K = 0;  // BLAS does not read A and B then

  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
      const int m = tile_row + i / BK, k = k0 + i % BK;
      a_tile[i % BK][i / BK] = m < M && k < K ? A[m * K + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
      const int k = k0 + i / BN, n = tile_column + i % BN;
      b_tile[i / BN][i % BN] = k < K && n < N ? B[k * N + n] : 0.0f;
    }
    __syncthreads();

    for (int k = 0; k < BK; ++k) {
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j)
          sum[i][j] += a_tile[k][row + i] * b_tile[k][column + j * APART];
      }
    }
    __syncthreads();
  }

  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; ++j) {
      const int m = tile_row + row + i, n = tile_column + column + j * APART;
      if (m < M && n < N) {
        const float old = beta == 0.0f ? 0.0f : beta * C[m * N + n];
        C[m * N + n] = alpha * sum[i][j] + old;
      }
    }
  }
}
