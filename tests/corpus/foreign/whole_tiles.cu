// A student's second kernel: whole tiles only, no guard anywhere.
template <int TILE>
__global__ void matmul(float* A, float* B, float* C, int M, int N, int K) {
  __shared__ float As[TILE * TILE];
  __shared__ float Bs[TILE * TILE];
  const int row = threadIdx.x / TILE, col = threadIdx.x % TILE;
  A += blockIdx.y * TILE * K;
  B += blockIdx.x * TILE;
  C += blockIdx.y * TILE * N + blockIdx.x * TILE;
  float sum = 0;
  for (int k0 = 0; k0 < K; k0 += TILE) {
    As[row * TILE + col] = A[row * K + col];
    Bs[row * TILE + col] = B[row * N + col];
    __syncthreads();
    A += TILE;
    B += TILE * N;
    for (int k = 0; k < TILE; ++k) sum += As[row * TILE + k] * Bs[k * TILE + col];
    __syncthreads();
  }
  C[row * N + col] = sum;
}
