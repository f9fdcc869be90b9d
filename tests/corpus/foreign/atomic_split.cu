// C += A*B with the k of a result shared by blocks along z, added up by atomics.
#define PART 8

__global__ void gemm_acc(const float* A, const float* B, float* C, int M, int N, int K) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= M || col >= N) return;
  const int begin = blockIdx.z * PART;
  const int end = min(begin + PART, K);
  float sum = 0.0f;
  for (int k = begin; k < end; ++k) sum += A[row * K + k] * B[k * N + col];
  atomicAdd(&C[row * N + col], sum);
}
