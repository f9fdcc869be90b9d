// The sums of blocks of a cluster that share the k of a tile: each block finishes some of the columns, of
// which the others send it their sums, straight from their registers to its shared memory.
#pragma once

#include "mbarrier.cuh"

// PARTS blocks; each warpgroup has ROW_TILES x 64 rows by BN columns, and CONSUMERS of them are in a
// block. Sums come in quads, those of a thread in eight columns.
template <int PARTS, int CONSUMERS, int ROW_TILES, int BN>
struct ClusterSum {
  static constexpr int COLS = BN / PARTS, QUADS = COLS / 8;
  struct Memory {
    alignas(16) float sums[PARTS - 1][CONSUMERS][ROW_TILES][QUADS][128][4];
  };
  static_assert(BN % (8 * PARTS) == 0, "each block finishes eights of columns");

  Memory& memory;
  Barrier& arrived;
  const int rank = cluster_rank();

  // By one thread of the block.
  __device__ __forceinline__ void init() const {
    arrived.init(1);
    make_barriers_visible();
    arrived.arrive_expecting(sizeof(Memory));
  }

  // By each consumer: sends the others what they finish. Every block must have begun.
  __device__ __forceinline__ void send(const float (&sums)[ROW_TILES][BN / 2], int consumer) const {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int to = 0; to < PARTS; ++to) {
      if (to == rank) continue;
      const unsigned barrier = peer_address(&arrived, to);
      // This block's place among those that send to that one.
      const unsigned place = peer_address(memory.sums[rank - (rank > to)][consumer], to);
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int quad = 0; quad < QUADS; ++quad) {
          store_at_peer(place + ((i * QUADS + quad) * 128 + thread) * 16,
                        &sums[i][(to * QUADS + quad) * 4], barrier);
        }
      }
    }
  }

  // By each consumer of block PART: adds what the others have sent, in the order of k.
  template <int PART>
  __device__ __forceinline__ void receive(float (&sums)[ROW_TILES][BN / 2], int consumer) const {
    arrived.wait(0);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int quad = 0; quad < QUADS; ++quad) {
        float total[4] = {};
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
          float* const own = &sums[i][(PART * QUADS + quad) * 4];
          const float* from = own;
          float4 came;
          if (part != PART) {
            came = *reinterpret_cast<const float4*>(
                memory.sums[part - (part > PART)][consumer][i][quad][threadIdx.x % 128]);
            from = &came.x;
          }
#pragma unroll
          for (int v = 0; v < 4; ++v) total[v] = part == 0 ? from[v] : total[v] + from[v];
        }
#pragma unroll
        for (int v = 0; v < 4; ++v) sums[i][(PART * QUADS + quad) * 4 + v] = total[v];
      }
    }
  }
};
