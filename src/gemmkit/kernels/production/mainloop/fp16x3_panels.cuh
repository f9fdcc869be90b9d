// The mainloop of `fp16x3.cuh` for operands whose parts lie in panels of 32 along k, those of many
// matrices in one tensor map: lines of 128 bytes, of which a panel has one for each row or column.
#pragma once

#include "mainloop/fp16x3.cuh"

// The panels of a matrix: `count` of them, of so many lines each, from line `first` of the map on.
struct Panels {
  int first, lines, count;
};

template <WgmmaTile TILE>
struct Fp16x3PanelsMainloop : Fp16x3Mainloop<TILE, false> {
  using Base = Fp16x3Mainloop<TILE, false>;
  using typename Base::A;
  using typename Base::B;
  using typename Base::Counter;

  // As that of `WgmmaMainloop`, of the tile that begins at a row of A and a column of B.
  __device__ __forceinline__ void produce_panels(const TensorMap& map_a, const TensorMap& map_b,
                                                 const Panels& a, const Panels& b, int row, int col,
                                                 int steps, Counter& counter) const {
    for (int step = 0; step < steps; ++step, counter.advance()) {
      const int stage = counter.stage;
      this->barriers.empty[stage].wait(counter.parity ^ 1);
      Barrier& full = this->barriers.full[stage];
      full.arrive_expecting(A::BYTES + B::BYTES);
      load_panels<A, TILE.BM, TILE.cluster_n>(this->memory.a[stage], map_a, a, row, step, full,
                                              this->along_n, this->row_mask());
      load_panels<B, TILE.BN, TILE.cluster_m>(this->memory.b[stage], map_b, b, col, step, full,
                                              this->along_m, this->column_mask());
    }
  }

 private:
  // Loads this block's part of the panels of a step, of which SHARED_BY blocks of the cluster have the
  // same. Lines past the end of the matrix are those of another: they count for no result. There is no
  // such panel past the end of k: in front of the map, all is zero.
  template <class Operand, int EXTENT, int SHARED_BY>
  static __device__ __forceinline__ void load_panels(const void* tile, const TensorMap& map,
                                                     const Panels& its, int first, int step,
                                                     const Barrier& full, int part,
                                                     unsigned short mask) {
    constexpr int LINES = EXTENT / SHARED_BY;
    const unsigned to = shared_address(tile);
    const int line = part * LINES;
#pragma unroll
    for (int box = 0; box < Operand::BOXES; ++box) {
      const int panel = step * Operand::BOXES + box;
      const int from = panel < its.count ? its.first + panel * its.lines + first + line : -LINES;
      tma_load<false, (SHARED_BY > 1)>(to + box * Operand::BOX_BYTES + line * Operand::LINE_BYTES,
                                       map, {0, from, 0}, full, mask);
    }
  }
};
