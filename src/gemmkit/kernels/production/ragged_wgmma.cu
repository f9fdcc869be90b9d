// Ragged products of 16 bits on Hopper's tensor cores: the rows of one A are divided among groups, each of
// which has a B of its own, as the tokens of a mixture of experts are.
//
//   ends   | 3 | 3 |      11      |  13  |      group g: rows from ends[g - 1] up to ends[g]
//   A, C   |0 1 2|3 4 5 6 7 8 9 10|11 12|       times  B[0]  B[1]  B[2]  B[3]
//
// One tensor map of A serves all groups: the rows of a tile that lie past its group's end are those of
// the next, whose sums are left out when C is written. Sizes are read from memory by blocks that find
// their tiles themselves, so that the host never waits for them. Loads and products are those of
// `gemm_wgmma`, to the same bits.
#include "dependent_launch.cuh"
#include "epilogue/fragment_store.cuh"
#include "mainloop/wgmma.cuh"
#include "scheduler/ragged.cuh"
#include "tile.cuh"

template <class In, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Offset,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    ragged_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                 const __grid_constant__ TensorMap map_c, const Offset* ends, int group_count,
                 int M, int N, int K, float alpha, float beta, typename Epilogue::Out* C, int ldc,
                 const typename Epilogue::Out* bias, int bias_stride,
                 const typename Epilogue::Out* residual, int ldr, typename Epilogue::Out* auxiliary,
                 int ldx, float scale CUSTOM_PARAMETERS) {
  // The rows of the product that is computed are those of B^T if it is swapped.
  constexpr bool SWAPPED = TILE.BM % WGMMA_ROWS != 0;
  constexpr WgmmaTile OWN = SWAPPED ? swapped(TILE) : TILE;
  constexpr int CONSUMERS = OWN.consumers, COLS = OWN.BN, PRODUCER = CONSUMERS * 128;
  using Mainloop = WgmmaMainloop<In, OWN, SWAPPED ? SWAPPED_LAYOUT<LAYOUT> : LAYOUT, true>;
  constexpr bool FROM_REGISTERS = WAY == WriteBack::FROM_REGISTERS;
  constexpr bool BY_TMA = WAY == WriteBack::BY_TMA;
  constexpr int SPARE = SPARE_REGISTERS<CONSUMERS, Mainloop::ROW_TILES * OWN.BN / 2>;
  using ByTma = BoxStore<SWAPPED, COLS, OWN.buffers, WriteBack::BY_TMA, SPARE, Epilogue>;
  using FromShared = BoxStore<SWAPPED, COLS, OWN.buffers, WriteBack::FROM_SHARED, SPARE, Epilogue>;
  // Both leave results in the same form there.
  using Buffers = typename Either<FROM_REGISTERS, NoStore, FromShared>::Buffers;
  constexpr int SLOTS = OWN.stages + 2;
  struct Shared {
    typename Mainloop::Memory tiles;
    Buffers results[CONSUMERS];
    typename Mainloop::Barriers barriers;
    // Of the block's tiles in hand: the producer is as many stages ahead of the consumers at most, and
    // of two with a tile each, one may have a tile before its own to look up.
    RaggedTile places[SLOTS];
  };
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Mainloop mainloop{shared.tiles, shared.barriers};

  if (threadIdx.x == PRODUCER + 32) mainloop.init_barriers();
  if (threadIdx.x == PRODUCER) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
    if constexpr (BY_TMA) tma_prefetch(map_c);
  }
  wait_for_previous_kernel();
  RaggedGroups<SCHEDULE.raster, TILE.BM * TILE.cluster_m, TILE.BN * TILE.cluster_n, Offset> groups(
      ends, group_count, M, N);
  // Blocks that share operands find each other's barriers from here on.
  if constexpr (Mainloop::SHARING > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  const int clusters = gridDim.x / Mainloop::SHARING;
  int tile = blockIdx.x / Mainloop::SHARING;
  const int steps = (K + Mainloop::DEPTH_OF_STEP - 1) / Mainloop::DEPTH_OF_STEP;
  // Where this block's part of a tile begins in the product that is computed.
  const auto first_row = [&](const RaggedTile& place) {
    return (SWAPPED ? place.col : place.row) + mainloop.along_m * OWN.BM;
  };
  const auto first_col = [&](const RaggedTile& place) {
    return (SWAPPED ? place.row : place.col) + mainloop.along_n * OWN.BN;
  };
  typename Mainloop::Counter counter;
  if (threadIdx.x >= PRODUCER) {
    give_up_registers<CONSUMERS>();
    if (threadIdx.x >= PRODUCER + 32) return;
    for (int slot = 0; tile < groups.tiles; tile += clusters, slot = (slot + 1) % SLOTS) {
      const RaggedTile place = groups.place(tile);
      if (threadIdx.x == PRODUCER) {
        // The slot is free when the tile's first stage is, whose barrier makes it visible then.
        mainloop.barriers.empty[counter.stage].wait(counter.parity ^ 1);
        shared.places[slot] = place;
        mainloop.produce(SWAPPED ? map_b : map_a, SWAPPED ? map_a : map_b,
                         SWAPPED ? place.group : 0, SWAPPED ? 0 : place.group, first_row(place),
                         first_col(place), Steps{0, steps}, counter);
      }
      __syncwarp();
    }
    if constexpr (Mainloop::SHARING > 1) {
      if (threadIdx.x == PRODUCER) mainloop.drain(counter);
    }
    return;
  }
  take_registers<CONSUMERS>();
  const int consumer = threadIdx.x / 128,
            own_rows = consumer % Mainloop::CONSUMERS * Mainloop::ROWS;
  int buffer = 0;
  // The block's tiles go round among the consumers, and with them the stages. One begins when that of
  // the tile before has all it needs: the parity of a stage does not tell two rounds apart.
  constexpr int TURNS = OWN.pingpong, ORDER = 1 + CONSUMERS;
  const int turn = consumer / Mainloop::CONSUMERS;
  bool first = turn == 0;
  int slot = 0;
  // Goes on to the next tile of the block, or leaves one, and its stages, to the other consumer.
  const auto advance = [&] {
    tile += clusters;
    slot = (slot + 1) % SLOTS;
  };
  const auto skip = [&] {
    if (tile < groups.tiles) counter.skip(steps);
    advance();
  };
  if (TURNS > 1 && turn == 1) skip();
  while (tile < groups.tiles) {
    typename Mainloop::Sums sums;
    if (TURNS > 1 && !first) named_barrier_sync<256>(ORDER + turn);
    first = false;
    mainloop.consume(sums, own_rows, steps, counter, [&] {
      const bool another = groups.tiles - tile > clusters;
      if (TURNS > 1 && another) named_barrier_arrive<256>(ORDER + (turn + 1) % TURNS);
    });
    const RaggedTile place = shared.places[slot];
    const Epilogue epilogue{alpha,
                            beta,
                            bias + static_cast<long long>(place.group) * bias_stride,
                            {residual, ldr, auxiliary, ldx, scale} CUSTOM};
    const int col = first_col(place);
#pragma unroll
    for (int i = 0; i < Mainloop::ROW_TILES; ++i) {
      const int row = first_row(place) + own_rows + i * WGMMA_ROWS;
      if constexpr (FROM_REGISTERS) {
        store_fragments<COLS, SWAPPED, SPARE>(sums[i], epilogue, C, ldc, place.end, N, row, col);
      } else {
        const auto store = [&]<class Store>() {
          Store::template store<false>(
              sums[i], map_c, reinterpret_cast<typename Store::Buffers&>(shared.results[consumer]),
              buffer, 1 + consumer, epilogue, C, ldc, place.end, N, 0, row, col);
        };
        // TMA leaves out what lies past the last row of C, but not the rows of the next group.
        const bool whole = (SWAPPED ? col + COLS : row + WGMMA_ROWS) <= place.end;
        if (BY_TMA && (whole || place.end == M)) {
          store.template operator()<ByTma>();
        } else {
          // The barrier in the store then tells all threads that TMA has read every buffer.
          if (BY_TMA && threadIdx.x % 128 == 0) tma_wait_read<0>();
          store.template operator()<FromShared>();
        }
      }
    }
    advance();
    if (TURNS > 1) skip();
  }
  if (BY_TMA && threadIdx.x % 128 == 0) tma_wait_read<0>();
}
