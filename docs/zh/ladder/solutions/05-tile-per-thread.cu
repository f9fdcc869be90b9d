// 练习 5：每线程一个结果分块。参考解答。

constexpr int BM = 64, BN = 64, BK = 8;  // 线程块分块，以及沿 k 方向的步长
constexpr int TM = 8, TN = 8;            // 线程分块
constexpr int THREADS = BM * BN / (TM * TN);

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM;
  const int thread_col = threadIdx.x % (BN / TN) * TN;

  float sums[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
      const int row = block_row + i / BK, k = k0 + i % BK;
      As[i / BK][i % BK] = row < M && k < K ? A[row * K + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
      const int k = k0 + i / BN, col = block_col + i % BN;
      Bs[i / BN][i % BN] = k < K && col < N ? B[k * N + col] : 0.0f;
    }
    __syncthreads();

    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int i = 0; i < TM; ++i) a[i] = As[thread_row + i][k];
      for (int j = 0; j < TN; ++j) b[j] = Bs[k][thread_col + j];
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; ++j) {
      const int row = block_row + thread_row + i, col = block_col + thread_col + j;
      if (row < M && col < N) C[row * N + col] = sums[i][j];
    }
  }
}
