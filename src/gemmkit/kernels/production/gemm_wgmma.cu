// bfloat16 and float16 on Hopper's tensor cores: TMA loads tiles, warpgroups multiply them by wgmma.
//
// Blocks are persistent: one warp of the last warpgroup loads tiles of A and B into a circular buffer,
// the other warpgroups, consumers, multiply them, each its own rows of the block's tile of C. While
// they write it back by TMA, the next tile's operands are on their way. Where there are few tiles, the
// blocks of a cluster share the k of one.
#include "arguments.cuh"
#include "epilogue/cluster_sum.cuh"
#include "epilogue/fragment_store.cuh"
#include "mainloop/wgmma.cuh"
#include "scheduler/persistent.cuh"
#include "tile.cuh"

template <class In, WarpgroupTile TILE, Layout LAYOUT, bool TMA_STORE, Schedule SCHEDULE,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
               const __grid_constant__ TensorMap map_c, GEMM_PARAMETERS(In, Epilogue)) {
  constexpr bool BATCHED = SCHEDULE.batched;
  constexpr int CONSUMERS = TILE.consumers, PARTS = TILE.cluster_k, COLS = TILE.BN / PARTS;
  using Mainloop = WgmmaMainloop<In, TILE, LAYOUT, BATCHED>;
  using Store = FragmentStore<COLS, TILE.buffers, Epilogue>;
  using Sum = ClusterSum<PARTS, CONSUMERS, Mainloop::ROW_TILES, TILE.BN>;
  constexpr int PRODUCER = CONSUMERS * 128;
  struct Shared {
    typename Mainloop::Memory tiles;
    typename Store::template Buffers<TMA_STORE> results[CONSUMERS];
    Either<(PARTS > 1), typename Sum::Memory, int> parts;
    typename Mainloop::Barriers barriers;
    Barrier parts_arrived;
  };
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  const Mainloop mainloop{shared.tiles, shared.barriers};

  // Meanwhile the producer's warp finds out where its first tile is.
  if (threadIdx.x == PRODUCER + 32) {
    mainloop.init_barriers();
    if constexpr (PARTS > 1) Sum{shared.parts, shared.parts_arrived}.init();
  }
  if (threadIdx.x == PRODUCER) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
    if constexpr (TMA_STORE) tma_prefetch(map_c);
  }
  constexpr int ROWS = TILE.BM * TILE.cluster_m, TILE_COLS = TILE.BN * TILE.cluster_n;
  Persistent<BATCHED, SCHEDULE.raster, Mainloop::SHARING * PARTS> schedule(
      (M + ROWS - 1) / ROWS, (N + TILE_COLS - 1) / TILE_COLS, batch);
  PersistentTile tile = schedule.tile();
  // Blocks that share operands find each other's barriers from here on, those that share a tile's k
  // when they exchange their sums.
  if constexpr (PARTS > 1) cluster_arrive();
  if constexpr (Mainloop::SHARING > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  Steps steps{0, (args.depth() + TILE.BK - 1) / TILE.BK};
  if constexpr (PARTS > 1) {
    const int all = steps.count, rank = cluster_rank();
    steps.first = all * rank / PARTS;
    steps.count = all * (rank + 1) / PARTS - steps.first;
  }
  typename Mainloop::Counter counter;
  if (threadIdx.x >= PRODUCER) {
    if constexpr (CONSUMERS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == PRODUCER) {
      for (; schedule.left(); schedule.advance(), tile = schedule.tile()) {
        mainloop.produce(map_a, map_b, stride_a == 0 ? 0 : tile.product,
                         stride_b == 0 ? 0 : tile.product,
                         tile.row * ROWS + mainloop.along_m * TILE.BM,
                         tile.col * TILE_COLS + mainloop.along_n * TILE.BN, steps, counter);
      }
      if constexpr (Mainloop::SHARING > 1) mainloop.drain(counter);
    }
    if constexpr (PARTS > 1) cluster_wait();
  } else {
    if constexpr (CONSUMERS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int consumer = threadIdx.x / 128;
    int buffer = 0;
    for (; schedule.left(); schedule.advance(), tile = schedule.tile()) {
      typename Mainloop::Sums sums;
      mainloop.consume(sums, consumer * Mainloop::ROWS, steps.count, counter);
      const int first_row =
          tile.row * ROWS + mainloop.along_m * TILE.BM + consumer * Mainloop::ROWS;
      const int first_col = tile.col * TILE_COLS + mainloop.along_n * TILE.BN;
      // Finishes the columns from PART on that this block has, all if there is one part.
      const auto finish = [&]<int PART>() {
        const int col = first_col + PART * COLS;
#pragma unroll
        for (int i = 0; i < Mainloop::ROW_TILES; ++i) {
          const int row = first_row + i * WGMMA_ROWS;
          const auto& own = reinterpret_cast<const float (&)[COLS / 2]>(sums[i][PART * COLS / 2]);
          if constexpr (TMA_STORE) {
            Store::template by_tma<BATCHED>(own, map_c, shared.results[consumer].bytes, buffer,
                                            1 + consumer, args.epilogue(tile.product),
                                            args.c(tile.product), ldc, M, N, tile.product, row,
                                            col);
          } else {
            Store::directly(own, args.epilogue(tile.product), args.c(tile.product), ldc, M, N, row,
                            col);
          }
        }
      };
      if constexpr (PARTS == 1) {
        finish.template operator()<0>();
      } else {
        // There is one tile for each cluster.
        const Sum parts{shared.parts, shared.parts_arrived};
        cluster_wait();
        parts.send(sums, consumer);
        const auto sum_and_finish = [&]<int PART>() {
          if (parts.rank != PART) return;
          parts.template receive<PART>(sums, consumer);
          finish.template operator()<PART>();
        };
        sum_and_finish.template operator()<0>();
        sum_and_finish.template operator()<1>();
        if constexpr (PARTS > 2) {
          sum_and_finish.template operator()<2>();
          sum_and_finish.template operator()<3>();
        }
      }
    }
    if (TMA_STORE && threadIdx.x % 128 == 0) tma_wait_read<0>();
  }
}
