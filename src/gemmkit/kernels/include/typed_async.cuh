// Copies of elements of any type to tiles in shared memory, by cp.async where it can.
#pragma once

#include "cp_async.cuh"
#include "typed_tile.cuh"

// The thread's copies of the tiles of a matrix, several stages ahead of the arithmetic. cp.async
// copies vectors of 16 bytes; single elements are too small for it and take the way through a
// register, whose loads the thread waits for.
template <class T, int THREADS, int VEC, int ROWS, int COLS>
struct TypedTileCopy : TypedWalk<T, THREADS, VEC, ROWS, COLS> {
  using Walk = TypedWalk<T, THREADS, VEC, ROWS, COLS>;
  using Walk::Walk;

  // Starts part `part` of `parts` of a tile's copies; what lies outside is never read and becomes
  // zero.
  template <class Tile>
  __device__ __forceinline__ void copy(Tile& tile, int rows, int cols, int part, int parts) const {
#pragma unroll
    for (int step = part; step < Walk::STEPS; step += parts) {
      const int row = Walk::row(step), col = Walk::col(step);
      const bool inside = row < rows && col < cols;
      if constexpr (VEC * sizeof(T) == 16) {
        cp_async<4>(reinterpret_cast<float*>(tile.at(row, col)),
                    reinterpret_cast<const float*>(this->source(step)), inside);
      } else {
        Pack<T, VEC> held;
        if (inside) held.load(this->source(step));
        held.store(tile.at(row, col));
      }
    }
  }
};
