// Where a block stands in the grid, and where an element lies in memory.
#pragma once

// Row of the grid that this block belongs to: row tiles run over y, and over z past 65,535.
__device__ __forceinline__ int grid_row() { return blockIdx.z * gridDim.y + blockIdx.y; }

// Element (row, col) of a row-major matrix. Rows may lie more than 2^31 elements apart.
template <class T>
__device__ __forceinline__ T* element(T* X, int ld, int row, int col) {
  return X + static_cast<long long>(row) * ld + col;
}

// Of which of A and B it is the transpose that lies in memory: BLAS's NN, NT, TN and TT.
enum Layout { A_B, A_BT, AT_B, AT_BT };
template <Layout LAYOUT>
constexpr bool TRANSPOSED_A = LAYOUT == AT_B || LAYOUT == AT_BT;
template <Layout LAYOUT>
constexpr bool TRANSPOSED_B = LAYOUT == A_BT || LAYOUT == AT_BT;

// Element (row, col) of a matrix, or of one whose transpose lies in memory.
template <bool TRANSPOSED, class T>
__device__ __forceinline__ T* element_of(T* X, int ld, int row, int col) {
  return TRANSPOSED ? element(X, ld, col, row) : element(X, ld, row, col);
}

// The value, but so that the compiler cannot compute ahead what depends on it.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// One of two types.
template <bool FIRST, class A, class B>
struct EitherOf {
  using Type = A;
};
template <class A, class B>
struct EitherOf<false, A, B> {
  using Type = B;
};
template <bool FIRST, class A, class B>
using Either = typename EitherOf<FIRST, A, B>::Type;
