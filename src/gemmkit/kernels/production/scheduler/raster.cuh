// Grouped rasterization: the order of tiles that lets blocks at work together share operands in L2.
#pragma once

// A tile of C among all, in tiles.
struct TilePlace {
  int row, col;
};

// Tile number `tile` of all: they go in groups of ROWS rows, column by column.
template <int ROWS>
__device__ __forceinline__ TilePlace rasterized(int tile, int tile_rows, int tile_cols) {
  const int group = tile / (ROWS * tile_cols) * ROWS, rows = min(ROWS, tile_rows - group);
  const int within = tile - group * tile_cols;
  return {group + within % rows, within / rows};
}
