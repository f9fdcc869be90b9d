// Products of different shapes in one launch, whose tiles TMA loads and warpgroups multiply by wgmma: what
// `multiply_tiles` of wgmma_product.cuh is for one shape.
//
// Clusters of blocks are persistent and take tiles of all products in turn. The tensor maps of a product
// stand in the table beside its sizes; the producer has those of the next tile brought to its SM while
// it waits for stages of this one.
#pragma once

#include "dependent_launch.cuh"
#include "epilogue/box_store.cuh"
#include "mainloop/wgmma.cuh"
#include "scheduler/mapped_groups.cuh"
#include "tile.cuh"

// A kernel's parameters, as TABLE_ARGUMENTS in plan.py and the epilogue have them. `Its` describes a
// product of operands In.
#define MAPPED_GROUPS_PARAMETERS(Its, In, Epilogue)                                         \
  const Its<In, typename Epilogue::Out>*list, int group_count, int tile_count, float alpha, \
      float beta, float scale CUSTOM_PARAMETERS

// What is the same for all products.
template <class Epilogue>
struct CommonArguments {
  float alpha, beta, scale;
  typename Epilogue::Activation activation = {};

  template <class Its>
  __device__ __forceinline__ Epilogue epilogue(const Its& its) const {
    return {
        alpha, beta, its.bias, {its.residual, its.ldr, its.auxiliary, its.ldx, scale}, activation};
  }
  // Steps along k of a tile. BLAS: alpha = 0 never reads A or B.
  template <class Its>
  __device__ __forceinline__ int steps(const Its& its, int depth) const {
    return alpha == 0.0f ? 0 : (its.K + depth - 1) / depth;
  }
};

// OPERANDS::Mainloop has the layout of A and B as TMA loads them, as in `multiply_tiles`. `Its` is what
// describes a product, and `scales_of` gives the `OperandScales` of one where operands have any.
template <class In, class Operands, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE,
          class Epilogue, class Its, class... ScalesOf>
