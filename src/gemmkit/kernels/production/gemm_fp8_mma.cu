// Operands of 8 bits on tensor cores from compute capability 8.9 on, by mma.sync; their sums are promoted
// to fp32 registers every 128 of k, or are as the tensor cores make them (fast accumulation).
//
// As `gemm_mma`, but that operands lie along k, as the fragments of mma.sync have them: `copy_operands`
// has turned those that lie otherwise.
#include "mainloop/float8_mma.cuh"
#include "mma_product.cuh"

// What adds up products.
enum class Sums { PROMOTED, OF_TENSOR_CORES };

template <class In, Tile TILE, Access ACCESS, Sums SUMS>
using Mainloop = Float8Mainloop<In, TILE, ACCESS, SUMS == Sums::PROMOTED>;

template <class In, Tile TILE, Access ACCESS, Sums SUMS, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads) gemm_fp8_mma(GEMM_PARAMETERS(In, Epilogue)) {
  extern __shared__ float4 shared[];
  multiply_tile<Mainloop<In, TILE, ACCESS, SUMS>, TILE, SCHEDULE>(
      Arguments<In, Epilogue>{GEMM_ARGUMENTS}, shared);
}

// The same with scales of A and B.
template <class In, Tile TILE, Access ACCESS, Sums SUMS, Schedule SCHEDULE, Scales SCALES,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads)
    gemm_fp8_mma_scaled(SCALE_PARAMETERS, GEMM_PARAMETERS(In, Epilogue)) {
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ float4 shared[];
  using Own = Mainloop<In, TILE, ACCESS, SUMS>;
  const int rows = (M + TILE.BM - 1) / TILE.BM, cols = (N + TILE.BN - 1) / TILE.BN;
  const BatchPlace<SCHEDULE.batched> place(rows, cols, args.batch);
  const int product = place.product;
  TilePlace tile = {place.tile_row, place.tile_col};
  if (tile.row >= rows || (SCHEDULE.batched && product >= args.batch)) return;  // surplus
  if constexpr (SCHEDULE.raster > 0) {
    tile = rasterized<SCHEDULE.raster>(tile.row * gridDim.x + tile.col, rows, cols);
  }
  const int row = tile.row * TILE.BM, col = tile.col * TILE.BN, depth = args.depth();

  const Own mainloop(shared);
  typename Own::Sums sums = {};
  const WarpScales<Own::ROW_TILES, TILE.WN, SCALES> scales(SCALES_OF_A, SCALES_OF_B, product,
                                                           row + mainloop.warp_row, M - 1,
                                                           col + mainloop.warp_col, N - 1);
  const auto *A_tile = element(args.a(product), args.lda, row, 0),
             *B_tile = element(args.b(product), args.ldb, col, 0);
  if constexpr (SCALES.of_chunks) {
    mainloop.multiply(sums, A_tile, args.lda, M - row, B_tile, args.ldb, N - col, depth, scales);
  } else {
    mainloop.multiply(sums, A_tile, args.lda, M - row, B_tile, args.ldb, N - col, depth);
    // There is nothing to scale where neither A nor B is read.
    if (depth > 0) mainloop.scale(sums, scales);
  }
  mainloop.store(sums, args.epilogue(product), args.c(product), args.ldc, M, N, row, col);
}
