// Groups: products of different shapes in one launch, each described by a struct in global memory.
#pragma once

#include "scheduler/raster.cuh"

// One product, laid out as GROUP in group_table.py has it whatever the types are. Tiles are numbered
// over all groups, those of one being first_tile and the tile_rows x tile_cols from there on; an empty
// group has none.
template <class In = float, class Out = In>
struct alignas(16) Group {
  const In *A, *B;
  Out* C;
  const Out *bias, *residual;
  Out* auxiliary;
  int M, N, K, lda, ldb, ldc, ldr, ldx;
  int first_tile, tile_rows, tile_cols, unused;
};

// A tile of C: the group's number, and where in its C the tile begins, in tiles.
struct GroupTile {
  int group, row, col;
};

// `Its` is what describes a product, a `Group` or more.
template <int RASTER, class In = float, class Out = In, class Its = Group<In, Out>>
struct Groups {
  const Its* const list;
  const int count, tiles;

  // The group of a tile: the last that begins at it or before. The search starts where the group
  // would be if all were alike, doubles its steps until it has passed it, then halves them.
  __device__ __forceinline__ int find(int tile) const {
    const float alike = static_cast<float>(count) / tiles;
    int low = min(count - 1, static_cast<int>((tile + 0.5f) * alike)), high = low + 1;
    for (int step = 1; first(low) > tile; step *= 2) {
      high = low;
      low = max(0, low - step);
    }
    for (int step = 1; high < count && first(high) <= tile; step *= 2) {
      low = high;
      high = min(count, high + step);
    }
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (first(middle) <= tile ? low : high) = middle;
    }
    return low;
  }

  // Where a tile is. The first one of a group, which often is the only one, needs no divisions.
  __device__ __forceinline__ GroupTile place(int tile) const {
    const int group = find(tile);
    const Its& its = list[group];
    const int within = tile - its.first_tile;
    if (within == 0) return {group, 0, 0};
    const TilePlace place = rasterized<RASTER>(within, its.tile_rows, its.tile_cols);
    return {group, place.row, place.col};
  }

 private:
  __device__ __forceinline__ int first(int group) const { return list[group].first_tile; }
};
