// The mainloop of operands of 8 bits, whose products tensor cores add up with few bits: the sums of each
// chunk of k, those of one step, are promoted, added to others in registers, where fp32 rounds.
#pragma once

#include "mainloop/wgmma.cuh"

template <class In, WgmmaTile TILE, bool BATCHED>
struct PromotedMainloop : WgmmaMainloop<In, TILE, A_BT, BATCHED> {
  using Base = WgmmaMainloop<In, TILE, A_BT, BATCHED>;
  using typename Base::A;
  using typename Base::B;
  using typename Base::Counter;
  using typename Base::Product;
  using typename Base::Sums;
  static constexpr int BK = TILE.BK, ROW_TILES = Base::ROW_TILES, COUNT = TILE.BN / 2;

  // As that of `WgmmaMainloop`.
  template <class Call>
  __device__ __forceinline__ void consume(Sums& sums, int first, int steps, Counter& counter,
                                          const Call& loaded) const {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int j = 0; j < COUNT; ++j) sums[i][j] = 0.0f;
    }
    if (steps == 0) loaded();
    Sums chunk;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) leave_undefined(chunk[i]);
#pragma unroll 1
    for (int step = 0; step < steps; ++step, counter.advance()) {
      const int stage = counter.stage;
      this->barriers.full[stage].wait(counter.parity);
      const unsigned a = shared_address(this->memory.a[stage]);
      const unsigned b = shared_address(this->memory.b[stage]);
      wgmma_fence();
      // A group for each 64 rows: while their sums are promoted, the next ones' products are under way.
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int k = 0; k < BK; k += Base::DEPTH) {
          Product::multiply(chunk[i], A::descriptor(a, first + i * WGMMA_ROWS, k),
                            B::descriptor(b, 0, k), k > 0);
        }
        wgmma_commit();
      }
      if (step == steps - 1) loaded();
      promote<0>(sums, chunk, stage);
    }
  }

 private:
  // Adds the chunk's sums of row tile I and of those below it. When the last has come, the stage is read.
  template <int I>
  __device__ __forceinline__ void promote(Sums& sums, Sums& chunk, int stage) const {
    wgmma_wait<ROW_TILES - 1 - I>(chunk[I]);
    if constexpr (I == ROW_TILES - 1) this->release(stage);
#pragma unroll
    for (int j = 0; j < COUNT; ++j) sums[I][j] += chunk[I][j];
    if constexpr (I < ROW_TILES - 1) promote<I + 1>(sums, chunk, stage);
  }
};
