// Two blocks a row of tiles leave partial sums in global memory; the last to finish adds them up.
#define T 8
#define PARTS 2
#define MAX_TILES 1024

__device__ float partial[MAX_TILES][PARTS][T * T];
__device__ unsigned finished[MAX_TILES];

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ bool last;
  const int tile = blockIdx.y * gridDim.x + blockIdx.x;
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
  const int half = (K + 1) / 2;
  const int begin = blockIdx.z * half, end = blockIdx.z == 0 ? half : K;
  float sum = 0.0f;
  if (row < M && col < N)
    for (int k = begin; k < end; ++k) sum += A[row * K + k] * B[k * N + col];
  partial[tile][blockIdx.z][ty * T + tx] = sum;
  __threadfence();
  __syncthreads();
  if (tx == 0 && ty == 0) last = atomicAdd(&finished[tile], 1u) == PARTS - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  float total = 0.0f;
  for (int part = 0; part < PARTS; ++part) total += partial[tile][part][ty * T + tx];
  if (row < M && col < N) C[row * N + col] = total;
  if (tx == 0 && ty == 0) finished[tile] = 0;
}
