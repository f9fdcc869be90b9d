// The mainloop of tensor cores on Hopper: a producer loads tiles by TMA into a circular buffer, and
// consumer warpgroups multiply them by wgmma. Tiles that the blocks of a cluster share are loaded
// once, each block loading a part and sending it to all.
#pragma once

#include "layout.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

// Template arguments that the host passes by name, as those of tile.cuh.
struct WgmmaTile {
  int BM = 0, BN = 0, BK = 0;
  int stages = 2;     // of the pipeline
  int consumers = 1;  // warpgroups that multiply
  int pingpong = 1;   // tiles that the consumers have in hand, in equal shares
  int cluster_m = 1;  // blocks of a cluster along M, along N, and along k of one tile
  int cluster_n = 1;
  int cluster_k = 1;
  int buffers = 2;  // for results on their way to memory, of each consumer
  int line = 128;   // bytes of a line of these at most
  int threads = 0;  // of a block
};

// The tile, and the layout, of the transposed product.
__host__ __device__ constexpr WgmmaTile swapped(WgmmaTile tile) {
  WgmmaTile other = tile;
  other.BM = tile.BN;
  other.BN = tile.BM;
  other.cluster_m = tile.cluster_n;
  other.cluster_n = tile.cluster_m;
  return other;
}
template <Layout LAYOUT>
constexpr Layout SWAPPED_LAYOUT =
    static_cast<Layout>((TRANSPOSED_B<LAYOUT> ? 0 : AT_B) + (TRANSPOSED_A<LAYOUT> ? 0 : A_BT));

