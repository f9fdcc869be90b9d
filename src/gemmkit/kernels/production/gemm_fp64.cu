// float64 on tensor cores from compute capability 8.0 on, in every layout and alignment.
//
// A tile of C for each block, its operands copied by cp.async several stages ahead. Where there are
// fewer tiles than SMs, k is shared: by slices, groups of a block's warps that meet in shared memory,
// and by blocks, of which the last adds up what all have left in the workspace.
//
//   k:  | part 0: slices 0 1 0 1 0 1 | part 1: slices 0 1 0 1 0 1 |   2 blocks of 2 groups of warps
#include "arguments.cuh"
#include "epilogue/fix_up.cuh"
#include "mainloop/double_mma.cuh"
#include "scheduler/batch.cuh"
#include "scheduler/raster.cuh"

template <DoubleTile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads) gemm_fp64(GEMM_PARAMETERS(double, Epilogue)) {
  const Arguments<double, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ float4 shared[];
  using Mainloop = DoubleMainloop<TILE, ACCESS, LAYOUT>;
  constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, THREADS = TILE.threads;
  constexpr int OWN_PAIRS = Mainloop::OWN_PAIRS;

  // Parts of k run over z; but with more row tiles than y has room for, z is theirs and k whole.
  const int rows = (M + BM - 1) / BM, cols = (N + BN - 1) / BN;
  const BatchPlace<SCHEDULE.batched> place(rows, cols, args.batch);
  const bool split = !SCHEDULE.batched && gridDim.y * BM >= M;
  const int parts = split ? gridDim.z : place.parts, part = split ? blockIdx.z : place.part;
  int tile_row = split ? blockIdx.y : place.tile_row, tile_col = place.tile_col;
  if (tile_row * BM >= M || (SCHEDULE.batched && place.product >= args.batch)) return;  // surplus
  const int number = (place.product * gridDim.y + tile_row) * gridDim.x + tile_col;
  if constexpr (SCHEDULE.raster > 0) {
    const TilePlace tile = rasterized<SCHEDULE.raster>(number, rows, cols);
    tile_row = tile.row, tile_col = tile.col;
  }
  const int row = tile_row * BM, col = tile_col * BN;

  // Whole steps of k, the first parts taking one more where they do not come out even.
  K = args.depth();
  const int steps = (K + BK - 1) / BK, share = steps / parts, more = steps % parts;
  const int k = (part * share + min(part, more)) * BK;
  const int depth = min(K - k, (share + (part < more)) * BK);

  const Mainloop mainloop(shared);
  typename Mainloop::Sums sums = {};
  mainloop.multiply(
      sums, element_of<Mainloop::A_T>(args.a(place.product), args.lda, row, k), args.lda, M - row,
      element_of<Mainloop::B_T>(args.b(place.product), args.ldb, k, col), args.ldb, N - col, depth);
  typename Mainloop::Results results;
  mainloop.add_slices(results, sums);

  if (parts > 1) {
    constexpr int TILE_PAIRS = BM * BN / 2;
    double2* const tile_parts =
        element(reinterpret_cast<double2*>(args.workspace), TILE_PAIRS, number * parts, 0) +
        threadIdx.x;
#pragma unroll
    for (int own = 0; own < OWN_PAIRS; ++own) {
      tile_parts[part * TILE_PAIRS + own * THREADS] = {results[own][0], results[own][1]};
    }
    if (!is_last_part(args.semaphores + number, parts)) return;
#pragma unroll
    for (int own = 0; own < OWN_PAIRS; ++own) results[own][0] = results[own][1] = 0.0;
    // Pairs under way at once, for each takes long to come.
    constexpr int BATCH = OWN_PAIRS < 8 ? 8 / OWN_PAIRS : 1;
#pragma unroll BATCH
    for (int other = 0; other < parts; ++other) {
#pragma unroll
      for (int own = 0; own < OWN_PAIRS; ++own) {
        const double2 sum = __ldcg(tile_parts + other * TILE_PAIRS + own * THREADS);
        results[own][0] += sum.x, results[own][1] += sum.y;
      }
    }
  }
  mainloop.store(results, args.epilogue(place.product), args.c(place.product), args.ldc, M, N, row,
                 col);
}
