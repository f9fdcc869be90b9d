// Each warp keeps a row of A in shared memory of its own and meets at __syncwarp alone.
#define WARPS 4

__global__ void __launch_bounds__(32 * WARPS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float rows[WARPS][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.y * WARPS + warp, col = blockIdx.x * 32 + lane;
  if (row >= M) return;
  float sum = 0.0f;
  for (int k0 = 0; k0 < K; k0 += 32) {
    rows[warp][lane] = k0 + lane < K ? A[row * K + k0 + lane] : 0.0f;
    __syncwarp();
    for (int k = 0; k < min(32, K - k0); ++k)
      if (col < N) sum += rows[warp][31 - (31 - k)] * B[(k0 + k) * N + col];
    __syncwarp();
  }
  if (col < N) C[row * N + col] = sum;
}
