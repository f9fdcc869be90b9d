// fp32 products by mma.sync of TF32, which has the exponents of fp32 and 11 bits of its significand: of
// operands that are rounded, or that are the sum of two parts.
#pragma once

#include "mainloop/cp_async_mma.cuh"

// Half of what the last bit of TF32 is worth, in bits of fp32; and the bits that it has.
constexpr unsigned HALF_TF32 = 0x1000, TF32_BITS = 0xFFFFE000;

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) < __int_as_float(0x7F800000); }

// mma.sync of 16 x 8 x 8. It ignores the last 13 bits of its operands' words.
struct Tf32Mma {
  using Sum = float;
  using Register = unsigned;
  static constexpr int DEPTH = 8, A_REGISTERS = 4, B_REGISTERS = 2;

  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
struct RoundedTf32 : Tf32Mma {};
struct SplitTf32 : Tf32Mma {};

// To the nearest number of TF32, ties away from zero. That is cvt.rna.tf32.f32, of which ptxas makes
// these instructions and two more, to clear bits that mma.sync ignores anyway and to keep NaN: twice
// itself, NaN has bits that are not ignored.
__device__ __forceinline__ unsigned rounded(unsigned bits) {
  const float x = __uint_as_float(bits);
  return is_finite(x) ? bits + HALF_TF32 : __float_as_uint(x + x);
}

// x = high + low, high the nearest number of TF32. low is exact but for what mma.sync ignores, at most
// 2^-23 of x or 2^-136. Of an x that is not finite, or becomes infinite as TF32, one of them is NaN or both
// are opposite infinities, so that no sum of products with both is finite.
template <int COUNT>
__device__ __forceinline__ void split(const unsigned (&bits)[COUNT], unsigned (&high)[COUNT],
                                      unsigned (&low)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    high[i] = (bits[i] + HALF_TF32) & TF32_BITS;
    low[i] = __float_as_uint(__uint_as_float(bits[i]) - __uint_as_float(high[i]));
  }
}

template <int ROWS, int COLS>
__device__ __forceinline__ void multiply_fragments(RoundedTf32, float (&sums)[ROWS][COLS][4],
                                                   const unsigned (&a)[ROWS][4],
                                                   const unsigned (&b)[COLS][2]) {
  unsigned rounded_b[COLS][2];
#pragma unroll
  for (int j = 0; j < COLS; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) rounded_b[j][r] = rounded(b[j][r]);
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    unsigned rounded_a[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) rounded_a[r] = rounded(a[i][r]);
#pragma unroll
    for (int j = 0; j < COLS; ++j) Tf32Mma::multiply(sums[i][j], rounded_a, rounded_b[j]);
  }
}

// Tensor cores cut off what does not fit their accumulator. So the sums of a chunk, these 8 of k, are
// added to those in registers, where fp32 rounds, and its small products come first: small ones that come
// after large ones would lose as many bits as these. Products of the same chunk wait for each other, and so
// take turns with those of other columns.
template <int ROWS, int COLS>
__device__ __forceinline__ void multiply_fragments(SplitTf32, float (&sums)[ROWS][COLS][4],
                                                   const unsigned (&a)[ROWS][4],
                                                   const unsigned (&b)[COLS][2]) {
  unsigned high_b[COLS][2], low_b[COLS][2];
#pragma unroll
  for (int j = 0; j < COLS; ++j) split(b[j], high_b[j], low_b[j]);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    unsigned high_a[4], low_a[4];
    split(a[i], high_a, low_a);
    float chunk[COLS][4] = {};
#pragma unroll
    for (int j = 0; j < COLS; ++j) Tf32Mma::multiply(chunk[j], low_a, high_b[j]);
#pragma unroll
    for (int j = 0; j < COLS; ++j) Tf32Mma::multiply(chunk[j], high_a, low_b[j]);
#pragma unroll
    for (int j = 0; j < COLS; ++j) Tf32Mma::multiply(chunk[j], high_a, high_b[j]);
#pragma unroll
    for (int j = 0; j < COLS; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[i][j][r] += chunk[j][r];
    }
  }
}

// Products of operands in two parts. Sums that are not finite then come from fused multiply-adds of A
// and B themselves: what IEEE 754 says of infinities and NaN is not true of parts, some sums of parts
// overflow where that of the products does not, and so do the parts of the largest numbers.
template <Tile TILE, Access ACCESS, Layout LAYOUT>
struct Tf32x3Mainloop : CpAsyncMma<float, TILE, ACCESS, LAYOUT, SplitTf32> {
  using Base = CpAsyncMma<float, TILE, ACCESS, LAYOUT, SplitTf32>;
  using Base::Base;
  using typename Base::Sums;
  static constexpr int ROW_TILES = TILE.WM / 16, COL_TILES = TILE.WN / 8;

  // As that of `CpAsyncMma`.
  __device__ __forceinline__ void multiply(Sums& sums, const float* A, int lda, int rows,
                                           const float* B, int ldb, int cols, int K) const {
    Base::multiply(sums, A, lda, rows, B, ldb, cols, K);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) replace(sums[i], i, A, lda, rows, B, ldb, cols, K);
  }

 private:
  // Row and column of a lane's sum `r` of a 16 x 8 product.
  __device__ __forceinline__ int row(int i, int r) const {
    return this->warp_row + i * 16 + r / 2 * 8 + this->lane / 4;
  }
  __device__ __forceinline__ int col(int j, int r) const {
    return this->warp_col + j * 8 + this->lane % 4 * 2 + r % 2;
  }

  // Those of 16 rows. Each lane computes all of its sums, whichever are wanted.
  __device__ __forceinline__ void replace(float (&sums)[COL_TILES][4], int i, const float* A,
                                          int lda, int rows, const float* B, int ldb, int cols,
                                          int K) const {
    bool wanted = false;
#pragma unroll
    for (int j = 0; j < COL_TILES; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        wanted |= !is_finite(sums[j][r]) && row(i, r) < rows && col(j, r) < cols;
      }
    }
    if (!__any_sync(~0u, wanted)) return;
    float own[COL_TILES][4] = {};
#pragma unroll 1
    for (int k = 0; k < K; ++k) {
      float a[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[half] = *element_of<Base::A_T>(A, lda, min(row(i, 2 * half), rows - 1), k);
      }
#pragma unroll
      for (int j = 0; j < COL_TILES; ++j) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const float b = *element_of<Base::B_T>(B, ldb, k, min(col(j, side), cols - 1));
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            own[j][2 * half + side] = fmaf(a[half], b, own[j][2 * half + side]);
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < COL_TILES; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (!is_finite(sums[j][r])) sums[j][r] = own[j][r];
      }
    }
  }
};
