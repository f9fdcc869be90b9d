// Products whose tiles TMA loads and warpgroups multiply by wgmma: what kernels with such a mainloop
// share.
//
// Blocks are persistent: one warp of the last warpgroup loads tiles of A and B into a circular buffer,
// the other warpgroups, consumers, multiply them, each its own rows of the block's tile of C. While
// they write it back by TMA, the next tile's operands are on their way; or, if consumers have a tile
// each ("ping-pong"), one writes while the other multiplies. Where there are few tiles, the blocks of
// a cluster share the k of one. A tile whose rows are no multiple of a wgmma's 64 is computed as its
// transpose, B^T by A^T ("swap AB"), for a wgmma's columns come in finer steps; and so is one whose B
// comes from registers, which have a wgmma's rows.
#pragma once

#include "arguments.cuh"
#include "dependent_launch.cuh"
#include "epilogue/box_store.cuh"
#include "epilogue/cluster_sum.cuh"
#include "mainloop/wgmma.cuh"
#include "scheduler/arriving_rows.cuh"
#include "tile.cuh"

// Where tensor cores multiply A and B as they are.
struct Unscaled {
  static constexpr bool SCALES = false, IN_MAINLOOP = false;
};

// OPERANDS::Mainloop has the layout of A and B as TMA loads them. `scaling` undoes what was done to them
// before, see `LineScales`, or has scales for the mainloop, see `OperandScales`. `further` are
// `FurtherMaps` where the write-back is FUSED_BY_TMA. `rows_of_a` says where the rows of A are.
template <class Operands, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE,
          bool SWAPPED = TILE.BM % WGMMA_ROWS != 0, class In, class Epilogue,
          class Scaling = Unscaled, class Further = NoMaps, class RowsOfA = AllRows>
