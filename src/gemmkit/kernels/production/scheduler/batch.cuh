// One tile per block: which product of a batch, which tile of it, and which part of its k.
#pragma once

#include "layout.cuh"

// A single product: its tiles run over the grid.
template <bool BATCHED>
struct BatchPlace {
  const int product = 0, part = 0, parts = 1, tile_row = grid_row(), tile_col = blockIdx.x;

  __device__ __forceinline__ BatchPlace(int, int, int) {}
};

// Of a batch, tiles run over x and y, products over z, with the parts of their k if that is cut.
// What y or z has no room for comes in further lines of tiles along x.
template <>
struct BatchPlace<true> {
  int product = blockIdx.z, part = 0, parts = 1, tile_row = blockIdx.y, tile_col = blockIdx.x;

  __device__ __forceinline__ BatchPlace(int tile_rows, int tile_cols, int batch) {
    const int rows = gridDim.y, products = gridDim.z;
    if (products > batch) {
      parts = products / batch;
      part = product % parts, product /= parts;
    }
    if (tile_col >= tile_cols) {
      const int line = tile_col / tile_cols, layers = (tile_rows + rows - 1) / rows;
      tile_col %= tile_cols;
      tile_row += line % layers * rows, product += line / layers * products;
    }
  }
};
