// Eight results a thread in an array that is indexed at run time, so that it lies in local memory.
#define R 8

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int col0 = (blockIdx.x * blockDim.x + threadIdx.x) * R;
  if (row >= M) return;
  float sums[R];
  const int width = min(R, N - col0);
#pragma unroll 1
  for (int j = 0; j < width; ++j) sums[j] = 0.0f;
#pragma unroll 1
  for (int k = 0; k < K; ++k) {
    const float a = A[row * K + k];
#pragma unroll 1
    for (int j = 0; j < width; ++j) sums[j] += a * B[k * N + col0 + j];
  }
#pragma unroll 1
  for (int j = 0; j < width; ++j) C[row * N + col0 + j] = sums[j];
}