__device__ __forceinline__ void multiply_tiles(const TensorMap& map_a, const TensorMap& map_b,
                                               const TensorMap& map_c,
                                               const Arguments<In, Epilogue>& args,
                                               const Scaling& scaling = {},
                                               [[maybe_unused]] const Further& further = {},
                                               RowsOfA rows_of_a = {}) {
  constexpr bool BATCHED = SCHEDULE.batched;
  // What follows is about the product that is computed: the wgmma's rows, or their tiles, are of B^T
  // if it is swapped.
  constexpr WgmmaTile OWN = SWAPPED ? swapped(TILE) : TILE;
  constexpr int CONSUMERS = OWN.consumers, PARTS = OWN.cluster_k, COLS = OWN.BN / PARTS;
  using Mainloop =
      typename Operands::template Mainloop<OWN, SWAPPED ? SWAPPED_LAYOUT<LAYOUT> : LAYOUT, BATCHED>;
  constexpr bool FROM_REGISTERS = WAY == WriteBack::FROM_REGISTERS;
  constexpr bool BY_TMA = WAY == WriteBack::BY_TMA, FUSED = WAY == WriteBack::FUSED_BY_TMA;
  static_assert(!FUSED || !Scaling::SCALES, "a consumer fills all boxes of its tiles");
  constexpr int SPARE = SPARE_REGISTERS<CONSUMERS, Mainloop::ROW_TILES * OWN.BN / 2>;
  using StoreOfBoxes = BoxStore<SWAPPED, COLS, OWN.buffers, WAY, SPARE, Epilogue, OWN.line>;
  using Store = Either<FROM_REGISTERS, NoStore, StoreOfBoxes>;
  using Sum = ClusterSum<PARTS, CONSUMERS, Mainloop::ROW_TILES, OWN.BN>;
  // Whether all boxes of a tile are on their way while it is multiplied.
  constexpr bool MOVED = FUSED && OWN.buffers >= Mainloop::ROW_TILES * Store::BOXES;
  constexpr int PRODUCER = CONSUMERS * 128;
  struct Shared {
    typename Mainloop::Memory tiles;
    typename Store::Buffers results[CONSUMERS];
    Either<(PARTS > 1), typename Sum::Memory, int> parts;
    typename Mainloop::Barriers barriers;
    Barrier parts_arrived;
    Either<FUSED, BoxBarriers<OWN.buffers>[CONSUMERS], char> boxes;
  };
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Mainloop mainloop{shared.tiles, shared.barriers};

  // Meanwhile the producer's warp finds out where its first tile is.
  if (threadIdx.x == PRODUCER + 32) {
    if constexpr (FUSED) {
      for (int i = 0; i < CONSUMERS; ++i) shared.boxes[i].init();
    }
    mainloop.init_barriers();
    if constexpr (PARTS > 1) Sum{shared.parts, shared.parts_arrived}.init();
  }
  if (threadIdx.x == PRODUCER) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
    if constexpr (BY_TMA || FUSED) tma_prefetch(map_c);
    if constexpr (FUSED && Epilogue::READS_RESIDUAL) tma_prefetch(further.residual);
    if constexpr (FUSED && Epilogue::WRITES_AUXILIARY) tma_prefetch(further.auxiliary);
    rows_of_a.prefetch();
  }
  constexpr int ROWS = OWN.BM * OWN.cluster_m, TILE_COLS = OWN.BN * OWN.cluster_n;
  const int rows = SWAPPED ? args.N : args.M, cols = SWAPPED ? args.M : args.N;
  using Tiles =
      typename RowsOfA::template Schedule<BATCHED, SCHEDULE.raster, Mainloop::SHARING * PARTS>;
  Tiles schedule = rows_of_a.template schedule<Tiles>(
      (rows + ROWS - 1) / ROWS, (cols + TILE_COLS - 1) / TILE_COLS, args.batch, ROWS);
  PersistentTile tile = schedule.tile();
  // Blocks that share operands find each other's barriers from here on, those that share a tile's k
  // when they exchange their sums.
  if constexpr (PARTS > 1) cluster_arrive();
  if constexpr (Mainloop::SHARING > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  wait_for_previous_kernel();

  Steps steps{0, (args.depth() + Mainloop::DEPTH_OF_STEP - 1) / Mainloop::DEPTH_OF_STEP};
  if constexpr (PARTS > 1) {
    const int all = steps.count, rank = cluster_rank();
    steps.first = all * rank / PARTS;
    steps.count = all * (rank + 1) / PARTS - steps.first;
  }
  typename Mainloop::Counter counter;
  if (threadIdx.x >= PRODUCER) {
    give_up_registers<CONSUMERS>();
    if (threadIdx.x == PRODUCER) {
      for (; schedule.left(); schedule.advance(), tile = schedule.tile()) {
        const int product_a = args.stride_a == 0 ? 0 : tile.product;
        const int product_b = args.stride_b == 0 ? 0 : tile.product;
        const RowsOfTile from = rows_of_a.find(
            SWAPPED ? map_b : map_a, tile.row * ROWS + mainloop.along_m * OWN.BM, tile.row * ROWS);
        mainloop.produce(from.map, SWAPPED ? map_a : map_b, SWAPPED ? product_b : product_a,
                         SWAPPED ? product_a : product_b, from.first,
                         tile.col * TILE_COLS + mainloop.along_n * OWN.BN, steps, counter);
      }
      if constexpr (Mainloop::SHARING > 1) mainloop.drain(counter);
    }
    if constexpr (FUSED) {
      // Of the other warps, one for each consumer.
      const int consumer = static_cast<int>(threadIdx.x - PRODUCER) / 32 - 1;
      if (threadIdx.x % 32 == 0 && consumer >= 0 && consumer < CONSUMERS) {
        constexpr int OF_TILE = Mainloop::CONSUMERS;
        const auto corner = [&](const PersistentTile& its) {
          const int row = its.row * ROWS + mainloop.along_m * OWN.BM,
                    col = its.col * TILE_COLS + mainloop.along_n * OWN.BN;
          return Place{row + consumer % OF_TILE * Mainloop::ROWS,
                       col + (PARTS > 1 ? cluster_rank() * COLS : 0)};
        };
        schedule.advance(consumer / OF_TILE);
        const BoxWalk<Store, Mainloop::ROW_TILES, OWN.pingpong, decltype(schedule),
                      decltype(corner)>
            boxes{schedule, corner};
        constexpr bool RESIDUAL = Epilogue::READS_RESIDUAL;
        const BoxMover<Store, OWN.buffers, BATCHED, Epilogue::WRITES_AUXILIARY> mover{
            shared.results[consumer],
            shared.boxes[consumer],
            map_c,
            RESIDUAL ? further.residual : map_c,
            further.auxiliary,
            RESIDUAL || args.beta != 0.0f,
            RESIDUAL && args.stride_r == 0,
            args.M,
            args.N};
        mover.move(boxes);
      }
    }
    if constexpr (PARTS > 1) cluster_wait();
  } else {
    take_registers<CONSUMERS>();
    const int consumer = threadIdx.x / 128, place = consumer % Mainloop::CONSUMERS;
    int buffer = 0;
    [[maybe_unused]] auto boxes = [&] {
      if constexpr (FUSED) {
        return BoxesToFill<OWN.buffers>{shared.boxes[consumer]};
      } else {
        return NoStore{};
      }
    }();
    // The block's tiles go round among the consumers, and with them the stages. One begins when that of
    // the tile before has all it needs: the parity of a stage does not tell two rounds apart.
    constexpr int TURNS = OWN.pingpong, ORDER = 1 + CONSUMERS;
    const int turn = consumer / Mainloop::CONSUMERS;
    bool first = turn == 0;
    if (TURNS > 1) {
      schedule.advance(turn);
      counter.skip(turn * steps.count);
    }
    for (; schedule.left(); schedule.advance(TURNS), counter.skip((TURNS - 1) * steps.count)) {
      tile = schedule.tile();
      const int first_row = tile.row * ROWS + mainloop.along_m * OWN.BM + place * Mainloop::ROWS;
      const int first_col = tile.col * TILE_COLS + mainloop.along_n * OWN.BN;
      const int own_col = first_col + (PARTS > 1 ? cluster_rank() * COLS : 0);
      prefetch_operands<SWAPPED ? COLS : Mainloop::ROWS, SWAPPED ? Mainloop::ROWS : COLS, MOVED>(
          args.epilogue(tile.product), args.c(tile.product), args.ldc, args.M, args.N,
          SWAPPED ? Place{own_col, first_row} : Place{first_row, own_col});
      typename Mainloop::Sums sums;
      if (TURNS > 1 && !first) named_barrier_sync<256>(ORDER + turn);
      first = false;
      const auto loaded = [&] {
        if (TURNS > 1 && schedule.left(2)) named_barrier_arrive<256>(ORDER + (turn + 1) % TURNS);
      };
      if constexpr (Scaling::IN_MAINLOOP) {
        mainloop.consume(sums, place * Mainloop::ROWS, steps.count, counter, loaded, [&] {
          return scaling.template of_tile<SWAPPED, Mainloop::ROW_TILES, OWN.BN>(
              args, tile.product, first_row, first_col, steps.first);
        });
      } else {
        mainloop.consume(sums, place * Mainloop::ROWS, steps.count, counter, loaded);
      }
      // Finishes the columns from PART on that this block has, all if there is one part.
      const auto finish = [&]<int PART>() {
        const int col = first_col + PART * COLS;
#pragma unroll
        for (int i = 0; i < Mainloop::ROW_TILES; ++i) {
          const int row = first_row + i * WGMMA_ROWS;
          auto& own = reinterpret_cast<float (&)[COLS / 2]>(sums[i][PART * COLS / 2]);
          if constexpr (Scaling::SCALES) {
            if (!scaling.template scale<SWAPPED>(own, args, tile.product, row, col)) {
              multiply_directly<SWAPPED, LAYOUT, COLS>(args, tile.product, row, col);
              continue;
            }
          }
          if constexpr (FUSED) {
            Store::fill(own, boxes, shared.results[consumer], args.epilogue(tile.product),
                        args.c(tile.product), args.ldc, args.M, args.N, row, col);
          } else if constexpr (!FROM_REGISTERS) {
            Store::template store<BATCHED>(own, map_c, shared.results[consumer], buffer,
                                           1 + consumer, args.epilogue(tile.product),
                                           args.c(tile.product), args.ldc, args.M, args.N,
                                           tile.product, row, col);
          } else {
            store_fragments<COLS, SWAPPED, SPARE>(own, args.epilogue(tile.product),
                                                  args.c(tile.product), args.ldc, args.M, args.N,
                                                  row, col);
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
    if (BY_TMA && threadIdx.x % 128 == 0) tma_wait_read<0>();
  }
}
