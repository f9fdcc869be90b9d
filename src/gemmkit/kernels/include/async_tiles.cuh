// The ring of stages: tiles of A and B arrive by cp.async while earlier ones are multiplied.
#pragma once

#include "cp_async.cuh"
#include "fragment.cuh"

// With SLICES > 1 that many groups of warps work on the same tile, each on its share of every BK.
// Copies start in up to BURSTS places of a step: in fewer they hold up the reads of fragments, and
// each place costs instructions of its own. ORDER is that of outer_product(), and with 4 more b is
// read before a: ptxas makes machine code of very different speed of them, which only a trial shows.
template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int SLICES,
          int BURSTS, int ORDER, int VEC>
struct AsyncTiles {
  static constexpr int WARPS = BM / WM * (BN / WN), THREADS = 32 * WARPS * SLICES;
  static constexpr int LANES_M = WM / TM, LANES_N = WN / TN, DEPTH = BK / SLICES;
  static constexpr int PAD = 4, PANEL = 8;
  // Where BN is no power of two, B goes in panels that have as many vectors whatever VEC is.
  static constexpr int B_PANEL = (BN & (BN - 1)) == 0 ? BN : (BN & -BN) / 4 * VEC;
  static constexpr bool B_FIRST = ORDER > 4;
  static constexpr int PARTS = DEPTH < BURSTS ? DEPTH : BURSTS;
  static_assert(LANES_M * LANES_N == 32, "a warp has 32 lanes");
  struct Stage {
    alignas(16) float As[BK][BM + PAD];
    alignas(16) float Bs[BK][BN];
  };

  Stage* stages;  // in shared memory
  const int slice = SLICES == 1 ? 0 : threadIdx.x / (32 * WARPS);
  const int warp = threadIdx.x / 32 - slice * WARPS;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N> lane;

  __device__ __forceinline__ explicit AsyncTiles(void* shared)
      : stages(static_cast<Stage*>(shared)) {}

  // The way of the copies through A and B: what they are at, and how many steps of k are left.
  struct Feed {
    TileWalk<THREADS, 1, BM, BK, PANEL> a_tiles;
    TileWalk<THREADS, VEC, BK, BN, B_PANEL> b_tiles;
    int rows, cols, tiles, uncopied;

    __device__ __forceinline__ void copy_part(Stage& stage, int part) const {  // one of PARTS
      cp_async_transposed<PARTS>(stage.As, a_tiles, rows, uncopied, part);
      cp_async_tile<PARTS, VEC>(stage.Bs, b_tiles, uncopied, cols, part);
    }
    __device__ __forceinline__ void next_tiles() {  // past the end, zeros
      cp_async_commit();
      a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
      uncopied -= BK;
    }
  };

  // Starts the first copies for a product over `depth` steps of k, A and B given from this block's
  // first row, column and k; of their rows and columns only `rows` and `cols` exist. Nobody may
  // still read the stages.
  __device__ __forceinline__ Feed start(const float* A, int lda, int rows, const float* B, int ldb,
                                        int cols, int depth) const {
    Feed feed{{A, lda}, {B, ldb}, rows, cols, (depth + BK - 1) / BK, depth};
    for (int stage = 0; stage < STAGES - 1; ++stage) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) feed.copy_part(stages[stage], part);
      feed.next_tiles();
    }
    return feed;
  }

  // sums += A B for what was started. All threads of the block take part; each slice then has the
  // sums of its own shares of k.
  __device__ __forceinline__ void multiply(float (&sums)[TM][TN], Feed& feed) const {
    for (int tile = 0, read = 0, write = STAGES - 1; tile < feed.tiles; ++tile) {
      cp_async_wait<STAGES - 2>();
      __syncthreads();  // the tiles of this step are there, and nobody reads those of the last

#pragma unroll
      for (int k = 0; k < DEPTH; ++k) {
        alignas(16) float a[TM], b[TN];
        const float* const b_line = &stages[read].Bs[slice * DEPTH + k][warp_col];
        if (B_FIRST) load_fragment<LANES_N>(b, b_line, lane.col);
        load_fragment<LANES_M>(a, &stages[read].As[slice * DEPTH + k][warp_row], lane.row);
        if (!B_FIRST) load_fragment<LANES_N>(b, b_line, lane.col);
        if (k % (DEPTH / PARTS) == 0) feed.copy_part(stages[write], k / (DEPTH / PARTS));
        outer_product<B_FIRST ? ORDER - 4 : ORDER>(sums, a, b);
      }
      feed.next_tiles();
      read = read + 1 == STAGES ? 0 : read + 1;
      write = write + 1 == STAGES ? 0 : write + 1;
    }
    cp_async_wait<0>();  // no copy may outlive its block, nor reach the next tiles' stages
  }

  __device__ __forceinline__ void multiply(float (&sums)[TM][TN], const float* A, int lda, int rows,
                                           const float* B, int ldb, int cols, int depth) const {
    Feed feed = start(A, lda, rows, B, ldb, cols, depth);
    multiply(sums, feed);
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
