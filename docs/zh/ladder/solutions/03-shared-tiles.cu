// 练习 3：共享内存中的线程块分块。参考解答。

constexpr int T = 32;  // 线程块分块的行数和列数，也是沿 k 方向的步长

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[T][T];
  __shared__ float Bs[T][T];

  const int thread_row = threadIdx.y, thread_col = threadIdx.x;
  const int row = blockIdx.y * T + thread_row;
  const int col = blockIdx.x * T + thread_col;

  float sum = 0.0f;
  for (int k0 = 0; k0 < K; k0 += T) {
    const int a_col = k0 + thread_col, b_row = k0 + thread_row;
    As[thread_row][thread_col] = row < M && a_col < K ? A[row * K + a_col] : 0.0f;
    Bs[thread_row][thread_col] = b_row < K && col < N ? B[b_row * N + col] : 0.0f;
    __syncthreads();  // 两个分块已经完整

    for (int k = 0; k < T; ++k) sum += As[thread_row][k] * Bs[k][thread_col];
    __syncthreads();  // 不再有线程读取这两个分块
  }
  if (row < M && col < N) C[row * N + col] = sum;
}