// Registers go from the warpgroup of the producer to those that multiply, by all of its threads. A
// block has 168 for each thread of two consumers and the producer, 128 with a third one.
template <int CONSUMERS>
__device__ __forceinline__ void give_up_registers() {
  if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  if constexpr (CONSUMERS == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
}
template <int CONSUMERS>
__device__ __forceinline__ void take_registers() {
  if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  if constexpr (CONSUMERS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
}

// Those of a consumer's thread besides its sums and what it needs to find results and to finish them.
template <int CONSUMERS, int SUMS>
constexpr int SPARE_REGISTERS = (CONSUMERS == 3 ? 160 : 232) - SUMS - 48;

// Steps along k of a block.
struct Steps {
  int first, count;
};

template <class In, WgmmaTile TILE, Layout LAYOUT, bool BATCHED>
struct WgmmaMainloop {
  static constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, STAGES = TILE.stages;
  static constexpr bool A_K_MAJOR = !TRANSPOSED_A<LAYOUT>, B_K_MAJOR = TRANSPOSED_B<LAYOUT>;
  // Blocks of a cluster lie side by side along M, then along N; or they share the k of one tile.
  static constexpr int ALONG_M = TILE.cluster_m, ALONG_N = TILE.cluster_n;
  static constexpr int SHARING = ALONG_M * ALONG_N;
  // Consumers of a tile; each has ROW_TILES times 64 rows.
  static constexpr int CONSUMERS = TILE.consumers / TILE.pingpong, WARPS = 4 * CONSUMERS;
  static constexpr int ROWS = BM / CONSUMERS, ROW_TILES = ROWS / WGMMA_ROWS;
  // Elements along k of a wgmma, and of the product's k in a step.
  static constexpr int DEPTH = WGMMA_BYTES / sizeof(In), DEPTH_OF_STEP = BK;
  using A = SwizzledTile<In, BM, BK, A_K_MAJOR>;
  using B = SwizzledTile<In, BN, BK, B_K_MAJOR>;
  using Sums = float[ROW_TILES][BN / 2];
  using Counter = StageCounter<STAGES>;
  using Product = Wgmma<In, BN, A_K_MAJOR, B_K_MAJOR>;

  struct Barriers {
    Barrier full[STAGES], empty[STAGES];
  };
  struct Memory {
    alignas(1024) unsigned char a[STAGES][A::BYTES], b[STAGES][B::BYTES];
  };

  Memory& memory;
  Barriers& barriers;
  // This block's place in its cluster.
  const int rank = SHARING > 1 ? cluster_rank() : 0;
  const int along_m = rank % ALONG_M, along_n = rank / ALONG_M;

  // By one thread of the block.
  __device__ __forceinline__ void init_barriers() const {
    for (int stage = 0; stage < STAGES; ++stage) {
      barriers.full[stage].init(1);
      barriers.empty[stage].init(WARPS * (ALONG_M + ALONG_N - 1));
    }
    make_barriers_visible();
  }

  // By one thread: loads the tiles of some steps along k.
  __device__ __forceinline__ void produce(const TensorMap& map_a, const TensorMap& map_b,
                                          int product_a, int product_b, int row, int col,
                                          Steps steps, Counter& counter) const {
    for (int step = 0; step < steps.count; ++step, counter.advance()) {
      const int stage = counter.stage, k = (steps.first + step) * BK;
      barriers.empty[stage].wait(counter.parity ^ 1);
      Barrier& full = barriers.full[stage];
      full.arrive_expecting(A::BYTES + B::BYTES);
      load<A, BM, A_K_MAJOR, ALONG_N>(memory.a[stage], map_a, product_a, row, k, full, along_n,
                                      row_mask());
      load<B, BN, B_K_MAJOR, ALONG_M>(memory.b[stage], map_b, product_b, col, k, full, along_m,
                                      column_mask());
    }
  }

  // By the same thread when it has loaded everything: waits until all stages have been read. No peer then
  // has anything left to send to this block, which may end.
  __device__ __forceinline__ void drain(Counter& counter) const {
    for (int i = 0; i < STAGES; ++i, counter.advance()) {
      barriers.empty[counter.stage].wait(counter.parity ^ 1);
    }
  }

  // By a consumer: adds the products of `steps` steps, its rows beginning `first` rows into the tile.
  // `loaded` is called when all operands have come.
  template <class Call>
  __device__ __forceinline__ void consume(Sums& sums, int first, int steps, Counter& counter,
                                          const Call& loaded) const {
    if (steps == 0) {
      loaded();
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < BN / 2; ++j) sums[i][j] = 0.0f;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) leave_undefined(sums[i]);
    int held = counter.stage;
#pragma unroll 1
    for (int step = 0; step < steps; ++step, counter.advance()) {
      const int stage = counter.stage;
      barriers.full[stage].wait(counter.parity);
      const unsigned a = shared_address(memory.a[stage]), b = shared_address(memory.b[stage]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < BK; k += DEPTH) {
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
          Product::multiply(sums[i], A::descriptor(a, first + i * WGMMA_ROWS, k),
                            B::descriptor(b, 0, k), step > 0 || k > 0);
        }
      }
      wgmma_commit();
      // One group stays under way; those before it have read their stage.
      wgmma_wait<1>();
      if (step > 0) release(held);
      held = stage;
    }
    loaded();
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) wgmma_wait<0>(sums[i]);
    release(held);
  }

 protected:
  // The blocks that share this one's tile of A, or of B, as bits.
  __device__ __forceinline__ unsigned short row_mask() const {
    unsigned short mask = 0;
    for (int i = 0; i < ALONG_N; ++i) mask |= 1 << (along_m + i * ALONG_M);
    return mask;
  }
  __device__ __forceinline__ unsigned short column_mask() const {
    return ((1 << ALONG_M) - 1) << along_n * ALONG_M;
  }

  // A warp has read a stage: it tells each block that loads into this one.
  __device__ __forceinline__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    if constexpr (SHARING == 1) {
      if (lane == 0) barriers.empty[stage].arrive();
    } else {
      const bool in_row = lane % ALONG_M == along_m, in_column = lane / ALONG_M == along_n;
      if (lane < SHARING && (in_row || in_column)) barriers.empty[stage].arrive_at(lane);
    }
  }

  // Loads this block's part of a tile that SHARED_BY blocks of the cluster have in common.
  template <class Operand, int EXTENT, bool K_MAJOR, int SHARED_BY>
  static __device__ __forceinline__ void load(const void* tile, const TensorMap& map, int product,
                                              int first, int k, const Barrier& full, int part,
                                              unsigned short mask) {
    constexpr bool MULTICAST = SHARED_BY > 1;
    const unsigned to = shared_address(tile);
    if constexpr (K_MAJOR) {
      constexpr int LINES = EXTENT / SHARED_BY;
      const int line = part * LINES;
#pragma unroll
      for (int box = 0; box < Operand::BOXES; ++box) {
        tma_load<BATCHED, MULTICAST>(to + box * Operand::BOX_BYTES + line * Operand::LINE_BYTES,
                                     map, {k + box * Operand::SPAN, first + line, product}, full,
                                     mask);
      }
    } else {
      // Whole boxes if each block has as many, or some lines of each: a block that sent the others nothing
      // would not keep them from running ahead of it.
      constexpr bool WHOLE = Operand::BOXES % SHARED_BY == 0;
      constexpr int LINES = Operand::LINES / (WHOLE ? 1 : SHARED_BY);
      const int line = WHOLE ? 0 : part * LINES;
#pragma unroll
      for (int box = 0; box < Operand::BOXES; ++box) {
        if (!WHOLE || box % SHARED_BY == part) {
          tma_load<BATCHED, MULTICAST>(to + box * Operand::BOX_BYTES + line * Operand::LINE_BYTES,
                                       map, {first + box * Operand::SPAN, k + line, product}, full,
                                       mask);
        }
      }
    }
  }
};

// Operands of 16 bits, which are multiplied as they lie in memory.
template <class In>
struct InPlace {
  template <WgmmaTile TILE, Layout LAYOUT, bool BATCHED>
  using Mainloop = WgmmaMainloop<In, TILE, LAYOUT, BATCHED>;
};
