// cp.async, several stages.
//
// Copies go from global to shared memory by themselves, STAGES - 1 tiles ahead of the arithmetic.
// They pass through no register, which leaves room for 16 x 8 results a thread; and they start in
// bursts: all at once they would hold up the reads of fragments.
//
//   tile 0 | arithmetic | tile 3 arrives ...           a ring of STAGES pairs of tiles
//   tile 1 |            | arithmetic
//   tile 2 | arrives ...             | arithmetic
// Loads per result, 128 x 256, 16 x 8: 3K/256 from global memory, 3K/16 from shared.
#include "async_tiles.cuh"
#include "batch.cuh"
#include "epilogue.cuh"
#include "fringe.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int BURSTS, int ORDER,
          int VEC, int RUNS, bool BANDED, class Strips, bool BATCHED, Layout LAYOUT, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    gemm_tiled(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
               float beta, float* C, int ldc, const float* bias, int batch, long long stride_a,
               long long stride_b, long long stride_c, const float* residual, int ldr,
               long long stride_r, float* auxiliary, int ldx, long long stride_x,
               float scale CUSTOM_PARAMETERS) {
  extern __shared__ float4 shared[];
  using Tiles = AsyncTiles<BM, BN, BK, WM, WN, TM, TN, STAGES, 1, BURSTS, ORDER, VEC, LAYOUT>;
  const Tiles tiles(shared);

  const BatchPlace<BATCHED> place((M + BM - 1) / BM, (N + BN - 1) / BN, batch);
  int block_row = place.tile_row * BM, block_col = place.tile_col * BN;
  int rows = (M + BM - 1) / BM;
  if constexpr (Strips::WIDTH > 0) {
    const Fringe<BM, BN, Tiles::THREADS, Strips, LAYOUT> fringe(M, N);
    const Epilogue epilogue{alpha, beta, bias, {residual, ldr, auxiliary, ldx, scale} CUSTOM};
    rows = fringe.tile_rows();
    if (place.tile_row >= rows) {
      const int strip = (place.tile_row - rows) * gridDim.x + place.tile_col;
      return fringe.compute(strip, shared, epilogue, K, A, lda, B, ldb, C, ldc);
    }
  }
  if (block_row >= M || (BATCHED && place.product >= batch)) return;  // surplus in the grid
  if constexpr (BANDED) {
    constexpr int BAND = 2048 / BM;  // grids.py knows it
    const int number = place.tile_row * gridDim.x + place.tile_col;
    const TilePlace tile = in_bands<BAND>(number, rows, gridDim.x);
    block_row = tile.row * BM, block_col = tile.col * BN;
  }
  A += place.product * stride_a, B += place.product * stride_b, C += place.product * stride_c;
  residual += place.product * stride_r, auxiliary += place.product * stride_x;
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  float sums[TM][TN] = {};
  tiles.template multiply<RUNS>(sums, element_of<Tiles::A_T>(A, lda, block_row, 0), lda,
                                {block_row, M}, element_of<Tiles::B_T>(B, ldb, 0, block_col), ldb,
                                {block_col, N}, K);
  const Epilogue epilogue{alpha, beta, bias, {residual, ldr, auxiliary, ldx, scale} CUSTOM};
  tiles.store(sums, epilogue, C, ldc, M, N, block_row, block_col);
}
