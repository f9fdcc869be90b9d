// y = x * W^T, as a linear layer has it: both operands are contiguous along k.
__global__ void linear(const float* A, const float* B, float* C, int M, int N, int K) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x;
  const int m = blockIdx.y * blockDim.y + threadIdx.y;
  if (m >= M || n >= N) return;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += A[m * K + k] * B[n * K + k];
  C[m * N + n] = sum;
}
