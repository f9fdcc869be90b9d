// Tiles in shared memory of elements of any type, and the copies of their elements from global
// memory, with the thread map of tile_io.cuh.
#pragma once

#include "tile_io.cuh"
#include "typed.cuh"

// Rows one below the other, each with PAD elements behind it, so that a column of the tile is
// spread over the banks.
template <class T, int ROWS, int COLS, int PAD>
struct PaddedTile {
  static constexpr int PITCH = COLS + PAD;
  alignas(32) T elements[ROWS * PITCH];

  __device__ __forceinline__ T* at(int row, int col) { return elements + row * PITCH + col; }
};

// Rows without padding whose 16-byte chunks change places, by an exclusive or with the number of
// the row: 16 bytes at one column of eight neighboring rows then lie in all 32 banks. Rows shorter
// than 128 bytes share a line of the banks, and count together.
template <class T, int ROWS, int COLS>
struct SwizzledRows {
  static constexpr int CHUNK = 16 / sizeof(T), IN_ROW = COLS / CHUNK;
  static constexpr int PLACES = IN_ROW < 8 ? IN_ROW : 8, ROWS_IN_LINE = 8 / PLACES;
  static_assert(COLS % CHUNK == 0 && (IN_ROW & (IN_ROW - 1)) == 0, "a power of two of chunks");
  alignas(128) T elements[ROWS * COLS];

  // The chunk of an element: where a row has more than eight, they change places by eights.
  static __device__ __forceinline__ int chunk(int row, int col) {
    return col / CHUNK ^ row / ROWS_IN_LINE % PLACES;
  }
  __device__ __forceinline__ T* at(int row, int col) {
    return elements + row * COLS + chunk(row, col) * CHUNK + col % CHUNK;
  }
};

// One thread's pointer as it moves along the ROWS x COLS tiles of a matrix: see `TileWalk`.
template <class T, int THREADS, int VEC, int ROWS, int COLS>
struct TypedWalk {
  using Map = TileWalk<THREADS, VEC, ROWS, COLS>;
  static constexpr int STEPS = Map::STEPS;
  const T* first;  // this thread's first vector of the current tile
  int ld;

  __device__ __forceinline__ TypedWalk(const T* tile, int ld)
      : first(element(tile, ld, row(0), col(0))), ld(ld) {}

  static __device__ __forceinline__ int row(int step) { return Map::row(step); }
  static __device__ __forceinline__ int col(int step) { return Map::col(step); }
  __device__ __forceinline__ const T* source(int step) const {
    return element(first, ld, row(step) - row(0), col(step) - col(0));
  }
  __device__ __forceinline__ void advance(int rows, int cols) {
    first = element(first, ld, rows, cols);
  }
};

// Copies by way of registers, which hold a thread's part of a tile until it is put.
template <class T, int THREADS, int VEC, int ROWS, int COLS>
struct TypedTileFetch : TypedWalk<T, THREADS, VEC, ROWS, COLS> {
  using Walk = TypedWalk<T, THREADS, VEC, ROWS, COLS>;
  using Walk::Walk;
  Pack<T, VEC> held[Walk::STEPS];

  // Global memory -> registers. What lies outside is never read and becomes zero.
  __device__ __forceinline__ void fetch(int rows, int cols) {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
      held[step] = {};
      if (Walk::row(step) < rows && Walk::col(step) < cols) held[step].load(this->source(step));
    }
  }

  // Registers -> shared memory.
  template <class Tile>
  __device__ __forceinline__ void put(Tile& tile) const {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
      held[step].store(tile.at(Walk::row(step), Walk::col(step)));
    }
  }
};
