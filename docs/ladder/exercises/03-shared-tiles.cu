// Exercise 3: block tiles in shared memory. The task is in 03-shared_tiling.md.
// It is done when this command finds nothing and all limits are met:
//
//   gemmkit check 03-shared-tiles.cu --grid '(N+31)/32,(M+31)/32' --block 32,32 \
//     --limit 'gemmkit__global_loads_per_result <= 2*K/32' \
//     --limit 'bank_conflicts == 0'

constexpr int T = 32;  // rows and columns of a block's tile of C, and the step along k

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[T][T];
  __shared__ float Bs[T][T];

  const int thread_row = threadIdx.y, thread_col = threadIdx.x;
  const int row = blockIdx.y * T + thread_row;
  const int col = blockIdx.x * T + thread_col;

  float sum = 0.0f;
  for (int k0 = 0; k0 < K; k0 += T) {
    // TODO 1: copy one element of A to As and one of B to Bs. Which are this thread's? Store zero
    // in place of an element outside of the matrix.

    // TODO 2: where does this loop need __syncthreads()? Two places.

    // TODO 3: add the T products of this step to sum, from As and Bs.
  }
  if (row < M && col < N) C[row * N + col] = sum;
}
