// Where a block of the kernels for any type works, and which operands lie transposed.
#pragma once

#include "batch.cuh"

template <Layout LAYOUT>
constexpr bool TRANSPOSED_A = LAYOUT == AT_B || LAYOUT == AT_BT;
template <Layout LAYOUT>
constexpr bool TRANSPOSED_B = LAYOUT == A_BT || LAYOUT == AT_BT;

// The block's tile: its product of the batch, and the first row and column.
template <int BM, int BN, bool BATCHED>
struct TypedPlace {
  const BatchPlace<BATCHED> place;
  const int row, col;
  const bool surplus;  // a grid may have more blocks than there are tiles

  __device__ __forceinline__ TypedPlace(int M, int N, int batch)
      : place((M + BM - 1) / BM, (N + BN - 1) / BN, batch),
        row(place.tile_row * BM),
        col(place.tile_col * BN),
        surplus(row >= M || (BATCHED && place.product >= batch)) {}

  // Moves each matrix, by the stride that follows it, to where this product's begins.
  template <class T, class... Rest>
  __device__ __forceinline__ void enter(T*& matrix, long long stride, Rest&... rest) const {
    matrix += place.product * stride;
    if constexpr (sizeof...(rest) > 0) enter(rest...);
  }
};
