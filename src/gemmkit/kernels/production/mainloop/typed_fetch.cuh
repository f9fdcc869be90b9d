// Tiles of matrices of any type, on their way through registers to shared memory, where they lie as
// the accumulators need them: converted, k by k.
#pragma once

#include "fragment.cuh"
#include "typed.cuh"

// Numbers of a 128-bit access to shared memory.
template <class Sum>
constexpr int QUAD = 16 / sizeof(Sum);

// Place of number i of a thread where THREADS threads take pieces of PIECE in turn.
template <int THREADS, int PIECE>
__device__ __forceinline__ int piece_place(int thread, int i) {
  return (i / PIECE * THREADS + thread) * PIECE + i % PIECE;
}

// A thread's share of the tiles of one operand, which have EXTENT rows of A or columns of B and BK
// steps of k. Memory holds them with neighbors along k (ALONG_K) or along the other side. The
// thread map is one of vectors of VEC, along k 32 bytes wide, a sector: so the lanes of a warp write
// to different lines of shared memory, or side by side. Small tiles leave some
// threads with nothing (EVEN is false). `inside` says how much of the operand there is from the
// block's first row or column on.
template <class In, class Sum, int THREADS, int VEC, int EXTENT, int BK, bool ALONG_K>
struct TypedFetch {
  static constexpr int ROWS = ALONG_K ? EXTENT : BK, VECTORS = (ALONG_K ? BK : EXTENT) / VEC;
  static constexpr int SECTOR = 32 / sizeof(In) / VEC, WIDTH = ALONG_K ? SECTOR : VECTORS;
  // Vectors side by side in one step: those that fit the map, or more where rows run out.
  static constexpr int LEAST = WIDTH * ROWS < THREADS ? THREADS / ROWS : WIDTH;
  static constexpr int MOST = VECTORS < THREADS ? VECTORS : THREADS;
  static constexpr int ACROSS = LEAST < MOST ? LEAST : MOST;
  static constexpr int STEPS_PER_ROW = VECTORS / ACROSS, ROWS_PER_STEP = THREADS / ACROSS;
  static constexpr int STEPS = (ROWS + ROWS_PER_STEP - 1) / ROWS_PER_STEP * STEPS_PER_ROW;
  static constexpr bool EVEN = ROWS % ROWS_PER_STEP == 0;
  static_assert(VECTORS % ACROSS == 0 && THREADS % ACROSS == 0, "whole steps to a row");

  const In* first;  // this thread's first vector of the current tile
  const int ld, inside;
  Pack<In, VEC> held[STEPS];

  __device__ __forceinline__ TypedFetch(const In* tile, int ld, int inside)
      : first(element(tile, ld, row(0), col(0))), ld(ld), inside(inside) {}

  static __device__ __forceinline__ int row(int step) {
    return threadIdx.x / ACROSS + step / STEPS_PER_ROW * ROWS_PER_STEP;
  }
  static __device__ __forceinline__ int col(int step) {
    return (threadIdx.x % ACROSS + step % STEPS_PER_ROW * ACROSS) * VEC;
  }

  // Whether this thread has a vector in that step.
  static __device__ __forceinline__ bool mine(int step) { return EVEN || row(step) < ROWS; }

  // Global memory -> registers, where `depth` steps of k are left. What lies outside is never read
  // and becomes zero.
  __device__ __forceinline__ void fetch(int depth) {
    const int rows = ALONG_K ? inside : depth, cols = ALONG_K ? depth : inside;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      held[step] = {};
      if (mine(step) && row(step) < rows && col(step) < cols) {
        held[step].load(element(first, ld, row(step) - row(0), col(step) - col(0)));
      }
    }
  }

  __device__ __forceinline__ void advance() {
    first = ALONG_K ? first + BK : element(first, ld, BK, 0);
  }

  // Registers -> shared memory.
  template <int PITCH>
  __device__ __forceinline__ void put(Sum (&tile)[BK][PITCH]) const {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (!mine(step)) continue;
      if constexpr (ALONG_K) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) tile[col(step) + v][row(step)] = number(step, v);
      } else {
        constexpr int CHUNK = VEC < QUAD<Sum> ? VEC : QUAD<Sum>;
#pragma unroll
        for (int v = 0; v < VEC; v += CHUNK) {
          Pack<Sum, CHUNK> numbers;
#pragma unroll
          for (int i = 0; i < CHUNK; ++i) numbers.set(i, number(step, v + i));
          numbers.store(&tile[row(step)][col(step) + v]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ Sum number(int step, int v) const {
    return widened<Sum>(held[step].get(v));
  }
};

// Reads a thread's SIZE numbers of one k, where THREADS threads take 128-bit pieces in turn.
template <int THREADS, class Sum, int SIZE>
__device__ __forceinline__ void load_numbers(Sum (&numbers)[SIZE], const Sum* line, int thread) {
#pragma unroll
  for (int i = 0; i < SIZE; i += QUAD<Sum>) {
    Pack<Sum, QUAD<Sum>> quad;
    quad.load(line + piece_place<THREADS, QUAD<Sum>>(thread, i));
#pragma unroll
    for (int j = 0; j < QUAD<Sum>; ++j) numbers[i + j] = quad.get(j);
  }
}

// sums += a b^T, row by row, to and fro: each multiply-add shares a number with the one before it.
template <class Sum, int TM, int TN>
__device__ __forceinline__ void add_products(Sum (&sums)[TM][TN], const Sum (&a)[TM],
                                             const Sum (&b)[TN]) {
#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int step = 0; step < TN; ++step) {
      const int j = i % 2 == 0 ? TN - 1 - step : step;
      sums[i][j] += a[i] * b[j];
    }
  }
}
