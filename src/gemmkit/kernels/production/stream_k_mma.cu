// As `gemm_mma`, but with as many blocks as the board holds, each with the same amount of work (stream-K).
//
// The tiles of the last waves are split: their steps of k, tile after tile, are divided into even shares,
// one per block. Who has a tile to itself stores it; of those that share one, the last to arrive
// adds the others' partial sums to its own, and stores the tile.
//
//   tiles  |    0    |    1    |    2    |   ...   and then whole tiles, one block each
//   blocks |  0   |  1   |  2   |  3   |
#include "arguments.cuh"
#include "epilogue/fragment_fix_up.cuh"
#include "mainloop/cp_async_mma.cuh"
#include "scheduler/stream_k.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    stream_k_mma(GEMM_PARAMETERS(In, Epilogue)) {
  extern __shared__ __align__(128) float4 shared[];
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  using Mainloop = CpAsyncMma<In, TILE, ACCESS, LAYOUT>;
  using Sum = typename Epilogue::Sum;
  constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK;
  const Mainloop mainloop(shared);
  K = args.depth();

  const int rows = (M + BM - 1) / BM, cols = (N + BN - 1) / BN;  // of tiles
  const StreamK<SCHEDULE.batched, SCHEDULE.raster> schedule(rows, cols, max(1, (K + BK - 1) / BK),
                                                            args.batch);
  Segment work;
  for (bool more = schedule.start(work); more; more = schedule.next(work)) {
    const auto [product, tile] = schedule.find(work.tile);
    const int row = tile.row * BM, col = tile.col * BN, k = work.first * BK;
    __syncthreads();  // nobody reads the stages any more
    typename Mainloop::Sums sums = {};
    mainloop.multiply(sums, element_of<Mainloop::A_T>(args.a(product), args.lda, row, k), args.lda,
                      M - row, element_of<Mainloop::B_T>(args.b(product), args.ldb, k, col),
                      args.ldb, N - col, min(K - k, work.count * BK));
    if (work.count < schedule.steps) {
      const int first = schedule.owner(work.tile * schedule.steps);
      const int parts = schedule.owner((work.tile + 1) * schedule.steps - 1) - first + 1;
      // A block's first share lies in the middle or at the end of a tile, its last at the start.
      const auto part = [&](int i) {
        const int slot = 2 * (first + i) + (i == 0);
        return element(args.workspace, BM * BN * int(sizeof(Sum) / sizeof(float)), slot, 0);
      };
      constexpr int SHARED_BYTES = TILE.stages * sizeof(typename Mainloop::Stage);
      if (!fix_up<TILE.threads, SHARED_BYTES>(sums, blockIdx.x - first, parts,
                                              args.semaphores + work.tile, part, shared)) {
        continue;
      }
    }
    mainloop.store(sums, args.epilogue(product), args.c(product), args.ldc, M, N, row, col);
  }
}
