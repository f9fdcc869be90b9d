// A thread's copies of tiles by cp.async.
#pragma once

#include "cp_async.cuh"

// Where a tile begins along one side of a matrix, and where that ends, in rows or columns.
struct Side {
  int first, end;
};

// A thread's way through the tiles of a matrix, each ROWS x COLS, which go to shared memory by
// cp.async: as they lie, with rows PITCH floats apart, or TRANSPOSED. One side of a tile runs along
// k: of A it is the columns, of B the rows. On the other side a partial tile reaches past the edge,
// where some row or column that exists is copied: nothing stores what comes of it. So the copies of
// whole tiles need no test each, and an address costs one multiply-add. With KEEP a register holds
// the place in shared memory, which the compiler would rather work out again for each tile.
template <int THREADS, int VEC, int ROWS, int COLS, int WIDTH, int PITCH, bool TRANSPOSED,
          bool KEEP>
struct CopyWalk {
  using Walk = TileWalk<THREADS, VEC, ROWS, COLS, WIDTH>;
  static constexpr int ACROSS = Walk::STEPS_PER_ROW, DOWN = Walk::STEPS / ACROSS;
  static constexpr int OUTER = TRANSPOSED ? DOWN : ACROSS;
  // A thread map of single floats as wide as warps: those past the edge are left out, and one address
  // does for a whole row.
  static constexpr bool LEAVES_OUT =
      VEC == 1 && !TRANSPOSED && ACROSS > 1 && Walk::ACROSS % 32 == 0;

  const char* from;  // what this thread copies first of the current tile
  unsigned ld;
  // Bytes from there to its other rows, divided by ld (TRANSPOSED), or columns.
  unsigned outer[OUTER];
  int columns;  // from this thread's first to the edge
  int to;       // place of the first in a tile of shared memory, in bytes

  // `side` is that of the tile's rows (TRANSPOSED) or columns.
  __device__ __forceinline__ CopyWalk(const float* tile, int ld, const Side& side) : ld(ld) {
    const int inside = side.end - side.first;
    columns = inside - Walk::col(0);
    const auto nearest = [&](int i) {
      if (LEAVES_OUT) return Walk::col(i);
      if (TRANSPOSED) return min(Walk::row(i * ACROSS), inside - 1);
      return VEC == 1 ? apart(i, inside, side.first) : min(Walk::col(i), inside - VEC);
    };
    const float* const first = TRANSPOSED ? element(tile, ld, nearest(0), Walk::col(0))
                                          : element(tile, ld, Walk::row(0), nearest(0));
    from = reinterpret_cast<const char*>(first);
#pragma unroll
    for (int i = 0; i < OUTER; ++i) outer[i] = (nearest(i) - nearest(0)) * sizeof(float);
    const int place = bytes_to(Walk::row(0), Walk::col(0));
    to = KEEP ? opaque(place) : place;
  }

  // Starts the copies of steps `part`, `part` + PARTS ... to a tile in shared memory, zeros where
  // inside(k) says no of a step's k within the tile. With PARTS parts, spread over the arithmetic,
  // they do not hold up its shared-memory reads as all at once would.
  template <int PARTS, class Inside>
  __device__ __forceinline__ void copy(void* tile, int part, const Inside& inside) const {
    char* const first = static_cast<char*>(tile) + to;
#pragma unroll
    for (int step = part; step < Walk::STEPS; step += PARTS) {
      const int row = Walk::row(step), col = Walk::col(step);
      char* const place = first + bytes_to(row - Walk::row(0), col - Walk::col(0));
      const bool reads = inside(TRANSPOSED ? col : row);
      cp_async<VEC>(reinterpret_cast<float*>(place), source(step),
                    reads && (!LEAVES_OUT || step % ACROSS * Walk::ACROSS < columns));
    }
  }

  __device__ __forceinline__ void advance(int k) {
    from += (TRANSPOSED ? k : static_cast<long long>(ld) * k) * sizeof(float);
  }

 private:
  // The column of a step, or one that exists, for lanes of a warp in different banks: a warp that
  // copies the same float to 32 places takes 32 cycles. It is the thread's last column inside; or,
  // of threads that have none, one of the 32 before the edge, even in front of the tile.
  static __device__ __forceinline__ int apart(int i, int inside, int before) {
    const int first = Walk::col(0), mirrored = inside - 1 - first % 32;
    const int last = first + (inside - 1 - first) / Walk::ACROSS * Walk::ACROSS;
    if (first < inside) return min(Walk::col(i), last);
    return mirrored >= -before ? mirrored : min(-1 - mirrored, inside - 1);
  }

  static __device__ __forceinline__ int bytes_to(int row, int col) {
    return (TRANSPOSED ? col * PITCH + row : row * PITCH + col) * sizeof(float);
  }

  // By hand, or the compiler multiplies 64 bits by 64.
  __device__ __forceinline__ const float* source(int step) const {
    const int down = step / ACROSS, across = step % ACROSS;
    const unsigned rows = TRANSPOSED ? outer[down] : down * Walk::ROWS_PER_STEP * sizeof(float);
    const unsigned cols =
        TRANSPOSED || LEAVES_OUT ? across * Walk::ACROSS * sizeof(float) : outer[across];
    const char* row;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(row) : "r"(ld), "r"(rows), "l"(from));
    return reinterpret_cast<const float*>(row + cols);
  }
};
