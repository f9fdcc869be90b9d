// Sums of products of parts that are not finite: fused multiply-adds of A and B themselves take their
// place.
#pragma once

#include "layout.cuh"

// What IEEE 754 says of infinities and NaN is not true of parts, and sums of parts may overflow where
// that of the products does not. All other sums keep their bits.
template <Layout LAYOUT>
struct FiniteSums {
  static constexpr bool SCALES = true, IN_MAINLOOP = false;

  // As that of `LineScales`, warp by warp: the sums are always those of the product afterwards.
  template <bool SWAPPED, int COUNT, class Arguments>
  __device__ __forceinline__ bool scale(float (&sums)[COUNT], const Arguments& args, int product,
                                        int row, int col) const {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int rows = SWAPPED ? args.N : args.M, cols = SWAPPED ? args.M : args.N;
    const int first_row = row + warp * 16 + lane / 4, first_col = col + lane % 4 * 2;
    bool wanted = false;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const bool inside = first_row + i % 4 / 2 * 8 < rows && first_col + i / 4 * 8 + i % 2 < cols;
      wanted |= !is_finite(sums[i]) && inside;
    }
    if (!__any_sync(~0u, wanted)) return true;
    // The matrix of which a line is a row of the wgmma, and that of its columns: elements from a line
    // to the next, and along k.
    const auto *a = args.a(product), *b = args.b(product);
    const long long a_line = TRANSPOSED_A<LAYOUT> ? 1 : args.lda,
                    a_k = TRANSPOSED_A<LAYOUT> ? args.lda : 1;
    const long long b_line = TRANSPOSED_B<LAYOUT> ? args.ldb : 1,
                    b_k = TRANSPOSED_B<LAYOUT> ? 1 : args.ldb;
    const auto* const of_rows = SWAPPED ? b : a;
    const auto* const of_cols = SWAPPED ? a : b;
    const long long row_line = SWAPPED ? b_line : a_line, row_k = SWAPPED ? b_k : a_k;
    const long long col_line = SWAPPED ? a_line : b_line, col_k = SWAPPED ? a_k : b_k;
    float own[COUNT] = {};
#pragma unroll 1
    for (int k = 0; k < args.K; ++k) {
      float x[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        x[half] = of_rows[min(first_row + half * 8, rows - 1) * row_line + k * row_k];
      }
#pragma unroll
      for (int i = 0; i < COUNT; i += 4) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const float y = of_cols[min(first_col + i * 2 + side, cols - 1) * col_line + k * col_k];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            own[i + half * 2 + side] = fmaf(x[half], y, own[i + half * 2 + side]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (!is_finite(sums[i])) sums[i] = own[i];
    }
    return true;
  }

 private:
  static __device__ __forceinline__ bool is_finite(float x) {
    return fabsf(x) < __int_as_float(0x7F800000);
  }
};
