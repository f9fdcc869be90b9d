// Tiles on their way from global to shared memory. `rows` and `cols` say how much of the tile lies
// inside the matrix; what lies outside is never read and becomes zero, so edges need no other code.
#pragma once

#include "layout.cuh"

// Copies VEC floats (1, or 4 as one 128-bit access) between addresses aligned to their size.
template <int VEC>
__device__ __forceinline__ void copy_vector(float* to, const float* from) {
  if (VEC == 4) {
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
  } else {
    *to = *from;
  }
}

// Reads VEC floats, of which the first `valid` exist; the others become zero.
template <int VEC>
__device__ __forceinline__ void load_vector(float* to, const float* from, int valid) {
  if (valid >= VEC) {
    copy_vector<VEC>(to, from);
  } else {
#pragma unroll
    for (int v = 0; v < VEC; ++v) to[v] = v < valid ? from[v] : 0.0f;
  }
}

// How a ROWS x COLS tile is dealt out to the threads of a block: vectors of VEC floats, row by row,
// so that neighbouring threads touch neighbouring addresses.
template <int THREADS, int VEC, int ROWS, int COLS>
struct Deal {
  static constexpr int VECTORS_PER_ROW = COLS / VEC;
  static constexpr int ACROSS = VECTORS_PER_ROW < THREADS ? VECTORS_PER_ROW : THREADS;
  static constexpr int STEPS_PER_ROW = VECTORS_PER_ROW / ACROSS;
  static constexpr int ROWS_PER_STEP = THREADS / ACROSS;
  static constexpr int STEPS = ROWS / ROWS_PER_STEP * STEPS_PER_ROW;
  static_assert(THREADS % ACROSS == 0 && VECTORS_PER_ROW % ACROSS == 0 && ROWS % ROWS_PER_STEP == 0,
                "every thread gets equally many vectors");

  static __device__ __forceinline__ int row(int step) {
    return threadIdx.x / ACROSS + step / STEPS_PER_ROW * ROWS_PER_STEP;
  }
  static __device__ __forceinline__ int col(int step) {
    return (threadIdx.x % ACROSS + step % STEPS_PER_ROW * ACROSS) * VEC;
  }
};

// The block copies a ROWS x COLS tile to shared memory, one float a thread and step. No more than
// eight loads of a thread are under way at once: more would cost registers, and so occupancy.
template <int THREADS, int ROWS, int COLS>
__device__ __forceinline__ void load_tile(float (&tile)[ROWS][COLS], const float* from, int ld,
                                          int rows, int cols) {
  using Share = Deal<THREADS, 1, ROWS, COLS>;
#pragma unroll 8
  for (int step = 0; step < Share::STEPS; ++step) {
    const int row = Share::row(step), col = Share::col(step);
    tile[row][col] = row < rows && col < cols ? *element(from, ld, row, col) : 0.0f;
  }
}

// One thread's share of a ROWS x COLS tile, held in registers on the way to shared memory.
template <int THREADS, int VEC, int ROWS, int COLS>
struct TileShare {
  using Share = Deal<THREADS, VEC, ROWS, COLS>;
  alignas(16) float held[Share::STEPS][VEC];

  // Global memory -> registers.
  __device__ __forceinline__ void fetch(const float* from, int ld, int rows, int cols) {
#pragma unroll
    for (int step = 0; step < Share::STEPS; ++step) {
      const int row = Share::row(step), col = Share::col(step);
      load_vector<VEC>(held[step], element(from, ld, row, col), row < rows ? cols - col : 0);
    }
  }

  // Registers -> shared memory, as the tile lies in global memory.
  template <int PITCH>
  __device__ __forceinline__ void put(float (&tile)[ROWS][PITCH]) const {
#pragma unroll
    for (int step = 0; step < Share::STEPS; ++step) {
      copy_vector<VEC>(&tile[Share::row(step)][Share::col(step)], held[step]);
    }
  }

  // Registers -> shared memory, rows and columns exchanged.
  template <int PITCH>
  __device__ __forceinline__ void put_transposed(float (&tile)[COLS][PITCH]) const {
#pragma unroll
    for (int step = 0; step < Share::STEPS; ++step) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) tile[Share::col(step) + v][Share::row(step)] = held[step][v];
    }
  }
};
