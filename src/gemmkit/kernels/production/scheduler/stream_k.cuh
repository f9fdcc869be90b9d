// Stream-K: who works on what when the grid is as large as the board, not as the product.
#pragma once

#include "scheduler/raster.cuh"

// Steps of k of one tile: `count` from `first` on.
struct Segment {
  int tile, first, count;
};

struct ProductTile {
  int product;
  TilePlace place;
};

// The work units of a block. Tiles that whole waves leave over, and one wave more if there are any,
// are split: their steps of k, tile after tile, are divided into even shares, one per block. Whole
// tiles, a wave at a time, come after. (The steps to be divided fit an int: the matrices of more
// would fit no memory.) Tiles of all products of a batch are numbered together.
template <bool BATCHED, int RASTER>
struct StreamK {
  const int tile_rows, tile_cols, steps, products;
  const int tiles = tile_rows * tile_cols * (BATCHED ? products : 1), blocks = gridDim.x;
  const int cut = tiles % blocks + (tiles % blocks > 0 && tiles > blocks ? blocks : 0);
  const int share = cut * steps / blocks, more = cut * steps % blocks;

  __device__ __forceinline__ StreamK(int tile_rows, int tile_cols, int steps, int products)
      : tile_rows(tile_rows), tile_cols(tile_cols), steps(steps), products(products) {}

  // Where the share of a block begins, and which block has a step; the first ones take one more.
  __device__ __forceinline__ int begin(int block) const { return block * share + min(block, more); }
  __device__ __forceinline__ int owner(int step) const {
    const int larger = more * (share + 1);
    return step < larger ? step / (share + 1) : more + (step - larger) / share;
  }

  // This block's first work unit, and the one after a given one; false where there is none.
  __device__ __forceinline__ bool start(Segment& work) const {
    return set(work, begin(blockIdx.x), cut + blockIdx.x);
  }
  __device__ __forceinline__ bool next(Segment& work) const {
    const bool shared = work.tile < cut;
    return set(work, shared ? work.tile * steps + work.first + work.count : begin(blockIdx.x + 1),
               shared ? cut + blockIdx.x : work.tile + blocks);
  }

  __device__ __forceinline__ ProductTile find(int tile) const {
    const int product = BATCHED ? tile / (tile_rows * tile_cols) : 0;
    tile -= product * tile_rows * tile_cols;
    return {product, rasterized<RASTER>(tile, tile_rows, tile_cols)};
  }

 private:
  __device__ __forceinline__ bool set(Segment& work, int step, int whole_tile) const {
    const int left = begin(blockIdx.x + 1) - step;
    const int tile = left > 0 ? step / steps : whole_tile;
    const int first = left > 0 ? step - tile * steps : 0;
    work = {tile, first, left > 0 ? min(left, steps - first) : steps};
    return tile < tiles;
  }
};
