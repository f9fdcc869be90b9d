// What kernels of mma.sync share: each block computes a tile of C.
#pragma once

#include "arguments.cuh"
#include "scheduler/batch.cuh"
#include "scheduler/raster.cuh"
#include "tile.cuh"

// The block's tile by a mainloop, which has all of the `shared` memory.
template <class Mainloop, Tile TILE, Schedule SCHEDULE, class In, class Epilogue>
__device__ __forceinline__ void multiply_tile(const Arguments<In, Epilogue>& args, void* shared) {
  const int M = args.M, N = args.N;
  const int rows = (M + TILE.BM - 1) / TILE.BM, cols = (N + TILE.BN - 1) / TILE.BN;
  const BatchPlace<SCHEDULE.batched> place(rows, cols, args.batch);
  int row = place.tile_row * TILE.BM, col = place.tile_col * TILE.BN;
  if (row >= M || (SCHEDULE.batched && place.product >= args.batch)) return;  // surplus
  if constexpr (SCHEDULE.raster > 0) {
    const int number = place.tile_row * gridDim.x + place.tile_col;
    const TilePlace tile = rasterized<SCHEDULE.raster>(number, rows, cols);
    row = tile.row * TILE.BM, col = tile.col * TILE.BN;
  }

  const Mainloop mainloop(shared);
  typename Mainloop::Sums sums = {};
  mainloop.multiply(sums, element_of<Mainloop::A_T>(args.a(place.product), args.lda, row, 0),
                    args.lda, M - row,
                    element_of<Mainloop::B_T>(args.b(place.product), args.ldb, 0, col), args.ldb,
                    N - col, args.depth());
  mainloop.store(sums, args.epilogue(place.product), args.c(place.product), args.ldc, M, N, row,
                 col);
}
