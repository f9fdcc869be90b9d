// The mainloop of operands of 8 bits, whose products tensor cores add up with few bits: the sums of each
// chunk of k, those of one step, are promoted, added to others in registers, where fp32 rounds.
#pragma once

#include "mainloop/operand_scales.cuh"
#include "mainloop/wgmma.cuh"

// Of operands without scales of chunks: a chunk's sums count as they are.
struct NoFactors {
  __device__ __forceinline__ NoFactors operator()() const { return {}; }
};

template <class In, WgmmaTile TILE, bool BATCHED>
struct PromotedMainloop : WgmmaMainloop<In, TILE, A_BT, BATCHED> {
  using Base = WgmmaMainloop<In, TILE, A_BT, BATCHED>;
  using typename Base::A;
  using typename Base::B;
  using typename Base::Counter;
  using typename Base::Product;
  using typename Base::Sums;
  static constexpr int BK = TILE.BK, ROW_TILES = Base::ROW_TILES, COUNT = TILE.BN / 2;

  // As that of `WgmmaMainloop`. `scales` makes the `TileScales` of chunks.
  template <class Call, class Scales = NoFactors>
  __device__ __forceinline__ void consume(Sums& sums, int first, int steps, Counter& counter,
                                          const Call& loaded, const Scales& scales = {}) const {
    constexpr bool SCALED = !IS_SAME<Scales, NoFactors>;
    auto factors = scales();
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int j = 0; j < COUNT; ++j) sums[i][j] = 0.0f;
    }
    if (steps == 0) loaded();
    if constexpr (SCALED) {
      if (steps > 0) factors.load();
    }
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
      promote<0>(sums, chunk, stage, factors);
      if constexpr (SCALED) {
        // On their way while the next chunk is multiplied.
        if (step < steps - 1) {
          factors.advance();
          factors.load();
        }
      }
    }
  }

 private:
  // Adds the chunk's sums of row tile I and of those below it. When the last has come, the stage is read.
  template <int I, class Factors>
  __device__ __forceinline__ void promote(Sums& sums, Sums& chunk, int stage,
                                          const Factors& factors) const {
    wgmma_wait<ROW_TILES - 1 - I>(chunk[I]);
    if constexpr (I == ROW_TILES - 1) this->release(stage);
    if constexpr (IS_SAME<Factors, NoFactors>) {
#pragma unroll
      for (int j = 0; j < COUNT; ++j) sums[I][j] += chunk[I][j];
    } else {
      factors.template add<I>(sums[I], chunk[I]);
    }
    if constexpr (I < ROW_TILES - 1) promote<I + 1>(sums, chunk, stage, factors);
  }
};

// A mainloop whose sums are multiplied by the scales of their lines when all k is done.
template <class Base>
struct LineScaledMainloop : Base {
  using typename Base::Counter;
  using typename Base::Sums;

  // As that of `WgmmaMainloop`; `scales` makes the `TileScales` of lines.
  template <class Call, class Scales>
  __device__ __forceinline__ void consume(Sums& sums, int first, int steps, Counter& counter,
                                          const Call& loaded, const Scales& scales) const {
    Base::consume(sums, first, steps, counter, loaded);
    // There is nothing to scale where neither A nor B is read.
    if (steps > 0) scales().multiply(sums);
  }
};
