// As many blocks as the board holds, and each gets the same amount of work (stream-K).
//
// Tiles seldom come in whole waves, and the last wave leaves SMs idle. Here the tiles of the last
// waves are split: their steps of k, tile after tile, are divided into even shares, one per block.
// Who has a tile to itself stores it; of those that share one, the last to arrive does.
//
//   tiles  |    0    |    1    |    2    |   ...   and then whole tiles, one block each
//   blocks |  0   |  1   |  2   |  3   |
//
// Loads per result: those of `gemm_tiled`; at most two tiles a block go by way of the workspace.
#include "arguments.cuh"
#include "epilogue/fix_up.cuh"
#include "mainloop/cp_async_fma.cuh"
#include "residue_tiles.cuh"
#include "scheduler/stream_k.cuh"

template <Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    gemm_stream_k(GEMM_PARAMETERS(float, Epilogue)) {
  const Arguments<float, Epilogue> args{GEMM_ARGUMENTS};
  extern __shared__ __align__(128) float4 shared[];
  using Mainloop = CpAsyncFma<TILE, ACCESS.c, LAYOUT>;
  constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK;
  const Mainloop mainloop(shared);
  K = args.depth();

  int rows = (M + BM - 1) / BM, cols = (N + BN - 1) / BN;  // of tiles
  if constexpr (SCHEDULE.residue.width > 0) {
    const ResidueTiles<TILE, SCHEDULE.residue, LAYOUT> residue(M, N);
    if (blockIdx.y > 0) {
      return residue.compute((blockIdx.y - 1) * gridDim.x + blockIdx.x, shared, args);
    }
    rows = residue.tile_rows(), cols = residue.tile_cols();
  }
  const StreamK<SCHEDULE.batched, SCHEDULE.raster> schedule(rows, cols, max(1, (K + BK - 1) / BK),
                                                            args.batch);
  const auto start = [&](const Segment& work) {
    const auto [product, tile] = schedule.find(work.tile);
    const int row = tile.row * BM, col = tile.col * BN, k = work.first * BK;
    return mainloop.start(element_of<Mainloop::A_T>(args.a(product), args.lda, row, k), args.lda,
                          {row, M}, element_of<Mainloop::B_T>(args.b(product), args.ldb, k, col),
                          args.ldb, {col, N}, min(K - k, work.count * BK));
  };
  Segment next;
  bool more = schedule.start(next);
  if (!more) return;
  auto feed = start(next);
  while (more) {
    float sums[TILE.TM][TILE.TN] = {};
    mainloop.template multiply<SCHEDULE.chunks>(sums, feed);
    __syncthreads();  // nobody reads the stages any more
    const Segment work = next;
    more = schedule.next(next);
    if (more) feed = start(next);  // on its way while these sums are stored

    const auto [product, tile] = schedule.find(work.tile);
    const int block_row = tile.row * BM, block_col = tile.col * BN;
    float* const result = args.c(product);
    const auto epilogue = args.float4_epilogue(product);
    const bool whole = work.count == schedule.steps;
    const int first = schedule.owner(work.tile * schedule.steps);
    const int parts = schedule.owner((work.tile + 1) * schedule.steps - 1) - first + 1;
    // A block's first share lies in the middle or at the end of a tile, its last at the start.
    const auto slot = [&](int part) {
      return element(args.workspace, BM * BN, 2 * (first + part) + (part == 0), 0);
    };
    mainloop.store(sums, PartOrWhole{!whole, epilogue}, whole ? result : slot(blockIdx.x - first),
                   whole ? args.ldc : BN, whole ? M : BM, whole ? N : BN, whole ? block_row : 0,
                   whole ? block_col : 0);
    if (!whole && is_last_part(args.semaphores + work.tile, parts)) {
      add_parts<TILE.threads, BM, BN>(
          parts,
          [&](int part, int quad) { return __ldcg(reinterpret_cast<float4*>(slot(part)) + quad); },
          [&](int quad, const float4& sum) {
            store_quad<BN, ACCESS.c>(quad, sum, epilogue, result, args.ldc, M, N, block_row,
                                     block_col);
          });
    }
  }
}
