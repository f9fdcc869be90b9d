// Four threads share the k of a result and meet in global memory, one slot a thread.
#define RESULTS 16
#define SLICES 4
#define MAX_BLOCKS 4096

__device__ float slots[MAX_BLOCKS][SLICES][RESULTS];

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int result = blockIdx.x * RESULTS + threadIdx.x;
  const int row = result / N, col = result % N;
  float sum = 0.0f;
  if (result < M * N)
    for (int k = threadIdx.y; k < K; k += SLICES) sum += A[row * K + k] * B[k * N + col];
  slots[blockIdx.x][threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && result < M * N) {
    float total = 0.0f;
    for (int s = 0; s < SLICES; ++s) total += slots[blockIdx.x][s][threadIdx.x];
    C[result] = total;
  }
}
