// 32x32 tiles, 4x4 results a thread, BLAS's alpha and beta, any shape.
constexpr int BM = 32, BN = 32, BK = 8, TM = 4, TN = 4;

__global__ void __launch_bounds__(64)
    sgemm(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
  __shared__ float As[BK][BM];
  __shared__ float Bs[BK][BN];
  const int thread_row = threadIdx.x / (BN / TN) * TM;
  const int thread_col = threadIdx.x % (BN / TN) * TN;
  const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
  float acc[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = threadIdx.x; i < BM * BK; i += 64) {
      const int r = i / BK, k = i % BK;
      As[k][r] = row0 + r < M && k0 + k < K ? A[(row0 + r) * K + k0 + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < BK * BN; i += 64) {
      const int k = i / BN, n = i % BN;
      Bs[k][n] = k0 + k < K && col0 + n < N ? B[(k0 + k) * N + col0 + n] : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < BK; ++k) {
      for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
          acc[i][j] += As[k][thread_row + i] * Bs[k][thread_col + j];
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; ++j) {
      const int row = row0 + thread_row + i, col = col0 + thread_col + j;
      if (row < M && col < N) {
        const float old = beta == 0.0f ? 0.0f : C[row * N + col];
        C[row * N + col] = alpha * acc[i][j] + beta * old;
      }
    }
  }
}
