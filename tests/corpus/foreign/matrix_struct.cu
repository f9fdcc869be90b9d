// Matrices as structs by value, as programming guides have them.
typedef struct {
  int width;
  int height;
  int stride;
  float* elements;
} Matrix;

#define BLOCK 8

__device__ float get(const Matrix M, int row, int col) { return M.elements[row * M.stride + col]; }

__global__ void MatMulKernel(Matrix A, Matrix B, Matrix C) {
  __shared__ float As[BLOCK][BLOCK];
  __shared__ float Bs[BLOCK][BLOCK];
  const int r = threadIdx.y, c = threadIdx.x;
  const int row = blockIdx.y * BLOCK + r, col = blockIdx.x * BLOCK + c;
  float value = 0;
  for (int m = 0; m < (A.width + BLOCK - 1) / BLOCK; ++m) {
    const int ka = m * BLOCK + c, kb = m * BLOCK + r;
    As[r][c] = row < A.height && ka < A.width ? get(A, row, ka) : 0;
    Bs[r][c] = kb < B.height && col < B.width ? get(B, kb, col) : 0;
    __syncthreads();
    for (int e = 0; e < BLOCK; ++e) value += As[r][e] * Bs[e][c];
    __syncthreads();
  }
  if (row < C.height && col < C.width) C.elements[row * C.stride + col] = value;
}
