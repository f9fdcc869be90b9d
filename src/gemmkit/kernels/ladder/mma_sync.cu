// Rung 15: mma.sync and ldmatrix, out of swizzled tiles.
//
// Which lane holds which element is known: ldmatrix brings fragments from shared memory, eight rows
// of 16 bytes a phase, and results go to C from registers. Chunks of 16 bytes change places by row,
// so that those eight lie in all banks without padding.
//
//   As, BK = 32:   row 0, 1 | 0 1 2 3 | 0 1 2 3 |     result of lane 4 g + t:  rows g, g + 8
//                  row 2, 3 | 1 0 3 2 | 1 0 3 2 |     of each 16 x 8           columns 2 t, 2 t + 1
// Loads per result, 128 x 128, warps of 64 x 32: K/64 elements from global memory, 3K/64 shared.
#include "epilogue.cuh"
#include "mma.cuh"
#include "typed_tile.cuh"

template <class In, int BM, int BN, int BK, int WM, int WN, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    mma_sync(int M, int N, int K, float alpha, const In* A, int lda, const In* B, int ldb,
             float beta, typename Epilogue::Out* C, int ldc,
             const typename Epilogue::Out* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM / WM * (BN / WN) * 32;
  __shared__ SwizzledRows<In, BM, BK> As[2];
  __shared__ SwizzledRows<In, BK, BN> Bs[2];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TypedTileFetch<In, THREADS, VEC, BM, BK> a_tiles(element(A, lda, block_row, 0), lda);
  TypedTileFetch<In, THREADS, VEC, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  float sums[WM / 16][WN / 8][4] = {};

  a_tiles.fetch(M - block_row, K);
  b_tiles.fetch(K, N - block_col);
  for (int stage = 0; K > 0; stage ^= 1) {
    a_tiles.put(As[stage]);
    b_tiles.put(Bs[stage]);
    __syncthreads();  // this stage is complete; no thread reads the other one

    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    K -= BK;                          // K: what is left
    a_tiles.fetch(M - block_row, K);  // past the last tiles nothing is read
    b_tiles.fetch(K, N - block_col);

#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      unsigned a[WM / 16][4], b[WN / 8][2];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {  // 16 rows, and 8 of k twice
        ldmatrix(a[i], As[stage].at(warp_row + i * 16 + lane % 16, k + lane / 16 * 8));
      }
#pragma unroll
      for (int j = 0; j < WN / 8; j += 2) {  // 16 of k, and 8 columns twice
        ldmatrix_transposed(b[j], b[j + 1],
                            Bs[stage].at(k + lane % 16, warp_col + j * 8 + lane / 16 * 8));
      }
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) Mma<In>::multiply(sums[i][j], a[i], b[j]);
      }
    }
  }

  store_products<VEC == 1 ? 1 : 2>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                                   block_row + warp_row, block_col + warp_col);
}
