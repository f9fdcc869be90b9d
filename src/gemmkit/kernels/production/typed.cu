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
#include "mainloop/operand_scales.cuh"
#include "mainloop/register_staged.cuh"
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

// The same with scales of A and B: each chunk of k that has scales of its own is multiplied by itself.
template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, Scales SCALES,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    typed_scaled(SCALE_PARAMETERS, GEMM_PARAMETERS(In, Epilogue)) {
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ float4 shared[];
  using Mainloop = RegisterStaged<In, float, TILE, ACCESS, LAYOUT>;
  // Chunks may follow each other at once: the last step of one reads another stage than the first of
  // the next one writes.
  static_assert(CHUNK % (2 * TILE.BK) == 0, "an even number of steps to a chunk");
  const BatchPlace<SCHEDULE.batched> place((M + TILE.BM - 1) / TILE.BM, (N + TILE.BN - 1) / TILE.BN,
                                           args.batch);
  const int row = place.tile_row * TILE.BM, col = place.tile_col * TILE.BN, product = place.product;
  if (row >= M || (SCHEDULE.batched && product >= args.batch)) return;  // surplus

  const Mainloop mainloop(shared);
  constexpr int TM = TILE.TM, TN = TILE.TN;
  const ScaleArray of_a = SCALES_OF_A, of_b = SCALES_OF_B;
  const auto *A_tile = element_of<Mainloop::A_T>(args.a(product), args.lda, row, 0),
             *B_tile = element_of<Mainloop::B_T>(args.b(product), args.ldb, 0, col);
  float sums[TM][TN] = {};
  const int depth = args.depth(), step = SCALES.of_chunks ? CHUNK : depth;
  for (int k = 0; k < depth; k += step) {
    float chunk[TM][TN] = {};
    mainloop.multiply(chunk, element_of<Mainloop::A_T>(A_tile, args.lda, 0, k), args.lda, M - row,
                      element_of<Mainloop::B_T>(B_tile, args.ldb, k, 0), args.ldb, N - col,
                      min(step, depth - k));
    const int number = SCALES.of_chunks ? k / CHUNK : 0;
    float of_cols[TN];
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int own = col + mainloop.warp_col +
                      piece_place<Mainloop::LANES_N, QUAD<float>>(mainloop.lane.col, j);
      of_cols[j] = of_b.template get<SCALES.lines_b>(product, min(own, N - 1), number);
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int own = row + mainloop.warp_row +
                      piece_place<Mainloop::LANES_M, QUAD<float>>(mainloop.lane.row, i);
      const float of_row = of_a.template get<SCALES.lines_a>(product, min(own, M - 1), number);
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        sums[i][j] = SCALES.of_chunks ? fmaf(of_row * of_cols[j], chunk[i][j], sums[i][j])
                                      : of_row * of_cols[j] * chunk[i][j];
      }
    }
  }
  mainloop.store(sums, args.epilogue(product), args.c(product), args.ldc, M, N, row, col);
}
