// A warp for each result: lanes stride over k and add up by shuffles.
__global__ void gemm(int M, int N, int K, const float* __restrict__ A, const float* __restrict__ B,
                     float* C) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (warp >= M * N) return;
  const int row = warp / N, col = warp % N;
  float sum = 0.0f;
  for (int k = lane; k < K; k += 32) sum += A[row * K + k] * __ldg(&B[k * N + col]);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) C[row * N + col] = sum;
}