__device__ __forceinline__ void multiply_mapped_groups(const Its* list, int group_count,
                                                       int tile_count,
                                                       const CommonArguments<Epilogue>& common,
                                                       const ScalesOf&... scales_of) {
  // The rows of the product that is computed are those of B^T if it is swapped.
  constexpr bool SWAPPED = TILE.BM % WGMMA_ROWS != 0;
  constexpr WgmmaTile OWN = SWAPPED ? swapped(TILE) : TILE;
  constexpr int CONSUMERS = OWN.consumers, COLS = OWN.BN, PRODUCER = CONSUMERS * 128;
  using Mainloop =
      typename Operands::template Mainloop<OWN, SWAPPED ? SWAPPED_LAYOUT<LAYOUT> : LAYOUT, false>;
  constexpr bool FROM_REGISTERS = WAY == WriteBack::FROM_REGISTERS;
  constexpr bool BY_TMA = WAY == WriteBack::BY_TMA;
  constexpr int SPARE = SPARE_REGISTERS<CONSUMERS, Mainloop::ROW_TILES * OWN.BN / 2>;
  using StoreOfBoxes = BoxStore<SWAPPED, COLS, OWN.buffers, WAY, SPARE, Epilogue, OWN.line>;
  using Store = Either<FROM_REGISTERS, NoStore, StoreOfBoxes>;
  struct Shared {
    typename Mainloop::Memory tiles;
    typename Store::Buffers results[CONSUMERS];
    typename Mainloop::Barriers barriers;
  };
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Mainloop mainloop{shared.tiles, shared.barriers};
  const Groups<SCHEDULE.raster, In, typename Epilogue::Out, Its> groups{list, group_count,
                                                                        tile_count};

  if (threadIdx.x == PRODUCER + 32) mainloop.init_barriers();
  // Blocks that share operands find each other's barriers from here on.
  if constexpr (Mainloop::SHARING > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  wait_for_previous_kernel();

  constexpr int ROWS = OWN.BM * OWN.cluster_m, TILE_COLS = OWN.BN * OWN.cluster_n;
  const int clusters = gridDim.x / Mainloop::SHARING;
  int tile = blockIdx.x / Mainloop::SHARING;
  const auto first_row = [&](const GroupTile& place) {
    return (SWAPPED ? place.col : place.row) * ROWS + mainloop.along_m * OWN.BM;
  };
  const auto first_col = [&](const GroupTile& place) {
    return (SWAPPED ? place.row : place.col) * TILE_COLS + mainloop.along_n * OWN.BN;
  };
  typename Mainloop::Counter counter;
  if (threadIdx.x >= PRODUCER) {
    give_up_registers<CONSUMERS>();
    if (threadIdx.x == PRODUCER) {
      const auto expect = [&](const Its& its) {
        if (common.steps(its, Mainloop::DEPTH_OF_STEP) == 0) return;
        tma_acquire(its.map_a);
        tma_acquire(its.map_b);
        tma_prefetch(its.map_a);
        tma_prefetch(its.map_b);
      };
      GroupTile place = groups.place(tile);
      expect(groups.list[place.group]);
      while (tile < groups.tiles) {
        const Its& its = groups.list[place.group];
        const int steps = common.steps(its, Mainloop::DEPTH_OF_STEP);
        const auto load = [&](int first, int end) {
          mainloop.produce(SWAPPED ? its.map_b : its.map_a, SWAPPED ? its.map_a : its.map_b, 0, 0,
                           first_row(place), first_col(place), Steps{first, end - first}, counter);
        };
        // When all stages are under way there is time to look where the next tile is.
        const int under_way = min(steps, OWN.stages);
        load(0, under_way);
        tile += clusters;
        GroupTile next = place;
        if (tile < groups.tiles) {
          next = groups.place(tile);
          if (next.group != place.group) expect(groups.list[next.group]);
        }
        load(under_way, steps);
        place = next;
      }
      if constexpr (Mainloop::SHARING > 1) mainloop.drain(counter);
    }
    return;
  }
  take_registers<CONSUMERS>();
  const int consumer = threadIdx.x / 128,
            own_rows = consumer % Mainloop::CONSUMERS * Mainloop::ROWS;
  int buffer = 0, group = -1;
  // The block's tiles go round among the consumers, and with them the stages. One begins when that of
  // the tile before has all it needs: the parity of a stage does not tell two rounds apart.
  constexpr int TURNS = OWN.pingpong, ORDER = 1 + CONSUMERS;
  const int turn = consumer / Mainloop::CONSUMERS;
  bool first = turn == 0;
  // Leaves a tile, and its stages, to the other consumer.
  const auto skip = [&] {
    if (tile < groups.tiles) {
      const Its& its = groups.list[groups.find(tile)];
      counter.skip(common.steps(its, Mainloop::DEPTH_OF_STEP));
    }
    tile += clusters;
  };
  if (TURNS > 1 && turn == 1) skip();
  GroupTile next = {};
  const auto look_up = [&](int number) {
    if (number < groups.tiles) next = groups.place(number);
  };
  look_up(tile);
  while (tile < groups.tiles) {
    const GroupTile place = next;
    const Its& its = groups.list[place.group];
    // The thread that stores needs the map of C; a register for the last group would be one too many
    // where consumers have a tile each.
    if (BY_TMA && threadIdx.x % 128 == 0 && (TURNS > 1 || place.group != group)) {
      tma_acquire(its.map_c);
      tma_prefetch(its.map_c);
    }
    __syncwarp();
    group = place.group;
    typename Mainloop::Sums sums;
    if (TURNS > 1 && !first) named_barrier_sync<256>(ORDER + turn);
    first = false;
    const auto loaded = [&] {
      const bool another = groups.tiles - tile > clusters;
      if (TURNS > 1 && another) named_barrier_arrive<256>(ORDER + (turn + 1) % TURNS);
      // While the last products are under way; of two consumers with a tile each, the other has some.
      if (TURNS == 1) look_up(tile + clusters);
    };
    const auto of_place = [&](const auto& scales) {
      return [&] {
        return scales(its).template of_tile<SWAPPED, Mainloop::ROW_TILES, OWN.BN>(
            its, 0, first_row(place) + own_rows, first_col(place), 0);
      };
    };
    mainloop.consume(sums, own_rows, common.steps(its, Mainloop::DEPTH_OF_STEP), counter, loaded,
                     of_place(scales_of)...);
    const int col = first_col(place);
#pragma unroll
    for (int i = 0; i < Mainloop::ROW_TILES; ++i) {
      const int row = first_row(place) + own_rows + i * WGMMA_ROWS;
      if constexpr (FROM_REGISTERS) {
        store_fragments<COLS, SWAPPED, SPARE>(sums[i], common.epilogue(its), its.C, its.ldc, its.M,
                                              its.N, row, col);
      } else {
        Store::template store<false>(sums[i], its.map_c, shared.results[consumer], buffer,
                                     1 + consumer, common.epilogue(its), its.C, its.ldc, its.M,
                                     its.N, 0, row, col);
      }
    }
    tile += clusters;
    if (TURNS > 1) {
      skip();
      look_up(tile);
    }
  }
  if (BY_TMA && threadIdx.x % 128 == 0) tma_wait_read<0>();
}
