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

// The same with registers for the sums of two chunks: while those of one are promoted, tensor cores
// make those of the next, also where a block has no other consumer.
template <class In, WgmmaTile TILE, bool BATCHED>
struct OverlappedMainloop : PromotedMainloop<In, TILE, BATCHED> {
  using Base = PromotedMainloop<In, TILE, BATCHED>;
  using typename Base::A;
  using typename Base::B;
  using typename Base::Counter;
  using typename Base::Product;
  using typename Base::Sums;
  static constexpr int BK = TILE.BK, ROW_TILES = Base::ROW_TILES, COUNT = TILE.BN / 2;

  // As that of `PromotedMainloop`.
  template <class Call, class Scales = NoFactors>
  __device__ __forceinline__ void consume(Sums& sums, int first, int steps, Counter& counter,
                                          const Call& loaded, const Scales& scales = {}) const {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int j = 0; j < COUNT; ++j) sums[i][j] = 0.0f;
    }
    if (steps == 0) {
      loaded();
      return;
    }
    auto factors = scales();
    if constexpr (SCALED<Scales>) factors.load();
    Sums even, odd;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
      leave_undefined(even[i]);
      leave_undefined(odd[i]);
    }
    // The stage of the chunk that is under way.
    int held = multiply(even, first, counter);
    int step = 1;
#pragma unroll 1
    for (; step + 1 < steps; step += 2) {
      held = multiply_and_promote(odd, sums, even, first, counter, held, factors);
      held = multiply_and_promote(even, sums, odd, first, counter, held, factors);
    }
    if (step < steps) {
      held = multiply_and_promote(odd, sums, even, first, counter, held, factors);
      loaded();
      promote<0>(sums, odd, held, factors);
    } else {
      loaded();
      promote<0>(sums, even, held, factors);
    }
  }

 private:
  template <class Scales>
  static constexpr bool SCALED = !IS_SAME<Scales, NoFactors>;

  // Begins the products of the next step, when its tiles have come; returns their stage.
  __device__ __forceinline__ int multiply(Sums& chunk, int first, Counter& counter) const {
    const int stage = counter.stage;
    this->barriers.full[stage].wait(counter.parity);
    const unsigned a = shared_address(this->memory.a[stage]);
    const unsigned b = shared_address(this->memory.b[stage]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK; k += Base::DEPTH) {
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
        Product::multiply(chunk[i], A::descriptor(a, first + i * WGMMA_ROWS, k),
                          B::descriptor(b, 0, k), k > 0);
      }
    }
    wgmma_commit();
    counter.advance();
    return stage;
  }

  // Begins the products of the next step, then promotes those of the one before.
  template <class Factors>
  __device__ __forceinline__ int multiply_and_promote(Sums& next, Sums& sums, Sums& chunk,
                                                      int first, Counter& counter, int held,
                                                      Factors& factors) const {
    const int stage = multiply(next, first, counter);
    if constexpr (SCALED<Factors>) {
      Factors later = factors;
      later.advance();
      later.load();
      promote<1>(sums, chunk, held, factors);
      factors = later;
    } else {
      promote<1>(sums, chunk, held, factors);
    }
    return stage;
  }

  // Adds a chunk's sums when no more than PENDING chunks are under way.
  template <int PENDING, class Factors>
  __device__ __forceinline__ void promote(Sums& sums, Sums& chunk, int stage,
                                          const Factors& factors) const {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) wgmma_wait<PENDING>(chunk[i]);
    this->release(stage);
    add<0>(sums, chunk, factors);
  }
  template <int I, class Factors>
  __device__ __forceinline__ void add(Sums& sums, Sums& chunk, const Factors& factors) const {
    if constexpr (SCALED<Factors>) {
      factors.template add<I>(sums[I], chunk[I]);
    } else {
#pragma unroll
      for (int j = 0; j < COUNT; ++j) sums[I][j] += chunk[I][j];
    }
    if constexpr (I < ROW_TILES - 1) add<I + 1>(sums, chunk, factors);
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
