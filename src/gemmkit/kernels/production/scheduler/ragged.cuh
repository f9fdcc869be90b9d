// Ragged products: the rows of one A and one C divided among groups by offsets in global memory, which
// the host need not know.
#pragma once

#include "scheduler/raster.cuh"

// A tile of C: its group, the first row and column, and where the group's rows end.
struct alignas(16) RaggedTile {
  int group, row, end, col;
};

// The tiles of all groups, ROWS x COLS each, numbered group by group. Group g has the rows from
// ends[g - 1], 0 for the first, up to ends[g]. What is called from a warp is called by all its lanes.
template <int RASTER, int ROWS, int COLS, class Offset>
struct RaggedGroups {
  const Offset* const ends;
  const int count, rows, tile_cols;
  int tiles = 0;

  __device__ __forceinline__ RaggedGroups(const Offset* ends, int count, int rows, int columns)
      : ends(ends), count(count), rows(rows), tile_cols((columns + COLS - 1) / COLS) {
    for (int number = threadIdx.x % 32; number < count; number += 32) tiles += group(number).tiles;
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) tiles += __shfl_xor_sync(ALL, tiles, apart);
  }

  // Where a tile is, no earlier one than that of the call before, and one of `tiles`. Each lane looks
  // at one of 32 groups from that of the last tile on.
  __device__ __forceinline__ RaggedTile place(int tile) {
    const int lane = threadIdx.x % 32;
    while (true) {
      const Group own = group(current + lane);
      int up_to = own.tiles;
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const int before = __shfl_up_sync(ALL, up_to, apart);
        if (lane >= apart) up_to += before;
      }
      const unsigned later = __ballot_sync(ALL, first + up_to > tile);
      if (later == 0) {
        first += __shfl_sync(ALL, up_to, 31);
        current += 32;
        continue;
      }
      const int found = __ffs(later) - 1;
      first += __shfl_sync(ALL, up_to - own.tiles, found);
      current += found;
      const int start = __shfl_sync(ALL, own.start, found), end = __shfl_sync(ALL, own.end, found);
      const TilePlace place =
          rasterized<RASTER>(tile - first, (end - start + ROWS - 1) / ROWS, tile_cols);
      return {current, start + place.row * ROWS, end, place.col * COLS};
    }
  }

 private:
  struct Group {
    int start, end, tiles;
  };
  static constexpr unsigned ALL = 0xffffffff;

  // Offsets past the first or last row count as these. Those that are not in order may give a row to two
  // groups, one of which it is a result of.
  __device__ __forceinline__ Group group(int number) const {
    if (number >= count) return {0, 0, 0};
    const int start = number == 0 ? 0 : bounded(ends[number - 1]);
    const int end = max(start, bounded(ends[number]));
    return {start, end, (end - start + ROWS - 1) / ROWS * tile_cols};
  }
  __device__ __forceinline__ int bounded(Offset end) const {
    return end < 0 ? 0 : end > rows ? rows : static_cast<int>(end);
  }

  // The group of the last tile that was placed, and that group's first tile.
  int current = 0, first = 0;
};
