// float16, bfloat16 and float64 on the tensor cores: a warp multiplies 16 x 8 tiles by mma.sync.
//
// Tiles go through registers to shared memory as in `typed`, two stages in turn. There halves lie in
// pairs along k, as the fragments of mma.sync have them: side by side where memory has them so, and
// else paired on the way. Of a WM x WN tile each lane of a warp reads (WM + WN) / 4 words of 32
// bits for WM WN / 128 products of 16 x 8 x 16.
#include "arguments.cuh"
#include "mainloop/mma_sync.cuh"
#include "scheduler/batch.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads) typed_mma(GEMM_PARAMETERS(In, Epilogue)) {
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ float4 shared[];
  using Mainloop = MmaSync<In, TILE, ACCESS, LAYOUT>;
  const BatchPlace<SCHEDULE.batched> place((M + TILE.BM - 1) / TILE.BM, (N + TILE.BN - 1) / TILE.BN,
                                           args.batch);
  const int row = place.tile_row * TILE.BM, col = place.tile_col * TILE.BN;
  if (row >= M || (SCHEDULE.batched && place.product >= args.batch)) return;  // surplus

  const Mainloop mainloop(shared);
  typename Mainloop::Sums sums = {};
  mainloop.multiply(sums, element_of<Mainloop::A_T>(args.a(place.product), args.lda, row, 0),
                    args.lda, M - row,
                    element_of<Mainloop::B_T>(args.b(place.product), args.ldb, 0, col), args.ldb,
                    N - col, args.depth());
  mainloop.store(sums, args.epilogue(place.product), args.c(place.product), args.ldc, M, N, row,
                 col);
}
