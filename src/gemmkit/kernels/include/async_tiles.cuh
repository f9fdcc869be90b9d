// The ring of stages: tiles of A and B arrive by cp.async while earlier ones are multiplied.
#pragma once

#include "cp_async.cuh"
#include "fragment.cuh"

// With SLICES > 1 that many groups of warps work on the same tile, each on its share of every BK.
template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int VEC,
          int SLICES = 1>
struct AsyncTiles {
  static constexpr int WARPS = BM / WM * (BN / WN), THREADS = 32 * WARPS * SLICES;
  static constexpr int LANES_M = WM / TM, LANES_N = WN / TN, DEPTH = BK / SLICES;
  static constexpr int PAD = 4, PANEL = 8, B_PANEL = BN & -BN;
  // Copies start in so many bursts a step: in fewer they hold up reads of fragments, and each burst
  // costs instructions of its own.
  static constexpr int BURSTS = DEPTH < 4 ? DEPTH : 4;
  // Along the shorter side of a thread's tile; of the orders tried, ptxas made most of these.
  static constexpr bool BY_ROWS = TM > TN;
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

  // sums += A B over `depth` steps of k, A and B given from this block's first row, column and k;
  // of their rows and columns only `rows` and `cols` exist. All threads of the block take part;
  // each slice then has the sums of its own shares of k.
  __device__ __forceinline__ void multiply(float (&sums)[TM][TN], const float* A, int lda, int rows,
                                           const float* B, int ldb, int cols, int depth) const {
    TileWalk<THREADS, 1, BM, BK, PANEL> a_tiles(A, lda);
    TileWalk<THREADS, VEC, BK, BN, B_PANEL> b_tiles(B, ldb);
    int uncopied = depth;
    const auto copy_part = [&](Stage& stage, int part) {  // one of BURSTS; past the end, zeros
      cp_async_transposed<BURSTS>(stage.As, a_tiles, rows, uncopied, part);
      cp_async_tile<BURSTS, VEC>(stage.Bs, b_tiles, uncopied, cols, part);
    };
    const auto next_tiles = [&] {
      cp_async_commit();
      a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
      uncopied -= BK;
    };

    const int tiles = (depth + BK - 1) / BK;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
#pragma unroll
      for (int part = 0; part < BURSTS; ++part) copy_part(stages[stage], part);
      next_tiles();
    }

    for (int tile = 0, read = 0, write = STAGES - 1; tile < tiles; ++tile) {
      cp_async_wait<STAGES - 2>();
      __syncthreads();  // the tiles of this step are there, and nobody reads those of the last

#pragma unroll
      for (int k = 0; k < DEPTH; ++k) {
        alignas(16) float a[TM], b[TN];
        load_fragment<LANES_M>(a, &stages[read].As[slice * DEPTH + k][warp_row], lane.row);
        load_fragment<LANES_N>(b, &stages[read].Bs[slice * DEPTH + k][warp_col], lane.col);
        if (k % (DEPTH / BURSTS) == 0) copy_part(stages[write], k / (DEPTH / BURSTS));
        outer_product<BY_ROWS, TM == TN>(sums, a, b);
      }
      next_tiles();
      read = read + 1 == STAGES ? 0 : read + 1;
      write = write + 1 == STAGES ? 0 : write + 1;
    }
    cp_async_wait<0>();  // no copy may outlive its block, nor reach the next tiles' stages
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
