// BLAS's own order: column-major matrices with leading dimensions.
__global__ void sgemm_nn(int m, int n, int k, float alpha, const float* A, int lda, const float* B,
                         int ldb, float beta, float* C, int ldc) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i >= m || j >= n) return;
  float sum = 0.0f;
  for (int p = 0; p < k; ++p) sum += A[i + p * lda] * B[p + j * ldb];
  const float old = beta == 0.0f ? 0.0f : beta * C[i + j * ldc];
  C[i + j * ldc] = alpha * sum + old;
}
