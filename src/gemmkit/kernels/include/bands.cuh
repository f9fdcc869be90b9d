// The order of tiles as rungs 10 and 13 call it.
#pragma once

#include "scheduler/raster.cuh"

template <int BAND = 8>
__device__ __forceinline__ TilePlace in_bands(int tile, int tile_rows, int tile_cols) {
  return rasterized<BAND>(tile, tile_rows, tile_cols);
}
