// The tile of B is swizzled by XOR of the column with the row; the pointer to the second half of the
// buffer is found by adding, never by flipping address bits.
#define T 16

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ __align__(1024) float tiles[2][T * T];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
  float* As = tiles[0];
  float* Bs = As + T * T;
  float sum = 0.0f;
  for (int k0 = 0; k0 < K; k0 += T) {
    As[ty * T + tx] = row < M && k0 + tx < K ? A[row * K + k0 + tx] : 0.0f;
    Bs[ty * T + (tx ^ ty)] = k0 + ty < K && col < N ? B[(k0 + ty) * N + col] : 0.0f;
    __syncthreads();
    for (int k = 0; k < T; ++k) sum += As[ty * T + k] * Bs[k * T + (tx ^ k)];
    __syncthreads();
  }
  if (row < M && col < N) C[row * N + col] = sum;
}
