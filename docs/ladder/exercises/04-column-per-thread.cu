// Exercise 4: a column of results per thread. The task is in 04-coarsening_1d.md.
// It is done when this command finds nothing and all limits are met:
//
//   gemmkit check 04-column-per-thread.cu --grid '(N+31)/32,(M+31)/32' --block 32,4 \
//     --limit 'gemmkit__shared_loads_per_result <= K*(8+1)/8' \
//     --limit 'gemmkit__global_loads_per_result <= 2*K/32'

constexpr int T = 32;  // rows and columns of a block's tile of C, and the step along k
constexpr int TM = 8;  // results per thread, one below the other

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

    // TODO 1: for each k of the tile, load one element of Bs and multiply it with TM of As.

    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    // TODO 2: store sums[i], if its row and column exist.
  }
}
