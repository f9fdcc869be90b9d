// bfloat16 and float16 on Hopper's tensor cores: TMA loads tiles, warpgroups multiply them by wgmma.
//
// Blocks are persistent: one warp of the last warpgroup loads tiles of A and B into a circular buffer,
// the other warpgroups, consumers, multiply them, each its own rows of the block's tile of C. While
// they write it back by TMA, the next tile's operands are on their way.
#include "arguments.cuh"
#include "epilogue/fragment_store.cuh"
#include "mainloop/wgmma.cuh"
#include "scheduler/persistent.cuh"

template <class In, Tile TILE, Layout LAYOUT, bool TMA_STORE, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
               const __grid_constant__ Either<TMA_STORE, TensorMap, int> map_c,
               GEMM_PARAMETERS(In, Epilogue)) {
  using Mainloop = WgmmaMainloop<In, TILE, LAYOUT, SCHEDULE.batched>;
  using Store = FragmentStore<TILE.BN, Epilogue>;
  constexpr int CLUSTER = Mainloop::CLUSTER, PRODUCER = TILE.consumers * 128;
  struct Shared {
    typename Mainloop::Memory tiles;
    alignas(1024) unsigned char results[TMA_STORE ? TILE.consumers : 1][Store::BUFFERS]
                                       [TMA_STORE ? Store::BOX_BYTES : 16];
    typename Mainloop::Barriers barriers;
  };
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  const Mainloop mainloop{shared.tiles, shared.barriers};

  if (threadIdx.x == PRODUCER) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
    if constexpr (TMA_STORE) tma_prefetch(map_c);
    mainloop.init_barriers();
  }
  if constexpr (CLUSTER > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  constexpr int ROWS = TILE.BM * TILE.cluster_m, COLS = TILE.BN * TILE.cluster_n;
  Persistent<SCHEDULE.batched, SCHEDULE.raster, CLUSTER> schedule((M + ROWS - 1) / ROWS,
                                                                  (N + COLS - 1) / COLS, batch);
  const int steps = (args.depth() + TILE.BK - 1) / TILE.BK;
  typename Mainloop::Counter counter;
  if (threadIdx.x >= PRODUCER) {
    if constexpr (TILE.consumers > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == PRODUCER) {
      for (; schedule.left(); schedule.advance()) {
        const PersistentTile tile = schedule.tile();
        mainloop.produce(map_a, map_b, stride_a == 0 ? 0 : tile.product,
                         stride_b == 0 ? 0 : tile.product,
                         tile.row * ROWS + mainloop.along_m * TILE.BM,
                         tile.col * COLS + mainloop.along_n * TILE.BN, steps, counter);
      }
    }
  } else {
    if constexpr (TILE.consumers > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int consumer = threadIdx.x / 128;
    int buffer = 0;
    for (; schedule.left(); schedule.advance()) {
      const PersistentTile tile = schedule.tile();
      typename Mainloop::Sums sums;
      mainloop.consume(sums, consumer * Mainloop::ROWS, steps, counter);
      const int col = tile.col * COLS + mainloop.along_n * TILE.BN;
#pragma unroll
      for (int i = 0; i < Mainloop::ROW_TILES; ++i) {
        const int row = tile.row * ROWS + mainloop.along_m * TILE.BM + consumer * Mainloop::ROWS +
                        i * WGMMA_ROWS;
        if constexpr (TMA_STORE) {
          Store::template by_tma<SCHEDULE.batched>(sums[i], map_c, shared.results[consumer],
                                                   buffer, 1 + consumer, args.epilogue(tile.product),
                                                   args.c(tile.product), ldc, M, N, tile.product,
                                                   row, col);
        } else {
          Store::directly(sums[i], args.epilogue(tile.product), args.c(tile.product), ldc, M, N, row,
                          col);
        }
      }
    }
    if (TMA_STORE && threadIdx.x % 128 == 0) tma_wait_read<0>();
  }
  // A block must not end while its peers still send to its shared memory.
  if constexpr (CLUSTER > 1) cluster_sync();
}
