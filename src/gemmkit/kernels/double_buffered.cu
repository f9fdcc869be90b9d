// Rung 8: the next tile loads while this one computes.
//
// Shared memory holds two pairs of tiles. Loads of the next pair are issued before the arithmetic
// on this one and arrive during it, in registers; one barrier a step instead of two.
//
//   global -> registers    tile 1 ......    tile 2 ......    tile 3 ......
//   arithmetic             tile 0           tile 1           tile 2
//   registers -> shared           tile 1           tile 2           tile 3
//
// Loads per result: those of rung 7.
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int TM, int TN, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN))
    double_buffered(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                    int ldb, float beta, float* C, int ldc, const float* bias) {
  constexpr int THREADS_M = BM / TM, THREADS_N = BN / TN, THREADS = THREADS_M * THREADS_N;
  constexpr int PAD = 4;
  __shared__ alignas(16) float As[2][BK][BM + PAD];
  __shared__ alignas(16) float Bs[2][BK][BN];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / THREADS_N, thread_col = threadIdx.x % THREADS_N;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  A = element(A, lda, block_row, 0);  // the first tiles; K counts down what is left
  B = element(B, ldb, 0, block_col);
  const long long step_b = static_cast<long long>(BK) * ldb;

  TileShare<THREADS, VEC, BM, BK> a_share;
  TileShare<THREADS, VEC, BK, BN> b_share;
  float sums[TM][TN] = {};

  a_share.fetch(A, lda, M - block_row, K);
  b_share.fetch(B, ldb, K, N - block_col);
  for (int stage = 0; K > 0; stage ^= 1) {
    a_share.put_transposed(As[stage]);
    b_share.put(Bs[stage]);
    __syncthreads();  // the tiles are complete, and nobody reads those of two steps ago

    A += BK, B += step_b, K -= BK;  // on to the next tiles; past the last one nothing is read
    a_share.fetch(A, lda, M - block_row, K);
    b_share.fetch(B, ldb, K, N - block_col);

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      load_fragment<THREADS_M>(a, As[stage][k], thread_row);
      load_fragment<THREADS_N>(b, Bs[stage][k], thread_col);
      outer_product(sums, a, b);
    }
  }

  const Epilogue epilogue{alpha, beta, bias};
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int row = block_row + quad_place<THREADS_M>(thread_row, i);
    if (row >= M) continue;
#pragma unroll
    for (int j = 0; j < TN; j += VEC) {
      const int col = block_col + quad_place<THREADS_N>(thread_col, j);
      epilogue.template store_vector<VEC>(element(C, ldc, row, col), &sums[i][j], col, N - col);
    }
  }
}
