// The mainloop for any type, of operands with scales: each chunk of k that has scales of its own is
// multiplied by itself.
#pragma once

#include "mainloop/operand_scales.cuh"
#include "mainloop/register_staged.cuh"

template <Scales SCALES, class In, Tile TILE, Access ACCESS, Layout LAYOUT>
struct ScaledChunks : RegisterStaged<In, float, TILE, ACCESS, LAYOUT> {
  using Base = RegisterStaged<In, float, TILE, ACCESS, LAYOUT>;
  using Base::A_T;
  using Base::B_T;
  static constexpr int TM = TILE.TM, TN = TILE.TN;
  // Chunks may follow each other at once: the last step of one reads another stage than the first of
  // the next one writes.
  static_assert(CHUNK % (2 * TILE.BK) == 0, "an even number of steps to a chunk");

  using Base::Base;

  // As that of `RegisterStaged`; the scales are those of `product`, whose row and column A and B begin
  // at.
  __device__ __forceinline__ void multiply(float (&sums)[TM][TN], const In* A, int lda, int rows,
                                           const In* B, int ldb, int cols, int K,
                                           const OperandScales<SCALES>& scales, int product,
                                           int row, int col) const {
    const int step = SCALES.of_chunks ? CHUNK : K;
    for (int k = 0; k < K; k += step) {
      float chunk[TM][TN] = {};
      Base::multiply(chunk, element_of<A_T>(A, lda, 0, k), lda, rows, element_of<B_T>(B, ldb, k, 0),
                     ldb, cols, min(step, K - k));
      const int number = SCALES.of_chunks ? k / CHUNK : 0;
      float of_cols[TN];
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        const int own = this->warp_col + piece_place<Base::LANES_N, QUAD<float>>(this->lane.col, j);
        of_cols[j] =
            scales.b.template get<SCALES.lines_b>(product, col + min(own, cols - 1), number);
      }
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        const int own = this->warp_row + piece_place<Base::LANES_M, QUAD<float>>(this->lane.row, i);
        const float of_row =
            scales.a.template get<SCALES.lines_a>(product, row + min(own, rows - 1), number);
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          sums[i][j] = SCALES.of_chunks ? fmaf(of_row * of_cols[j], chunk[i][j], sums[i][j])
                                        : of_row * of_cols[j] * chunk[i][j];
        }
      }
    }
  }
};
