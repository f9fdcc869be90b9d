// The mainloop of tf32 products whose A lies across k: wgmma reads such elements of 32 bits from shared
// memory only along k, but A's may come from registers. TMA rounds A and brings it as it is; consumers
// read its fragments, those of the next half of a step while tensor cores multiply this one.
#pragma once

#include "epilogue/box_store.cuh"
#include "mainloop/wgmma.cuh"
#include "wgmma_registers.cuh"

template <WgmmaTile TILE, bool BATCHED>
struct RegisterOperandMainloop : WgmmaMainloop<Tf32, TILE, AT_BT, BATCHED> {
  using Base = WgmmaMainloop<Tf32, TILE, AT_BT, BATCHED>;
  using typename Base::A;
  using typename Base::B;
  using typename Base::Counter;
  using typename Base::Sums;
  static constexpr int ROW_TILES = Base::ROW_TILES, COUNT = TILE.BN / 2, DEPTH = Base::DEPTH;
  // Each half of a step, of PRODUCTS products along k, has registers of its own.
  static constexpr int HALF = TILE.BK / 2, PRODUCTS = HALF / DEPTH;
  using Fragments = unsigned[PRODUCTS][ROW_TILES][4];

  // As that of `WgmmaMainloop`.
  template <class Call>
  __device__ __forceinline__ void consume(Sums& sums, int first, int steps, Counter& counter,
                                          const Call& loaded) const {
    if (steps == 0) {
      loaded();
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) sums[i][j] = 0.0f;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) leave_undefined(sums[i]);
    Fragments first_half, second_half;
    const unsigned place = place_of_lane(first);
    this->barriers.full[counter.stage].wait(counter.parity);
    read(first_half, shared_address(this->memory.a[counter.stage]) + place, 0);
    int held = counter.stage;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const int stage = counter.stage;
      const unsigned a = shared_address(this->memory.a[stage]) + place;
      const unsigned b = shared_address(this->memory.b[stage]);
      counter.advance();
      multiply(sums, first_half, b, 0, step > 0);
      // The half before has been multiplied: its registers are free, and its stage.
      wgmma_wait<1>();
      if (step > 0) hand_back(held);
      read(second_half, a, HALF);
      multiply(sums, second_half, b, HALF, true);
      wgmma_wait<1>();
      if (step + 1 < steps) {
        this->barriers.full[counter.stage].wait(counter.parity);
        read(first_half, shared_address(this->memory.a[counter.stage]) + place, 0);
      }
      held = stage;
    }
    loaded();
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) wgmma_wait<0>(sums[i]);
    hand_back(held);
  }

 private:
  // Each lane has read its own elements of a stage, which one lane hands back for all of its warp.
  __device__ __forceinline__ void hand_back(int stage) const {
    __syncwarp();
    this->release(stage);
  }

  // Lines of A's tile have 32 neighboring rows at one k. Rows r and r + 8 lie in chunks of 16 bytes whose
  // numbers differ in bit 1, k and k + 4 in lines and, by the swizzle, chunks whose numbers differ in
  // bit 2: exclusive ors with the place of the first.
  static constexpr unsigned EIGHT_ROWS = 2 * 16, FOUR_OF_K = 4 * A::LINE_BYTES | 4 * 16;

  // Where a lane's fragments begin in a tile, for its warpgroup's rows from `first` on. Eight rows take two
  // chunks, which the swizzle exchanges from one k to the next: four lines of both have only half of
  // the banks. So the upper half of a warp, with the second chunk, begins at k + 4.
  static __device__ __forceinline__ unsigned place_of_lane(int first) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, upper = lane / 16;
    const int k = lane % 4 + upper * 4, chunk = warp % 2 * 4 + upper;
    return (first / A::SPAN + warp / 2) * A::BOX_BYTES + k * A::LINE_BYTES + (chunk ^ k) * 16 +
           lane / 4 % 4 * sizeof(float);
  }

  // Reads the fragments of a half that begins at `k`. Shared memory has what TMA has rounded.
  static __device__ __forceinline__ void read(Fragments& to, unsigned place, int k) {
    const bool upper = threadIdx.x % 32 >= 16;
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
        const int apart =
            (k + product * DEPTH) * A::LINE_BYTES + i * WGMMA_ROWS / A::SPAN * A::BOX_BYTES;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned own = place ^ half * EIGHT_ROWS;
          const unsigned first = load_shared<unsigned>(own + apart);
          const unsigned second = load_shared<unsigned>((own ^ FOUR_OF_K) + apart);
          to[product][i][half] = upper ? second : first;
          to[product][i][half + 2] = upper ? first : second;
        }
      }
    }
  }

  // Begins the products of a half.
  static __device__ __forceinline__ void multiply(Sums& sums, Fragments& fragments, unsigned b,
                                                  int k, bool keep) {
    // The compiler must not move what writes them past the fence.
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int v = 0; v < 4; ++v) asm volatile("" : "+r"(fragments[product][i][v])::"memory");
      }
    }
    wgmma_fence();
#pragma unroll
    for (int product = 0; product < PRODUCTS; ++product) {
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
        WgmmaFromRegisters<TILE.BN>::multiply(sums[i], fragments[product][i],
                                              B::descriptor(b, 0, k + product * DEPTH),
                                              keep || product > 0);
      }
    }
    wgmma_commit();
  }
};
