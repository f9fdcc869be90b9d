// Elements of 8 bits, the types of wgmma.cuh, where they are widened instead of multiplied as they are:
// how they become float, and how neighbors are moved. By bits, so that every board can.
#pragma once

#include "wgmma.cuh"

// Of 4 bits of exponent with a bias of 7 and 3 of mantissa: put in the places of a float's they lack
// its larger bias, subnormal numbers as well. There are no infinities, and one NaN of each sign.
template <class Sum>
__device__ __forceinline__ Sum widened(Float8E4M3 x) {
  const unsigned size = x.bits & 0x7F, sign = (x.bits & 0x80u) << 24;
  return size == 0x7F ? __uint_as_float(sign | 0x7FC00000)
                      : __uint_as_float(sign | size << 20) * 0x1p120f;
}
// The upper half of an IEEE binary16.
template <class Sum>
__device__ __forceinline__ Sum widened(Float8E5M2 x) {
  return widened<Sum>(Half{static_cast<unsigned short>(x.bits << 8)});
}

// COUNT neighbors in memory, up to 8: see `Pack` in typed.cuh.
template <class T, int COUNT>
struct BytePack {
  static_assert(sizeof(T) == 1 && COUNT <= 8 && (COUNT & (COUNT - 1)) == 0, "in one access");
  static constexpr int WORDS = (COUNT + 3) / 4;
  unsigned words[WORDS] = {};

  __device__ __forceinline__ void load(const T* from) {
    if constexpr (COUNT == 1) {
      words[0] = *reinterpret_cast<const unsigned char*>(from);
    } else if constexpr (COUNT == 2) {
      words[0] = *reinterpret_cast<const unsigned short*>(from);
    } else if constexpr (COUNT == 4) {
      words[0] = *reinterpret_cast<const unsigned*>(from);
    } else {
      const uint2 found = *reinterpret_cast<const uint2*>(from);
      words[0] = found.x, words[1] = found.y;
    }
  }

  __device__ __forceinline__ T get(int i) const {
    return {static_cast<unsigned char>(words[i / 4] >> i % 4 * 8)};
  }
};
template <int COUNT>
struct Pack<Float8E4M3, COUNT> : BytePack<Float8E4M3, COUNT> {};
template <int COUNT>
struct Pack<Float8E5M2, COUNT> : BytePack<Float8E5M2, COUNT> {};
