// One tile of C per block, its operands copied by cp.async several stages ahead.
//
// The mainloop is that of rung 10. Tiles follow each other in groups of rows where that saves reads
// from memory; a long k is accumulated in chunks; and the rows and columns past the last whole tile
// have tiles of their own shape, by blocks that come last.
#include "arguments.cuh"
#include "mainloop/cp_async_fma.cuh"
#include "residue_tiles.cuh"
#include "scheduler/batch.cuh"
#include "scheduler/raster.cuh"

template <Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    gemm_tiled(GEMM_PARAMETERS(float, Epilogue)) {
  const Arguments<float, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ float4 shared[];
  using Mainloop = CpAsyncFma<TILE, ACCESS.c, LAYOUT>;
  constexpr int BM = TILE.BM, BN = TILE.BN;
  const Mainloop mainloop(shared);

  const BatchPlace<SCHEDULE.batched> place((M + BM - 1) / BM, (N + BN - 1) / BN, args.batch);
  int block_row = place.tile_row * BM, block_col = place.tile_col * BN;
  int rows = (M + BM - 1) / BM;
  if constexpr (SCHEDULE.residue.width > 0) {
    const ResidueTiles<TILE, SCHEDULE.residue, LAYOUT> residue(M, N);
    rows = residue.tile_rows();
    if (place.tile_row >= rows) {
      const int tile = (place.tile_row - rows) * gridDim.x + place.tile_col;
      return residue.compute(tile, shared, args);
    }
  }
  if (block_row >= M || (SCHEDULE.batched && place.product >= args.batch)) return;  // surplus
  if constexpr (SCHEDULE.raster > 0) {
    const int number = place.tile_row * gridDim.x + place.tile_col;
    const TilePlace tile = rasterized<SCHEDULE.raster>(number, rows, gridDim.x);
    block_row = tile.row * BM, block_col = tile.col * BN;
  }

  float sums[TILE.TM][TILE.TN] = {};
  mainloop.template multiply<SCHEDULE.chunks>(
      sums, element_of<Mainloop::A_T>(args.a(place.product), args.lda, block_row, 0), args.lda,
      {block_row, M}, element_of<Mainloop::B_T>(args.b(place.product), args.ldb, 0, block_col),
      args.ldb, {block_col, N}, args.depth());
  mainloop.store(sums, args.float4_epilogue(place.product), args.c(place.product), args.ldc, M, N,
                 block_row, block_col);
}
