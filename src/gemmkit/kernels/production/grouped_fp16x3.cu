// Products of different shapes in one launch, in fp32 on Hopper's tensor cores: as in `gemm_fp16x3`, each
// operand is the sum of two parts of fp16, and three of the four products of these count.
//
// `split_groups` has scaled the lines of all operands before, and left their parts in panels, so that
// there is one tensor map of all A and one of all B. Clusters of blocks are persistent and take tiles of
// all products in turn; one warp loads, the other warpgroups multiply, see wgmma_product.cuh.
#include "arguments.cuh"
#include "dependent_launch.cuh"
#include "epilogue/box_store.cuh"
#include "epilogue/line_scales.cuh"
#include "mainloop/fp16x3_panels.cuh"
#include "split_group.cuh"
#include "tile.cuh"

// What is the same for all products.
template <class Epilogue>
struct GroupsArguments {
  using Out = typename Epilogue::Out;

  typename Epilogue::Sum alpha, beta, scale;
  const int* exponents_a;
  const int* exponents_b;
  typename Epilogue::Activation activation = {};

  // One product, as those functions take it that know of a batch.
  __device__ __forceinline__ Arguments<float, Epilogue> of(const SplitGroup<Out>& its) const {
    return {its.M, its.N,   its.K,        alpha,    its.A,   its.lda,       its.B,   its.ldb,
            beta,  its.C,   its.ldc,      its.bias, nullptr, nullptr,       1,       0,
            0,     0,       its.residual, its.ldr,  0,       its.auxiliary, its.ldx, 0,
            scale, nullptr, activation};
  }
  __device__ __forceinline__ LineScales scales(const SplitGroup<Out>& its) const {
    return {exponents_a + its.exponents_a, exponents_b + its.exponents_b};
  }
  // BLAS: alpha = 0 never reads A or B.
  __device__ __forceinline__ int steps(const SplitGroup<Out>& its, int depth) const {
    return alpha == 0.0f ? 0 : (its.K + depth - 1) / depth;
  }
};

template <WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    grouped_fp16x3(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                   const SplitGroup<typename Epilogue::Out>* list, int group_count, int tile_count,
                   typename Epilogue::Sum alpha, typename Epilogue::Sum beta,
                   typename Epilogue::Sum scale, const int* exponents_a,
                   const int* exponents_b CUSTOM_PARAMETERS) {
  using Out = typename Epilogue::Out;
  using Its = SplitGroup<Out>;
  // The rows of the product that is computed are those of B^T if it is swapped.
  constexpr bool SWAPPED = TILE.BM % WGMMA_ROWS != 0;
  constexpr WgmmaTile OWN = SWAPPED ? swapped(TILE) : TILE;
  constexpr int CONSUMERS = OWN.consumers, COLS = OWN.BN, PRODUCER = CONSUMERS * 128;
  using Mainloop = Fp16x3PanelsMainloop<OWN>;
  constexpr bool FROM_REGISTERS = WAY == WriteBack::FROM_REGISTERS;
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
  const GroupsArguments<Epilogue> common{alpha, beta, scale, exponents_a, exponents_b CUSTOM};
  const Groups<SCHEDULE.raster, float, Out, Its> groups{list, group_count, tile_count};

  if (threadIdx.x == PRODUCER + 32) mainloop.init_barriers();
  if (threadIdx.x == PRODUCER) {
    tma_prefetch(map_a);
    tma_prefetch(map_b);
  }
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
      for (; tile < groups.tiles; tile += clusters) {
        const GroupTile place = groups.place(tile);
        const Its& its = groups.list[place.group];
        const int count = (its.K + DEPTH_OF_PANEL - 1) / DEPTH_OF_PANEL;
        const Panels a{its.parts_a, its.M, count}, b{its.parts_b, its.N, count};
        mainloop.produce_panels(SWAPPED ? map_b : map_a, SWAPPED ? map_a : map_b, SWAPPED ? b : a,
                                SWAPPED ? a : b, first_row(place), first_col(place),
                                common.steps(its, Mainloop::DEPTH_OF_STEP), counter);
      }
      if constexpr (Mainloop::SHARING > 1) mainloop.drain(counter);
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
  // Leaves a tile, and its stages, to the other consumer.
  const auto skip = [&] {
    if (tile < groups.tiles) {
      const Its& its = groups.list[groups.find(tile)];
      counter.skip(common.steps(its, Mainloop::DEPTH_OF_STEP));
    }
    tile += clusters;
  };
  if (TURNS > 1 && turn == 1) skip();
  while (tile < groups.tiles) {
    const GroupTile place = groups.place(tile);
    const Its& its = groups.list[place.group];
    const Arguments<float, Epilogue> args = common.of(its);
    typename Mainloop::Sums sums;
    if (TURNS > 1 && !first) named_barrier_sync<256>(ORDER + turn);
    first = false;
    mainloop.consume(sums, own_rows, common.steps(its, Mainloop::DEPTH_OF_STEP), counter, [&] {
      const bool another = groups.tiles - tile > clusters;
      if (TURNS > 1 && another) named_barrier_arrive<256>(ORDER + (turn + 1) % TURNS);
    });
    const int col = first_col(place);
#pragma unroll
    for (int i = 0; i < Mainloop::ROW_TILES; ++i) {
      const int row = first_row(place) + own_rows + i * WGMMA_ROWS;
      if (!common.scales(its).template scale<SWAPPED>(sums[i], args, 0, row, col)) {
        multiply_directly<SWAPPED, LAYOUT, COLS>(args, 0, row, col);
        continue;
      }
      if constexpr (FROM_REGISTERS) {
        store_fragments<COLS, SWAPPED, SPARE>(sums[i], args.epilogue(0), args.C, args.ldc, args.M,
                                              args.N, row, col);
      } else {
        // There is no tensor map of C, of which each product has its own.
        Store::template store<false>(sums[i], map_a, shared.results[consumer], buffer, 1 + consumer,
                                     args.epilogue(0), args.C, args.ldc, args.M, args.N, 0, row,
                                     col);
      }
    }
    tile += clusters;
    if (TURNS > 1) skip();
  }
}
