// The mainloop of fp32 products on tensor cores: both operands come in two parts of fp16, x = high +
// low, and of their products three count: low x high, high x low, high x high.
//
// Tensor cores cut off what does not fit their accumulator. So the sums of a stage are added to those
// in registers, where fp32 rounds, and its small products come first: small ones that come after
// large ones would lose as many bits as these.
#pragma once

#include "mainloop/wgmma.cuh"

// Lines of 128 bytes have 32 elements along k: their `high` parts, then their `low` parts, as
// `split_operands` leaves them. TILE.BK counts parts.
template <WgmmaTile TILE, bool BATCHED>
struct Fp16x3Mainloop : WgmmaMainloop<Half, TILE, A_BT, BATCHED> {
  using Base = WgmmaMainloop<Half, TILE, A_BT, BATCHED>;
  using typename Base::A;
  using typename Base::B;
  using typename Base::Counter;
  using typename Base::Product;
  using typename Base::Sums;
  static constexpr int BK = TILE.BK, DEPTH_OF_STEP = BK / 2, LINE = 64, LOW = LINE / 2;
  static constexpr int ROW_TILES = Base::ROW_TILES, COUNT = TILE.BN / 2;

  // As that of `WgmmaMainloop`.
  template <class Call>
  __device__ __forceinline__ void consume(Sums& sums, int first, int steps, Counter& counter,
                                          const Call& loaded) const {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int j = 0; j < COUNT; ++j) sums[i][j] = 0.0f;
    }
    Sums chunk;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) leave_undefined(chunk[i]);
#pragma unroll 1
    for (int step = 1; step <= steps; ++step) {
      const int stage = counter.stage;
      this->barriers.full[stage].wait(counter.parity);
      const unsigned a = shared_address(this->memory.a[stage]);
      const unsigned b = shared_address(this->memory.b[stage]);
      wgmma_fence();
      multiply<true>(chunk, a, b, first);
      multiply<false>(chunk, a, b, first);
      wgmma_commit();
      counter.advance();
      if (step == steps) loaded();
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) wgmma_wait<0>(chunk[i]);
      this->release(stage);
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) sums[i][j] += chunk[i][j];
      }
    }
    if (steps == 0) loaded();
  }

 private:
  // The products of a stage: those with a `low` part, or those without, which are added to these.
  template <bool SMALL>
  static __device__ __forceinline__ void multiply(Sums& sums, unsigned a, unsigned b, int first) {
#pragma unroll
    for (int line = 0; line < BK; line += LINE) {
#pragma unroll
      for (int k = line; k < line + LOW; k += Base::DEPTH) {
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
          const int row = first + i * WGMMA_ROWS;
          if constexpr (SMALL) {
            Product::multiply(sums[i], A::descriptor(a, row, k + LOW), B::descriptor(b, 0, k),
                              k > 0);
            Product::multiply(sums[i], A::descriptor(a, row, k), B::descriptor(b, 0, k + LOW),
                              true);
          } else {
            Product::multiply(sums[i], A::descriptor(a, row, k), B::descriptor(b, 0, k), true);
          }
        }
      }
    }
  }
};
