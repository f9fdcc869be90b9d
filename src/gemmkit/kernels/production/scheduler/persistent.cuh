// Persistent clusters: each computes tile after tile of C, until all are done.
#pragma once

#include "scheduler/raster.cuh"

struct PersistentTile {
  int product, row, col;  // in tiles of a cluster
};

// All tiles of the products of a batch, numbered in the order in which they are computed. A cluster's
// tile has the tiles of its blocks, `CLUSTERS` of them.
template <bool BATCHED, int RASTER, int CLUSTER>
struct Persistent {
  const int rows, cols, tiles, step = gridDim.x / CLUSTER;
  int number = blockIdx.x / CLUSTER;

  __device__ __forceinline__ Persistent(int rows, int cols, int products)
      : rows(rows), cols(cols), tiles(rows * cols * (BATCHED ? products : 1)) {}

  // Whether so many tiles are left.
  __device__ __forceinline__ bool left(int count = 1) const {
    return number + (count - 1) * step < tiles;
  }
  __device__ __forceinline__ void advance(int tiles = 1) { number += tiles * step; }
  __device__ __forceinline__ PersistentTile tile() const {
    const int product = BATCHED ? number / (rows * cols) : 0;
    const TilePlace place = rasterized<RASTER>(number - product * rows * cols, rows, cols);
    return {product, place.row, place.col};
  }
};
