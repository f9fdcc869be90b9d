// Rows of shared memory padded to 5 words and read four at a time: the fourth lane of each quad of
// the last column takes the pad along, which nobody uses.
constexpr int T = 8, PITCH = T + 4;

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ __align__(16) float As[T * PITCH];
  __shared__ __align__(16) float Bs[T * PITCH];
  const int row = threadIdx.y, col = threadIdx.x;
  const int m = blockIdx.y * T + row, n = blockIdx.x * T + col;
  float sum = 0.0f;
  for (int k0 = 0; k0 < K; k0 += T) {
    As[row * PITCH + col] = m < M && k0 + col < K ? A[m * K + k0 + col] : 0.0f;
    Bs[col * PITCH + row] = k0 + row < K && n < N ? B[(k0 + row) * N + n] : 0.0f;
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < T; k += 3) {
      const float4 a = *reinterpret_cast<const float4*>(&As[row * PITCH + (k & ~3)]);
      const float4 b = *reinterpret_cast<const float4*>(&Bs[col * PITCH + (k & ~3)]);
      const float4 c = *reinterpret_cast<const float4*>(&As[row * PITCH + (k & ~3) + 4]);
      const float4 d = *reinterpret_cast<const float4*>(&Bs[col * PITCH + (k & ~3) + 4]);
      const float x[8] = {a.x, a.y, a.z, a.w, c.x, c.y, c.z, c.w};
      const float y[8] = {b.x, b.y, b.z, b.w, d.x, d.y, d.z, d.w};
      for (int i = 0; i < 3; ++i)
        if (k + i < T) sum += x[(k & 3) + i] * y[(k & 3) + i];
    }
    __syncthreads();
  }
  if (m < M && n < N) C[m * N + n] = sum;
}
