// Copies of tiles from global to shared memory. `rows` and `cols` say how much of a tile is inside
// the matrix; what is outside is never read and becomes zero, so that edges need no other code.
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

// The thread map of a copy, and one thread's pointer as it moves along the ROWS x COLS tiles of a
// matrix. A thread copies STEPS vectors of VEC floats of each tile, neighboring threads
// neighboring vectors: along whole rows, or along WIDTH columns and then down.
template <int THREADS, int VEC, int ROWS, int COLS, int WIDTH = COLS>
struct TileWalk {
  static constexpr int FITTING = WIDTH / VEC < THREADS ? WIDTH / VEC : THREADS;
  // Vectors of a row in one step: those that fit WIDTH, or more where there are too few rows.
  static constexpr int ACROSS = FITTING * ROWS < THREADS ? THREADS / ROWS : FITTING;
  static constexpr int STEPS_PER_ROW = COLS / VEC / ACROSS;
  static constexpr int ROWS_PER_STEP = THREADS / ACROSS;
  static constexpr int STEPS = ROWS / ROWS_PER_STEP * STEPS_PER_ROW;
  static_assert(THREADS * VEC * STEPS == ROWS * COLS, "every thread copies equally many vectors");

  const float* first;  // this thread's first vector of the current tile
  int ld;

  __device__ __forceinline__ TileWalk(const float* tile, int ld)
      : first(element(tile, ld, row(0), col(0))), ld(ld) {}

  // Place of a step's vector in the tile, and in memory.
  static __device__ __forceinline__ int row(int step) {
    return threadIdx.x / ACROSS + step / STEPS_PER_ROW * ROWS_PER_STEP;
  }
  static __device__ __forceinline__ int col(int step) {
    return (threadIdx.x % ACROSS + step % STEPS_PER_ROW * ACROSS) * VEC;
  }
  __device__ __forceinline__ const float* source(int step) const {
    return element(first, ld, row(step) - row(0), col(step) - col(0));
  }

  __device__ __forceinline__ void advance(int rows, int cols) {
    first = element(first, ld, rows, cols);
  }
};

// The block copies a tile to shared memory, one float per thread and step. At most eight loads of a
// thread are in flight: more would cost registers, and so occupancy.
template <int THREADS, int ROWS, int COLS>
__device__ __forceinline__ void load_tile(float (&tile)[ROWS][COLS],
                                          const TileWalk<THREADS, 1, ROWS, COLS>& walk, int rows,
                                          int cols) {
#pragma unroll 8
  for (int step = 0; step < walk.STEPS; ++step) {
    const int row = walk.row(step), col = walk.col(step);
    tile[row][col] = row < rows && col < cols ? *walk.source(step) : 0.0f;
  }
}

// The same by way of registers, which hold a thread's part of a tile until it is stored.
template <int THREADS, int VEC, int ROWS, int COLS, int WIDTH = COLS>
struct TileFetch : TileWalk<THREADS, VEC, ROWS, COLS, WIDTH> {
  using Walk = TileWalk<THREADS, VEC, ROWS, COLS, WIDTH>;
  using Walk::Walk;
  alignas(16) float held[Walk::STEPS][VEC];

  // Global memory -> registers.
  __device__ __forceinline__ void fetch(int rows, int cols) {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) held[step][v] = 0.0f;
      if (Walk::row(step) < rows && Walk::col(step) < cols) {
        copy_vector<VEC>(held[step], this->source(step));
      }
    }
  }

  // Registers -> shared memory, in the tile's own layout.
  template <int PITCH>
  __device__ __forceinline__ void put(float (&tile)[ROWS][PITCH]) const {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
      copy_vector<VEC>(&tile[Walk::row(step)][Walk::col(step)], held[step]);
    }
  }

  // Registers -> shared memory, transposed.
  template <int PITCH>
  __device__ __forceinline__ void put_transposed(float (&tile)[COLS][PITCH]) const {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) tile[Walk::col(step) + v][Walk::row(step)] = held[step][v];
    }
  }
};
