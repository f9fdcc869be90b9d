// Matrices of float64, float16, bfloat16 and float32, also mixed: elements of type In are added up
// as Sum and stored as Out.
//
// As in rungs 8 and 9, two stages in shared memory, the tiles of the next on their way in
// registers while a warp multiplies its compact piece of this one. What is loaded stays as it is in
// memory until it goes to shared memory; there it lies as Sum, k by k, whatever the layout.
//
//   global -> registers (In)     tile 1 ......    tile 2 ......
//   arithmetic (Sum)             tile 0           tile 1
//   registers -> shared (Sum)           tile 1           tile 2
#include "arguments.cuh"
#include "mainloop/scaled_chunks.cuh"
#include "scheduler/batch.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    typed(GEMM_PARAMETERS(In, Epilogue)) {
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ float4 shared[];
  using Mainloop = RegisterStaged<In, typename Epilogue::Sum, TILE, ACCESS, LAYOUT>;
  const BatchPlace<SCHEDULE.batched> place((M + TILE.BM - 1) / TILE.BM, (N + TILE.BN - 1) / TILE.BN,
                                           args.batch);
  const int row = place.tile_row * TILE.BM, col = place.tile_col * TILE.BN;
  if (row >= M || (SCHEDULE.batched && place.product >= args.batch)) return;  // surplus

  const Mainloop mainloop(shared);
  typename Epilogue::Sum sums[TILE.TM][TILE.TN] = {};
  mainloop.multiply(sums, element_of<Mainloop::A_T>(args.a(place.product), args.lda, row, 0),
                    args.lda, M - row,
                    element_of<Mainloop::B_T>(args.b(place.product), args.ldb, 0, col), args.ldb,
                    N - col, args.depth());
  mainloop.store(sums, args.epilogue(place.product), args.c(place.product), args.ldc, M, N, row,
                 col);
}

// The same with scales of A and B.
template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, Scales SCALES,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    typed_scaled(SCALE_PARAMETERS, GEMM_PARAMETERS(In, Epilogue)) {
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ float4 shared[];
  using Mainloop = ScaledChunks<SCALES, In, TILE, ACCESS, LAYOUT>;
  const BatchPlace<SCHEDULE.batched> place((M + TILE.BM - 1) / TILE.BM, (N + TILE.BN - 1) / TILE.BN,
                                           args.batch);
  const int row = place.tile_row * TILE.BM, col = place.tile_col * TILE.BN, product = place.product;
  if (row >= M || (SCHEDULE.batched && product >= args.batch)) return;  // surplus

  const Mainloop mainloop(shared);
  float sums[TILE.TM][TILE.TN] = {};
  mainloop.multiply(sums, element_of<Mainloop::A_T>(args.a(product), args.lda, row, 0), args.lda,
                    M - row, element_of<Mainloop::B_T>(args.b(product), args.ldb, 0, col), args.ldb,
                    N - col, args.depth(), OperandScales<SCALES>{SCALES_OF_A, SCALES_OF_B}, product,
                    row, col);
  mainloop.store(sums, args.epilogue(product), args.c(product), args.ldc, M, N, row, col);
}
