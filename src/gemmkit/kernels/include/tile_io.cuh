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

// The block copies a ROWS x COLS tile to shared memory, one float a thread and step.
template <int THREADS, int ROWS, int COLS>
__device__ __forceinline__ void load_tile(float (&tile)[ROWS][COLS], const float* from, int ld,
                                          int rows, int cols) {
#pragma unroll
  for (int step = 0; step < ROWS * COLS; step += THREADS) {
    const int row = (step + threadIdx.x) / COLS;
    const int col = (step + threadIdx.x) % COLS;
    tile[row][col] = row < rows && col < cols ? *element(from, ld, row, col) : 0.0f;
  }
}

// One thread's share of a ROWS x COLS tile, held in registers on the way to shared memory.
template <int THREADS, int VEC, int ROWS, int COLS>
struct TileShare {
  static constexpr int SIZE = ROWS * COLS / THREADS;
  alignas(16) float held[SIZE];

  // Global memory -> registers, VEC neighbours of a row at a time.
  __device__ __forceinline__ void fetch(const float* from, int ld, int rows, int cols) {
#pragma unroll
    for (int i = 0; i < SIZE; i += VEC) {
      const int valid = row(i) < rows ? cols - col(i) : 0;
      load_vector<VEC>(held + i, element(from, ld, row(i), col(i)), valid);
    }
  }

  // Registers -> shared memory, as the tile lies in global memory.
  template <int PITCH>
  __device__ __forceinline__ void put(float (&tile)[ROWS][PITCH]) const {
#pragma unroll
    for (int i = 0; i < SIZE; i += VEC) copy_vector<VEC>(&tile[row(i)][col(i)], held + i);
  }

  // Registers -> shared memory, rows and columns exchanged.
  template <int PITCH>
  __device__ __forceinline__ void put_transposed(float (&tile)[COLS][PITCH]) const {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) tile[col(i)][row(i)] = held[i];
  }

 private:
  // Position in the tile of element i of the share: vectors are dealt out to threads in turn.
  static __device__ int row(int i) { return (i / VEC * THREADS + threadIdx.x) / (COLS / VEC); }
  static __device__ int col(int i) {
    return (i / VEC * THREADS + threadIdx.x) % (COLS / VEC) * VEC + i % VEC;
  }
};
