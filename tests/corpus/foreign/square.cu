// The commonest of all: square matrices, one size, tiles in shared memory, edges guarded.
#define TILE 16

__global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float sa[TILE][TILE];
  __shared__ float sb[TILE][TILE];
  int tx = threadIdx.x, ty = threadIdx.y;
  int row = blockIdx.y * TILE + ty;
  int col = blockIdx.x * TILE + tx;
  float acc = 0.0f;
  for (int t = 0; t < (n + TILE - 1) / TILE; ++t) {
    int ka = t * TILE + tx, kb = t * TILE + ty;
    sa[ty][tx] = row < n && ka < n ? a[row * n + ka] : 0.0f;
    sb[ty][tx] = kb < n && col < n ? b[kb * n + col] : 0.0f;
    __syncthreads();
    for (int k = 0; k < TILE; ++k) acc += sa[ty][k] * sb[k][tx];
    __syncthreads();
  }
  if (row < n && col < n) c[row * n + col] = acc;
}
