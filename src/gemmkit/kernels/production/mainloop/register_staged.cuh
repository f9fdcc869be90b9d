// The mainloop for any type: tiles pass through registers, where they stay as they are in memory, to
// one of two stages in shared memory, as what is accumulated. A warp multiplies its compact tile of
// one stage while the next tiles are loaded.
#pragma once

#include "float8.cuh"
#include "mainloop/typed_fetch.cuh"
#include "tile.cuh"

template <class In, class Sum, Tile TILE, Access ACCESS, Layout LAYOUT>
struct RegisterStaged {
  static constexpr bool A_T = TRANSPOSED_A<LAYOUT>, B_T = TRANSPOSED_B<LAYOUT>;
  static constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, WM = TILE.WM, WN = TILE.WN;
  static constexpr int TM = TILE.TM, TN = TILE.TN, THREADS = TILE.threads;
  static constexpr int LANES_M = WM / TM, LANES_N = WN / TN;
  static_assert(LANES_M * LANES_N == 32, "a warp has 32 lanes");
  struct Stage {
    alignas(16) Sum As[BK][BM + TILE.pad];
    alignas(16) Sum Bs[BK][BN + TILE.pad];
  };

  Stage* const stages;  // in shared memory
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N> lane;

  __device__ __forceinline__ explicit RegisterStaged(void* shared)
      : stages(static_cast<Stage*>(shared)) {}

  // sums += A B over K steps, A and B given from the block's first row and column on, of which there
  // are `rows` and `cols`.
  __device__ __forceinline__ void multiply(Sum (&sums)[TM][TN], const In* A, int lda, int rows,
                                           const In* B, int ldb, int cols, int K) const {
    TypedFetch<In, Sum, THREADS, ACCESS.a, BM, BK, !A_T> a_tiles(A, lda, rows);
    TypedFetch<In, Sum, THREADS, ACCESS.b, BN, BK, B_T> b_tiles(B, ldb, cols);
    a_tiles.fetch(K);
    b_tiles.fetch(K);
    for (int stage = 0; K > 0; stage ^= 1) {
      a_tiles.put(stages[stage].As);
      b_tiles.put(stages[stage].Bs);
      __syncthreads();  // the tiles are complete, and nobody reads those of two steps ago

      a_tiles.advance(), b_tiles.advance();
      K -= BK;  // what is left

#pragma unroll
      for (int k = 0; k < BK; ++k) {
        Sum a[TM], b[TN];
        load_numbers<LANES_M>(a, &stages[stage].As[k][warp_row], lane.row);
        load_numbers<LANES_N>(b, &stages[stage].Bs[k][warp_col], lane.col);
        if (k == 2) {        // not sooner, for the first fragments would have to queue behind this
          a_tiles.fetch(K);  // past the last tiles nothing is read
          b_tiles.fetch(K);
        }
        add_products(sums, a, b);
      }
    }
  }

  // Finishes the results and stores them, the block's tile being at (block_row, block_col) of C.
  template <class Epilogue>
  __device__ __forceinline__ void store(const Sum (&sums)[TM][TN], const Epilogue& epilogue,
                                        typename Epilogue::Out* C, int ldc, int M, int N,
                                        int block_row, int block_col) const {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int row = block_row + warp_row + piece_place<LANES_M, QUAD<Sum>>(lane.row, i);
      const int pitch = opaque(ldc);  // one row's addresses at a time, or they fill the registers
#pragma unroll
      for (int j = 0; j < TN; j += ACCESS.c) {
        const int col = block_col + warp_col + piece_place<LANES_N, QUAD<Sum>>(lane.col, j);
        if (row < M && col < N) {
          epilogue.template store_vector<ACCESS.c>(element(C, pitch, row, col), &sums[i][j], row,
                                                   col);
        }
      }
    }
  }
};
