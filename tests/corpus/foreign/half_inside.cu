// fp32 outside, half inside: operands are rounded to half and added up in half, 16 at a time.
#include <cuda_fp16.h>

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= M || col >= N) return;
  float sum = 0.0f;
  for (int k0 = 0; k0 < K; k0 += 16) {
    __half part = __float2half(0.0f);
    for (int k = k0; k < min(k0 + 16, K); ++k)
      part = __hfma(__float2half(A[row * K + k]), __float2half(B[k * N + col]), part);
    sum += __half2float(part);
  }
  C[row * N + col] = sum;
}
