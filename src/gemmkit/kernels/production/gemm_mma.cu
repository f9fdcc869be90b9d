// float16, bfloat16 and float64 on tensor cores from compute capability 8.0 on: a tile of C for each
// block, its operands copied by cp.async several stages ahead, and multiplied by mma.sync.
//
// The mainloop is that of rung 16, in every layout, with fragments that are read one step ahead. A
// matrix whose rows do not begin at multiples of 16 bytes is copied by a launch before.
#include "arguments.cuh"
#include "mainloop/cp_async_mma.cuh"
#include "scheduler/batch.cuh"
#include "scheduler/raster.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads) gemm_mma(GEMM_PARAMETERS(In, Epilogue)) {
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ float4 shared[];
  using Mainloop = CpAsyncMma<In, TILE, ACCESS, LAYOUT>;
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
