// Which mainloop multiplies operands of 8 bits, both along k, for the kernels of single products and of
// groups.
#pragma once

#include "mainloop/promoted.cuh"

// What adds up products: OVERLAPPED ones are promoted while tensor cores make the next.
enum class Sums { PROMOTED, OF_TENSOR_CORES, OVERLAPPED };

template <class In, Sums SUMS>
struct AlongK {
  template <WgmmaTile TILE, Layout, bool BATCHED>
  using Promoted = Either<SUMS == Sums::OVERLAPPED, OverlappedMainloop<In, TILE, BATCHED>,
                          PromotedMainloop<In, TILE, BATCHED>>;
  template <WgmmaTile TILE, Layout LAYOUT, bool BATCHED>
  using Mainloop = Either<SUMS == Sums::OF_TENSOR_CORES, WgmmaMainloop<In, TILE, A_BT, BATCHED>,
                          Promoted<TILE, LAYOUT, BATCHED>>;
};

// The same with scales of A and B.
template <class In, Sums SUMS, Scales SCALES>
struct ScaledAlongK {
  template <WgmmaTile TILE, Layout LAYOUT, bool BATCHED>
  using Plain = typename AlongK<In, SUMS>::template Mainloop<TILE, LAYOUT, BATCHED>;
  template <WgmmaTile TILE, Layout LAYOUT, bool BATCHED>
  using Mainloop = Either<SCALES.of_chunks, Plain<TILE, LAYOUT, BATCHED>,
                          LineScaledMainloop<Plain<TILE, LAYOUT, BATCHED>>>;
};
