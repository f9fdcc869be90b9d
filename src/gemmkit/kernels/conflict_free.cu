// Rung 7: no bank conflicts.
//
// Shared memory has 32 banks, one float wide. Two changes to rung 6 keep a warp's accesses apart:
// As has 4 floats of padding a row, so the transposed stores of one warp hit 32 different banks;
// and a thread's TN columns are two quads, BN/2 apart, so that quads read together are neighbours.
//
//   rung 6:  |0 0 0 0 0 0 0 0|1 1 1 1 1 1 1 1|2 ...       columns of thread 0, 1, 2 ...
//   here:    |0 0 0 0|1 1 1 1|2 2 2 2| ... |0 0 0 0|1 1 1 1| ...
//
// Loads per result: those of rung 6.
#include "epilogue.cuh"
#include "fragment.cuh"

template <int BM, int BN, int BK, int TM, int TN, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN))
    conflict_free(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                  int ldb, float beta, float* C, int ldc, const float* bias) {
  constexpr int THREADS_M = BM / TM, THREADS_N = BN / TN, THREADS = THREADS_M * THREADS_N;
  constexpr int PAD = 4;
  __shared__ alignas(16) float As[BK][BM + PAD];
  __shared__ alignas(16) float Bs[BK][BN];

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
  for (; K > 0; K -= BK, A += BK, B += step_b) {
    a_share.fetch(A, lda, M - block_row, K);
    b_share.fetch(B, ldb, K, N - block_col);
    a_share.put_transposed(As);
    b_share.put(Bs);
    __syncthreads();  // the tiles are complete

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      load_fragment<THREADS_M>(a, As[k], thread_row);
      load_fragment<THREADS_N>(b, Bs[k], thread_col);
      outer_product(sums, a, b);
    }
    __syncthreads();  // nobody reads the tiles any more
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
