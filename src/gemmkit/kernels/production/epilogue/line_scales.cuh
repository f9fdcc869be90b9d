// Operands whose rows (of A) and columns (of B) were multiplied by powers of two: how their products
// become those of the operands as they were.
#pragma once

#include "layout.cuh"

// Stands for the exponent of a line with an element that is infinite or NaN.
constexpr int SPECIAL = 1 << 20;

// 2^exponent, or the nearest that is a normal number.
__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((max(-126, min(127, exponent)) + 127) << 23);
}

// x 2^exponent, rounded once: x is 0 or, between 2^-48 and 2^48, a sum of products of fp16.
__device__ __forceinline__ float scaled(float x, int exponent) {
  // The first product is exact, or what it loses is too small to be seen in the second.
  const int first = exponent < -126 ? -80 : min(exponent, 127);
  return x * power_of_two(first) * power_of_two(exponent - first);
}

struct LineScales {
  static constexpr bool SCALES = true, IN_MAINLOOP = false;
  // Of each row of A and column of B, the exponent of the power of two that undoes its scale.
  const int* exponents_a;
  const int* exponents_b;

  // By a warpgroup: scales its 64 x BN sums of a tile of C, or, if SWAPPED, of one of its transpose,
  // which begins at (row, col). Returns whether all lines are finite; else the sums are none.
  template <bool SWAPPED, int COUNT, class Arguments>
  __device__ __forceinline__ bool scale(float (&sums)[COUNT], const Arguments& args, int product,
                                        int row, int col) const {
    // There is nothing to scale where neither A nor B is read.
    if (args.depth() == 0) return true;
    constexpr int BN = 2 * COUNT;
    const int product_a = args.stride_a == 0 ? 0 : product;
    const int product_b = args.stride_b == 0 ? 0 : product;
    const int* const of_a = exponents_a + static_cast<long long>(product_a) * args.M;
    const int* const of_b = exponents_b + static_cast<long long>(product_b) * args.N;
    const int* const of_rows = SWAPPED ? of_b : of_a;
    const int* const of_cols = SWAPPED ? of_a : of_b;
    const int last_row = (SWAPPED ? args.N : args.M) - 1,
              last_col = (SWAPPED ? args.M : args.N) - 1;
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    // Lanes that look at all rows of the warpgroup, and at those of their own sums.
    int rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = i < 2 ? warp * 16 + lane / 4 + 8 * i : lane + 32 * (i - 2);
      rows[i] = of_rows[min(row + at, last_row)];
    }
    int most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) most = max(most, abs(rows[i]));
    int cols[COUNT / 2];
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) {
      cols[i] = of_cols[min(col + i / 2 * 8 + lane % 4 * 2 + i % 2, last_col)];
      most = max(most, abs(cols[i]));
    }
    // Usually products of two factors are normal numbers.
    if (__all_sync(~0u, most <= 62)) {
      const float factors[2] = {power_of_two(rows[0]), power_of_two(rows[1])};
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        const float factor = power_of_two(cols[i]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sums[i / 2 * 4 + half * 2 + i % 2] *= factors[half] * factor;
        }
      }
      return true;
    }
    if (__any_sync(~0u, most >= SPECIAL)) return false;
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& sum = sums[i / 2 * 4 + half * 2 + i % 2];
        sum = scaled(sum, rows[half] + cols[i]);
      }
    }
    return true;
  }
};

// By a warpgroup: the same part of C from A and B themselves, without tensor cores.
template <bool SWAPPED, Layout LAYOUT, int BN, class Arguments>
__device__ __forceinline__ void multiply_directly(const Arguments& args, int product, int row,
                                                  int col) {
  constexpr int ROWS = SWAPPED ? BN : 64, COLS = SWAPPED ? 64 : BN, OWN = 4;
  const int first_m = SWAPPED ? col : row, first_n = SWAPPED ? row : col;
  // Elements from one to the next, along the sides of C and along k.
  const long long a_m = TRANSPOSED_A<LAYOUT> ? 1 : args.lda,
                  a_k = TRANSPOSED_A<LAYOUT> ? args.lda : 1;
  const long long b_n = TRANSPOSED_B<LAYOUT> ? args.ldb : 1,
                  b_k = TRANSPOSED_B<LAYOUT> ? 1 : args.ldb;
  const auto epilogue = args.epilogue(product);
  // A thread has results that lie 32 columns apart, so that its warp reads neighbors.
  constexpr int ACROSS = (COLS + 32 * OWN - 1) / (32 * OWN), PLACES = ROWS / OWN * ACROSS;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int place = warp; place < PLACES; place += 4) {
    const int down = place / ACROSS * OWN, across = place % ACROSS * 32 * OWN + lane;
    float sums[OWN][OWN] = {};
    const auto *a = args.a(product), *b = args.b(product);
#pragma unroll 1
    for (int k = 0; k < args.K; ++k, a += a_k, b += b_k) {
      float from_a[OWN], from_b[OWN];
#pragma unroll
      for (int i = 0; i < OWN; ++i) {
        const int m = first_m + down + i, n = first_n + across + 32 * i;
        from_a[i] = a[min(m, args.M - 1) * a_m];
        from_b[i] = b[min(n, args.N - 1) * b_n];
      }
#pragma unroll
      for (int i = 0; i < OWN; ++i) {
#pragma unroll
        for (int j = 0; j < OWN; ++j) sums[i][j] = fmaf(from_a[i], from_b[j], sums[i][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
#pragma unroll
      for (int j = 0; j < OWN; ++j) {
        const int m = first_m + down + i, n = first_n + across + 32 * j;
        const bool inside = down + i < ROWS && across + 32 * j < COLS && m < args.M && n < args.N;
        if (inside) epilogue.store(element(args.c(product), args.ldc, m, n), sums[i][j], m, n);
      }
    }
  }
}
