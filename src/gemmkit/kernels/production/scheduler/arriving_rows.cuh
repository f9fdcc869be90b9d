// Where rows of A are, and from when on: all in one matrix and there before the launch, or those of
// other GPUs in a matrix that their copies fill meanwhile.
#pragma once

#include "scheduler/persistent.cuh"
#include "tma.cuh"

// Where the rows of a tile are: the map of their matrix, and the first of them there.
struct RowsOfTile {
  const TensorMap& map;
  int first;
};

// One matrix, which is there.
struct AllRows {
  template <bool BATCHED, int RASTER, int CLUSTER>
  using Schedule = Persistent<BATCHED, RASTER, CLUSTER>;

  template <class Tiles>
  __device__ __forceinline__ Tiles schedule(int rows, int cols, int products, int) const {
    return Tiles(rows, cols, products);
  }
  __device__ __forceinline__ void prefetch() const {}
  __device__ __forceinline__ RowsOfTile find(const TensorMap& map, int row, int) {
    return {map, row};
  }
};

// As `Persistent`; the tiles of a row from `first` on come first, and the others go round.
template <bool BATCHED, int RASTER, int CLUSTER>
struct Rotated : Persistent<BATCHED, RASTER, CLUSTER> {
  const int first;

  __device__ __forceinline__ Rotated(int rows, int cols, int products, int first)
      : Persistent<BATCHED, RASTER, CLUSTER>(rows, cols, products), first(first) {}

  __device__ __forceinline__ PersistentTile tile() const {
    PersistentTile found = Persistent<BATCHED, RASTER, CLUSTER>::tile();
    found.row += first;
    if (found.row >= this->rows) found.row -= this->rows;
    return found;
  }
};

// Shares of `share_rows` rows, of which the last may have fewer: this GPU's own begin at row
// `first_row` and lie in a matrix of their own. Those of the next ranks, which are multiplied next, in
// the order of their flags in `arrived`, lie in one matrix of all rows; a flag is 1 when its share has
// come. Shares begin at multiples of a cluster's rows.
struct ArrivingRows {
  const TensorMap& map_own;
  const int* arrived;
  int first_row, share_rows, ranks;
  int heard = 0;  // shares of which this thread knows that they have come

  template <bool BATCHED, int RASTER, int CLUSTER>
  using Schedule = Rotated<BATCHED, RASTER, CLUSTER>;

  template <class Tiles>
  __device__ __forceinline__ Tiles schedule(int rows, int cols, int products,
                                            int rows_of_tile) const {
    return Tiles(rows, cols, products, first_row / rows_of_tile);
  }
  __device__ __forceinline__ void prefetch() const { tma_prefetch(map_own); }

  // By the thread that loads: the rows from `row` on of a cluster's tile whose rows begin at
  // `first_of_tile`, once they are there.
  __device__ __forceinline__ RowsOfTile find(const TensorMap& map, int row, int first_of_tile) {
    const int share = (first_of_tile - first_row) / share_rows;
    if (first_of_tile >= first_row && share == 0) return {map_own, row - first_row};
    const int own = first_row / share_rows;
    int number = first_of_tile / share_rows - own - 1;
    if (number < 0) number += ranks;
    if (number >= heard) {
      for (; heard <= number; ++heard) wait_for(arrived + heard);
      // Copy engines have written what TMA is to read.
      asm volatile("fence.proxy.async;" ::: "memory");
    }
    return {map, row};
  }

 private:
  static __device__ __forceinline__ void wait_for(const int* flag) {
    int value;
    while (true) {
      asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
      if (value != 0) return;
      __nanosleep(64);
    }
  }
};
