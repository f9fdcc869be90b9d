// Rung 21: a persistent kernel. One cluster for each pair of SMs goes from tile to tile.
//
// The producer does not stop at the end of a tile: it loads the next one's operands while consumers
// finish results in shared memory, from where TMA stores them. Tiles come in groups of rows.
//
//   producer    tile 0 ........ | tile 7 ........ | tile 14 .......
//   consumers     products 0 | store | products 7 | store | products 14
//
// Loads per result, 2 x 128 x 256: K/128 elements from global memory, by TMA, 5K/256 shared.
#include "epilogue.cuh"
#include "scheduler/raster.cuh"
#include "tma.cuh"
#include "warpgroup.cuh"

template <class In, int BM, int BN, int BK, int STAGES, int RASTER, class Epilogue>
__global__ void __launch_bounds__(BM / WGMMA_ROWS * 128 + 128, 1)
    persistent(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
               const __grid_constant__ TensorMap map_c, int M, int N, int K, float alpha,
               float beta, typename Epilogue::Out* C, int ldc,
               const typename Epilogue::Out* bias CUSTOM_PARAMETERS) {
  using Out = typename Epilogue::Out;
  constexpr int CONSUMERS = BM / WGMMA_ROWS, PRODUCER = CONSUMERS * 128, CLUSTER = 2;
  constexpr unsigned short BOTH = 0b11;
  constexpr int COLS = 128 / sizeof(Out);  // of a box of C: a line of the swizzle
  struct Stage {
    WarpgroupTile<In, BM, BK, true> As;
    WarpgroupTile<In, BN, BK, false> Bs;
  };
  struct Shared {
    Stage stages[STAGES];
    WarpgroupTile<Out, WGMMA_ROWS, COLS, true> results[CONSUMERS][2];
    Barrier full[STAGES], empty[STAGES];
  };
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  const int rank = cluster_rank();
  const int steps = alpha != 0.0f ? (K + BK - 1) / BK : 0;  // BLAS: alpha = 0 never reads A or B
  const int tile_rows = (M + CLUSTER * BM - 1) / (CLUSTER * BM), tile_cols = (N + BN - 1) / BN;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(CLUSTER * CONSUMERS * 4);
    }
    make_barriers_visible();
  }
  cluster_sync();

  StageCounter<STAGES> at;  // goes on from tile to tile
  const auto each_tile = [&](const auto& compute) {
    const int first = blockIdx.x / CLUSTER, apart = gridDim.x / CLUSTER;
    for (int tile = first; tile < tile_rows * tile_cols; tile += apart) {
      const TilePlace place = rasterized<RASTER>(tile, tile_rows, tile_cols);
      compute((place.row * CLUSTER + rank) * BM, place.col * BN);
    }
  };
  if (threadIdx.x >= PRODUCER) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x > PRODUCER) return;
    each_tile([&](int block_row, int block_col) {
      for (int step = 0; step < steps; ++step, at.advance()) {
        Stage& to = shared.stages[at.stage];
        Barrier& full = shared.full[at.stage];
        shared.empty[at.stage].wait(at.parity ^ 1);
        full.arrive_expecting(sizeof(Stage));
        tma_load<false, false>(to.As.box(0), map_a, {step * BK, block_row, 0}, full, 0);
#pragma unroll
        for (int i = 0; i < to.Bs.BOXES / CLUSTER; ++i) {
          const int box = i * CLUSTER + rank, col = block_col + box * to.Bs.SPAN;
          tma_load<false, true>(to.Bs.box(box), map_b, {col, step * BK, 0}, full, BOTH);
        }
      }
    });
    // A block must not end before the peer's last arrivals.
    for (int stage = 0; stage < STAGES; ++stage, at.advance()) {
      shared.empty[at.stage].wait(at.parity ^ 1);
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int consumer = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const Epilogue epilogue{alpha, beta, bias, {} CUSTOM};
  const auto release = [&](int stage) {
    if (lane < CLUSTER) shared.empty[stage].arrive_at(lane);
  };
  each_tile([&](int block_row, int block_col) {
    float sums[BN / 2];
    leave_undefined(sums);
    int held = 0;  // the stage that products under way read
#pragma unroll 1
    for (int step = 0; step < steps; ++step, at.advance()) {
      const Stage& tiles = shared.stages[at.stage];
      shared.full[at.stage].wait(at.parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < BK; k += 16) {
        Wgmma<In, BN, true, false>::multiply(sums, tiles.As.descriptor(consumer * WGMMA_ROWS, k),
                                             tiles.Bs.descriptor(0, k), step > 0 || k > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the products of the step before
      if (step > 0) release(held);
      held = at.stage;
    }
    wgmma_wait<0>(sums);
    if (steps > 0) release(held);

    // Results leave box by box, through two buffers in turn: BN has an even number of boxes.
    const int first_row = block_row + consumer * WGMMA_ROWS;
#pragma unroll
    for (int box = 0; box < BN / COLS; ++box) {
      auto& buffer = shared.results[consumer][box % 2];
      const int first_col = block_col + box * COLS;
#pragma unroll
      for (int i = 0; i < COLS / 4; ++i) {  // pairs of neighbors, in the layout of mma.sync
        const int line = thread / 32 * 16 + i % 2 * 8 + lane / 4, place = i / 2 * 8 + lane % 4 * 2;
        Pack<Out, 2> pair;
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          const int row = first_row + line, col = first_col + place + v;
          float x = 0.0f;
          if (row < M && col < N) {
            const float old = beta != 0.0f ? widened<float>(*element(C, ldc, row, col)) : 0.0f;
            const float sum = steps > 0 ? sums[(box * COLS / 4 + i) * 2 + v] : 0.0f;
            x = epilogue.finish(sum, old, row, col);
          }
          pair.set(v, Narrowed<Out>::of(x));
        }
        pair.store(buffer.at(line, place));
      }
      fence_for_tma();
      if (thread == 0) tma_wait_read<0>();  // the other buffer, which is next
      named_barrier_sync<128>(1 + consumer);
      if (thread == 0) {
        if (first_row < M && first_col < N) {
          tma_store<false>(map_c, {first_col, first_row, 0}, buffer.box(0));
        }
        tma_commit();
      }
    }
  });
  if (thread == 0) tma_wait_read<0>();  // a block must not end before its stores have read
}
