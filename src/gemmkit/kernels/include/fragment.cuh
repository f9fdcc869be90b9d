// Fragments: the rows of A and columns of B that one thread multiplies, read from shared memory.
#pragma once

#include "tile_io.cuh"

// Blocks that an SM is to hold: 512 threads, of 128 registers each, as long as those are enough for
// the results of a thread.
template <int THREADS, int RESULTS>
constexpr int BLOCKS_PER_SM = RESULTS > 64 || THREADS > 512 ? 1
                              : THREADS < 32                ? 16
                                                            : 512 / THREADS;

// The lane map of a warp, or of a part of one: LANES lanes in rows of LANES_N. They are numbered in
// pairs, one below the other, so that of lanes i, i ^ 1 and i ^ 2 two share a column and two share
// a row: shared memory then serves a 128-bit load of a fragment in two wavefronts, not four.
//
//   0  2  4  6  8 10 12 14
//   1  3  5  7  9 11 13 15
//   16 18 20 ...
template <int LANES_N, int LANES = 32>
struct LanePlace {
  static constexpr int PAIR = LANES_N < LANES ? 2 : 1;
  int row = threadIdx.x % LANES / (PAIR * LANES_N) * PAIR + threadIdx.x % PAIR;
  int col = threadIdx.x % LANES / PAIR % LANES_N;
};

// The thread-value layout of a fragment: place of a thread's element i. Floats are interleaved by
// fours: thread 0 has the first four, thread 1 the next four, and so on; 4 * THREADS floats further
// on thread 0 has four again. A warp's 128-bit loads are contiguous then, without bank conflicts.
template <int THREADS>
__device__ __forceinline__ int quad_place(int thread, int i) {
  return (i / 4 * THREADS + thread) * 4 + i % 4;
}

// Reads a thread's SIZE floats of one k by 128-bit loads.
template <int THREADS, int SIZE>
__device__ __forceinline__ void load_fragment(float (&fragment)[SIZE], const float* line,
                                              int thread) {
#pragma unroll
  for (int i = 0; i < SIZE; i += 4) {
    copy_vector<4>(fragment + i, line + quad_place<THREADS>(thread, i));
  }
}

// sums += a b^T: every element of one fragment with every element of the other, row by row (ORDER 1
// and 2) or column by column (3 and 4), to and fro, beginning at the front (1 and 3) or at the end.
// Each multiply-add then shares an operand with the one before it, so that the register file has to
// deliver two numbers an instruction instead of three.
template <int ORDER = 2, int TM, int TN>
__device__ __forceinline__ void outer_product(float (&sums)[TM][TN], const float (&a)[TM],
                                              const float (&b)[TN]) {
  constexpr bool BY_ROWS = ORDER <= 2, BACKWARD = ORDER % 2 == 0;
  constexpr int LINES = BY_ROWS ? TM : TN, LENGTH = BY_ROWS ? TN : TM;
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
#pragma unroll
    for (int step = 0; step < LENGTH; ++step) {
      const int place = (line % 2 == 0) == BACKWARD ? LENGTH - 1 - step : step;
      const int i = BY_ROWS ? line : place, j = BY_ROWS ? place : line;
      sums[i][j] += a[i] * b[j];
    }
  }
}

// The thread's write-back: its results have the layout of its fragments.
template <int VEC, int THREADS_M, int THREADS_N, int TM, int TN, class Epilogue>
__device__ __forceinline__ void store_results(const float (&sums)[TM][TN], const Epilogue& epilogue,
                                              float* C, int ldc, int M, int N, int first_row,
                                              int first_col, int thread_row, int thread_col) {
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int row = first_row + quad_place<THREADS_M>(thread_row, i);
    const int pitch = opaque(ldc);  // one row's addresses at a time, or they fill the registers
#pragma unroll
    for (int j = 0; j < TN; j += VEC) {
      const int col = first_col + quad_place<THREADS_N>(thread_col, j);
      if (row < M && col < N) {
        epilogue.template store_vector<VEC>(element(C, pitch, row, col), &sums[i][j], row, col);
      }
    }
  }
}
