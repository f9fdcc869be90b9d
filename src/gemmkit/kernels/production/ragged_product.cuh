// Ragged products whose tiles TMA loads and warpgroups multiply by wgmma: what `multiply_tiles` of
// wgmma_product.cuh is for one product.
//
// One tensor map of A serves all groups: the rows of a tile that lie past its group's end are those of
// the next, whose sums are left out when C is written. Sizes are read from memory by blocks that find
// their tiles themselves, so that the host never waits for them.
#pragma once

#include "dependent_launch.cuh"
#include "epilogue/box_store.cuh"
#include "mainloop/wgmma.cuh"
#include "scheduler/ragged.cuh"
#include "tile.cuh"

// A kernel's last parameters, as `signature` in ragged_wgmma.py and the epilogue have them.
#define RAGGED_PARAMETERS(Offset, Epilogue)                                                        \
  const Offset *ends, int group_count, int M, int N, int K, float alpha, float beta,               \
      typename Epilogue::Out *C, int ldc, const typename Epilogue::Out *bias, int bias_stride,     \
      const typename Epilogue::Out *residual, int ldr, typename Epilogue::Out *auxiliary, int ldx, \
      float scale CUSTOM_PARAMETERS
#define RAGGED_ARGUMENTS                                                                        \
  ends, group_count, M, N, K, alpha, beta, C, ldc, bias, bias_stride, residual, ldr, auxiliary, \
      ldx, scale CUSTOM

// C is one matrix of all groups, and B is known to its tensor map alone.
template <class Offset, class Epilogue>
struct RaggedArguments {
  using Out = typename Epilogue::Out;

  const Offset* ends;
  int group_count, M, N, K;
  float alpha, beta;
  Out* C;
  int ldc;
  const Out* bias;
  int bias_stride;
  const Out* residual;
  int ldr;
  Out* auxiliary;
  int ldx;
  float scale;
  typename Epilogue::Activation activation = {};

  __device__ __forceinline__ Epilogue epilogue(int group) const {
    return {alpha,
            beta,
            bias + static_cast<long long>(group) * bias_stride,
            {residual, ldr, auxiliary, ldx, scale},
            activation};
  }
};

// Where the rows of a group and the columns of C end.
struct Sides {
  int M, N;
};

// OPERANDS::Mainloop has the layout of A and B as TMA loads them, as in `multiply_tiles`. `scaling` are
// their `OperandScales`, if they have any.
template <class Operands, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE,
          class Offset, class Epilogue, class... Scaling>
__device__ __forceinline__ void multiply_ragged(const TensorMap& map_a, const TensorMap& map_b,
                                                const TensorMap& map_c,
                                                const RaggedArguments<Offset, Epilogue>& args,
                                                const Scaling&... scaling) {
  // The rows of the product that is computed are those of B^T if it is swapped.
  constexpr bool SWAPPED = TILE.BM % WGMMA_ROWS != 0;
  constexpr WgmmaTile OWN = SWAPPED ? swapped(TILE) : TILE;
  constexpr int CONSUMERS = OWN.consumers, COLS = OWN.BN, PRODUCER = CONSUMERS * 128;
  using Mainloop =
      typename Operands::template Mainloop<OWN, SWAPPED ? SWAPPED_LAYOUT<LAYOUT> : LAYOUT, true>;
  constexpr bool FROM_REGISTERS = WAY == WriteBack::FROM_REGISTERS;
  constexpr bool BY_TMA = WAY == WriteBack::BY_TMA;
  constexpr int SPARE = SPARE_REGISTERS<CONSUMERS, Mainloop::ROW_TILES * OWN.BN / 2>;
  using ByTma = BoxStore<SWAPPED, COLS, OWN.buffers, WriteBack::BY_TMA, SPARE, Epilogue, OWN.line>;
  using FromShared =
      BoxStore<SWAPPED, COLS, OWN.buffers, WriteBack::FROM_SHARED, SPARE, Epilogue, OWN.line>;
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
      args.ends, args.group_count, args.M, args.N);
  // Blocks that share operands find each other's barriers from here on.
  if constexpr (Mainloop::SHARING > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  const int clusters = gridDim.x / Mainloop::SHARING;
  int tile = blockIdx.x / Mainloop::SHARING;
  const int steps = (args.K + Mainloop::DEPTH_OF_STEP - 1) / Mainloop::DEPTH_OF_STEP;
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
    const auto loaded = [&] {
      const bool another = groups.tiles - tile > clusters;
      if (TURNS > 1 && another) named_barrier_arrive<256>(ORDER + (turn + 1) % TURNS);
    };
    // Scales may be asked for before the first stage is waited for, which makes the place visible.
    if constexpr (sizeof...(Scaling) > 0)
      mainloop.barriers.full[counter.stage].wait(counter.parity);
    const auto of_place = [&](const auto& how) {
      return [&] {
        const RaggedTile place = shared.places[slot];
        return how.template of_tile<SWAPPED, Mainloop::ROW_TILES, OWN.BN>(
            Sides{place.end, args.N}, place.group, first_row(place) + own_rows, first_col(place),
            0);
      };
    };
    mainloop.consume(sums, own_rows, steps, counter, loaded, of_place(scaling)...);
    const RaggedTile place = shared.places[slot];
    const Epilogue epilogue = args.epilogue(place.group);
    const int col = first_col(place);
#pragma unroll
    for (int i = 0; i < Mainloop::ROW_TILES; ++i) {
      const int row = first_row(place) + own_rows + i * WGMMA_ROWS;
      if constexpr (FROM_REGISTERS) {
        store_fragments<COLS, SWAPPED, SPARE>(sums[i], epilogue, args.C, args.ldc, place.end,
                                              args.N, row, col);
      } else {
        const auto store = [&]<class Store>() {
          Store::template store<false>(
              sums[i], map_c, reinterpret_cast<typename Store::Buffers&>(shared.results[consumer]),
              buffer, 1 + consumer, epilogue, args.C, args.ldc, place.end, args.N, 0, row, col);
        };
        // TMA leaves out what lies past the last row of C, but not the rows of the next group.
        const bool whole = (SWAPPED ? col + COLS : row + WGMMA_ROWS) <= place.end;
        if (BY_TMA && (whole || place.end == args.M)) {
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
