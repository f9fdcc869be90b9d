// The fp32 mainloop: tiles of A and B arrive by cp.async, several stages ahead, while earlier ones are
// multiplied by FMA instructions.
#pragma once

#include "fragment.cuh"
#include "mainloop/copy_walk.cuh"
#include "tile.cuh"

// With `slice_k` > 1 that many groups of warps work on the same tile, each on its share of every BK.
// Copies are issued in up to `interleave` places of a step: in fewer they hold up the reads of
// fragments, and each place costs instructions of its own. ptxas makes machine code of very different
// speed of the values of `order`, which only a trial shows.
template <Tile TILE, int VEC, Layout LAYOUT>
struct CpAsyncFma {
  static constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, WM = TILE.WM, WN = TILE.WN;
  static constexpr int TM = TILE.TM, TN = TILE.TN, STAGES = TILE.stages, SLICES = TILE.slice_k;
  static constexpr int ORDER = TILE.order, PAD = TILE.pad, MAP_K = TILE.map_k;
  static constexpr bool A_T = TRANSPOSED_A<LAYOUT>, B_T = TRANSPOSED_B<LAYOUT>;
  static constexpr int LANES_M = WM / TM, LANES_N = WN / TN, LANES = LANES_M * LANES_N;
  static constexpr int WARPS = BM / WM * (BN / WN), THREADS = LANES * WARPS * SLICES;
  static constexpr int DEPTH = BK / SLICES;
  // What is exchanged on the way to shared memory needs the pad too, or its copies' banks collide.
  static constexpr int A_PITCH = BM + PAD, B_PITCH = B_T ? BN + PAD : BN;
  // Width of the thread map of copies across k. Single floats go in up to four parts of a row as wide
  // as warps, so that a thread's are in few rows; else a tile whose width is no power of two goes in
  // parts of as many vectors whatever VEC is.
  static __device__ constexpr int map_width(int width) {
    for (int parts = 4; VEC == 1 && parts > 1; --parts) {
      const int each = width / parts;
      if (width % parts == 0 && each % 32 == 0 && THREADS % each == 0 &&
          BK % (THREADS / each) == 0) {
        return each;
      }
    }
    return (width & (width - 1)) == 0 ? width : (width & -width) / 4 * VEC;
  }
  static constexpr bool B_FIRST = ORDER > 4;
  static constexpr bool KEEP = SLICES > 1;  // a thread's place takes more to work out
  static constexpr int PARTS = DEPTH < TILE.interleave ? DEPTH : TILE.interleave;
  static_assert(LANES == 32 || (32 % LANES == 0 && WARPS == 1), "a warp has 32 lanes, or slices");
  struct Stage {
    alignas(16) float As[BK][A_PITCH];
    alignas(16) float Bs[BK][B_PITCH];
  };

  static constexpr int STAGE_FLOATS = sizeof(Stage) / sizeof(float);

  Stage* stages;  // in shared memory
  const int slice = SLICES == 1 ? 0 : threadIdx.x / (LANES * WARPS);
  const int warp = threadIdx.x / LANES - slice * WARPS;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N, LANES> lane;

  __device__ __forceinline__ explicit CpAsyncFma(void* shared)
      : stages(static_cast<Stage*>(shared)) {}

  // The way of the copies through A and B, and how many tiles are left to multiply.
  struct Feed {
    Either<A_T, CopyWalk<THREADS, VEC, BK, BM, map_width(BM), A_PITCH, false, KEEP>,
           CopyWalk<THREADS, 1, BM, BK, MAP_K, A_PITCH, true, KEEP>>
        a_tiles;
    Either<B_T, CopyWalk<THREADS, 1, BN, BK, MAP_K, B_PITCH, true, KEEP>,
           CopyWalk<THREADS, VEC, BK, BN, map_width(BN), B_PITCH, false, KEEP>>
        b_tiles;
    int left;

    template <class Inside>
    __device__ __forceinline__ void copy_part(Stage& stage, int part, const Inside& inside) const {
      a_tiles.template copy<PARTS>(stage.As, part, inside);  // one of PARTS
      b_tiles.template copy<PARTS>(stage.Bs, part, inside);
    }
    __device__ __forceinline__ void next_tiles(int depth = BK) {
      cp_async_commit();
      a_tiles.advance(depth), b_tiles.advance(depth);
    }
  };

