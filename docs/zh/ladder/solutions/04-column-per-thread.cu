// 练习 4：每线程一列结果。参考解答。

constexpr int T = 32;  // 线程块分块的行数和列数，也是沿 k 方向的步长
constexpr int TM = 8;  // 每个线程的结果数，上下相邻

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[T][T];
  __shared__ float Bs[T][T];

  const int thread_row = threadIdx.y * TM, thread_col = threadIdx.x;
  const int row = blockIdx.y * T + thread_row;
  const int col = blockIdx.x * T + thread_col;

  float sums[TM] = {};
  for (int k0 = 0; k0 < K; k0 += T) {
    for (int i = 0; i < TM; ++i) {
      const int a_col = k0 + thread_col, b_row = k0 + thread_row + i;
      As[thread_row + i][thread_col] = row + i < M && a_col < K ? A[(row + i) * K + a_col] : 0.0f;
      Bs[thread_row + i][thread_col] = b_row < K && col < N ? B[b_row * N + col] : 0.0f;
    }
    __syncthreads();

    for (int k = 0; k < T; ++k) {
      const float b = Bs[k][thread_col];
      for (int i = 0; i < TM; ++i) sums[i] += As[thread_row + i][k] * b;
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    if (row + i < M && col < N) C[(row + i) * N + col] = sums[i];
  }
}
