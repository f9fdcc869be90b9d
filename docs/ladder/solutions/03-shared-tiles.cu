// Exercise 3: block tiles in shared memory. A solution.

constexpr int T = 32;  // rows and columns of a block's tile of C, and the step along k

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
    __syncthreads();  // the tiles are complete

    for (int k = 0; k < T; ++k) sum += As[thread_row][k] * Bs[k][thread_col];
    __syncthreads();  // no thread reads the tiles any more
  }
  if (row < M && col < N) C[row * N + col] = sum;
}