  // Starts the first copies for a product over `depth` steps of k, A and B given from this block's
  // first row, column and k. Where k does not come out even, it is the first tile that has fewer
  // steps. Nobody may still read the stages.
  __device__ __forceinline__ Feed start(const float* A, int lda, const Side& rows, const float* B,
                                        int ldb, const Side& cols, int depth) const {
    Feed feed{{A, lda, rows}, {B, ldb, cols}, (depth + BK - 1) / BK};
    const int first = feed.left > 0 ? depth - (feed.left - 1) * BK : 0;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
      const int steps = stage == 0 ? first : stage < feed.left ? BK : 0;
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        feed.copy_part(stages[stage], part, [&](int k) { return k < steps; });
      }
      feed.next_tiles(stage == 0 ? first : BK);
    }
    return feed;
  }

  // sums += A B for what was started. All threads of the block take part; each slice then has the
  // sums of its own shares of k. With CHUNKS > 1 the sums of that many chunks of k are accumulated apart,
  // for a sum that has grown long cuts off the last bits of each product that is added to it. They
  // take BM x BN floats of shared memory, after the stages.
  template <int CHUNKS = 1>
  __device__ __forceinline__ void multiply(float (&sums)[TM][TN], Feed& feed) const {
    constexpr int SIZE = sizeof(Stage);
    char* const ring = reinterpret_cast<char*>(stages);
    const int a_place = sizeof(float) * (slice * DEPTH * A_PITCH + warp_row + lane.row * 4);
    const int b_place =
        sizeof(Stage::As) + sizeof(float) * (slice * DEPTH * B_PITCH + warp_col + lane.col * 4);
    const int a_from = KEEP ? opaque(a_place) : a_place;
    const int b_from = KEEP ? opaque(b_place) : b_place;
    float* const apart = reinterpret_cast<float*>(stages + STAGES) + threadIdx.x;
    const int chunk = (feed.left + CHUNKS - 1) / CHUNKS;
    int read = 0, write = (STAGES - 1) * SIZE;

    for (bool first = true; feed.left > 0; first = false) {
      for (const int end = CHUNKS > 1 ? max(feed.left - chunk, 0) : 0; feed.left > end;
           --feed.left) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the tiles of this step are there, and nobody reads those of the last
        const float* const a_lines = reinterpret_cast<const float*>(ring + (read + a_from));
        const float* const b_lines = reinterpret_cast<const float*>(ring + (read + b_from));
        Stage& free = *reinterpret_cast<Stage*>(ring + write);
        const bool more = feed.left >= STAGES;

#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
          alignas(16) float a[TM], b[TN];
          if (B_FIRST) load_fragment<LANES_N>(b, b_lines + k * B_PITCH, 0);
          load_fragment<LANES_M>(a, a_lines + k * A_PITCH, 0);
          if (!B_FIRST) load_fragment<LANES_N>(b, b_lines + k * B_PITCH, 0);
          if (k % (DEPTH / PARTS) == 0) {
            feed.copy_part(free, k / (DEPTH / PARTS), [&](int) { return more; });
          }
          outer_product<B_FIRST ? ORDER - 4 : ORDER>(sums, a, b);
        }
        feed.next_tiles();
        write = read;
        read = read == (STAGES - 1) * SIZE ? 0 : read + SIZE;
      }
      if constexpr (CHUNKS > 1) {
        // Float by float: vectors would have to stand in neighboring registers, in the same banks.
#pragma unroll
        for (int i = 0; i < TM * TN; ++i) {
          float& sum = sums[i / TN][i % TN];
          if (!first) sum += apart[i * THREADS];
          if (feed.left > 0) {
            apart[i * THREADS] = sum;
            sum = 0.0f;
          }
        }
      } else {
        break;
      }
    }
    cp_async_wait<0>();  // no copy may outlive its block, nor reach the next tiles' stages
  }

  template <int CHUNKS = 1>
  __device__ __forceinline__ void multiply(float (&sums)[TM][TN], const float* A, int lda,
                                           const Side& rows, const float* B, int ldb,
                                           const Side& cols, int depth) const {
    Feed feed = start(A, lda, rows, B, ldb, cols, depth);
    multiply<CHUNKS>(sums, feed);
  }

  // Finishes the results and stores them, the block's tile being at (block_row, block_col) of C.
  template <class Epilogue>
  __device__ __forceinline__ void store(const float (&sums)[TM][TN], const Epilogue& epilogue,
                                        float* C, int ldc, int M, int N, int block_row,
                                        int block_col) const {
    store_results<VEC, LANES_M, LANES_N>(sums, epilogue, C, ldc, M, N, block_row + warp_row,
                                         block_col + warp_col, lane.row, lane.col);
  }
};
