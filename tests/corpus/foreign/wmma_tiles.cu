// Two warps, each with a 16 x 16 tile of C, on tensor cores by nvcuda::wmma; tiles of A and B are
// staged in shared memory with rows of 24 numbers.
#include <mma.h>

using namespace nvcuda;

constexpr int T = 16, LD = T + 8;

__global__ void __launch_bounds__(64) matmul(const half* A, const half* B, float* C, int M, int N,
                                             int K) {
  __shared__ __align__(32) half As[T * LD];
  __shared__ __align__(32) half Bs[2][T * LD];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.y * T, column = (blockIdx.x * 2 + warp) * T;
  wmma::fragment<wmma::matrix_a, T, T, T, half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, T, T, T, half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, T, T, T, float> c;
  wmma::fill_fragment(c, 0.0f);
  for (int k = 0; k < K; k += T) {
    for (int i = threadIdx.x; i < T * T; i += 64)
      As[i / T * LD + i % T] = A[(row + i / T) * K + k + i % T];
    for (int i = lane; i < T * T; i += 32)
      Bs[warp][i / T * LD + i % T] = B[(k + i / T) * N + column + i % T];
    __syncthreads();
    wmma::load_matrix_sync(a, As, LD);
    wmma::load_matrix_sync(b, Bs[warp], LD);
    wmma::mma_sync(c, a, b, c);
    __syncthreads();
  }
  for (int i = 0; i < c.num_elements; ++i) c.x[i] = c.x[i] * 1.0f;
  wmma::store_matrix_sync(C + row * N + column, c, N, wmma::mem_row_major);
}
