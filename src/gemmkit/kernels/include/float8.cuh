// Elements of 8 bits, where they are not multiplied as they are: how they become float, how results are
// rounded to them, and how neighbors are moved. By bits where a board has no instruction.
#pragma once

#include "typed.cuh"

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

// To the nearest number of 8 bits, ties to even; what is too large, infinities as well, becomes the largest
// number, and every NaN the same. FRACTION bits of mantissa, exponents from LOWEST on, and the bits of the
// largest number.
template <int FRACTION, int LOWEST, unsigned LARGEST>
struct NarrowedByBits {
  static __device__ __forceinline__ unsigned char of(float x) {
    const unsigned bits = __float_as_uint(x), size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) return 0x7F;
    // Below the normal numbers, adding a power of two rounds to multiples of the smallest number. Above,
    // half a unit in the last place is added that the sum keeps.
    constexpr int CUT = 23 - FRACTION;
    constexpr unsigned NORMAL = (127 + LOWEST) << 23, MAGIC = (127 + LOWEST + CUT) << 23;
    const unsigned tiny = __float_as_uint(__uint_as_float(size) + __uint_as_float(MAGIC)) - MAGIC;
    const unsigned rounded =
        ((size + ((1u << (CUT - 1)) - 1) + (size >> CUT & 1) - NORMAL) >> CUT) + (1u << FRACTION);
    const unsigned found = size < NORMAL ? tiny : min(rounded, LARGEST);
    return static_cast<unsigned char>(bits >> 24 & 0x80 | found);
  }
};

// Two of them in the halves of a word of 16 bits, the first in the lower one.
template <class Out>
__device__ __forceinline__ unsigned short byte_pair(float first, float second);
template <>
__device__ __forceinline__ unsigned short byte_pair<Float8E4M3>(float first, float second) {
  unsigned short both;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
#else
  using Narrow = NarrowedByBits<3, -6, 0x7E>;
  both = static_cast<unsigned short>(Narrow::of(second) << 8 | Narrow::of(first));
#endif
  return both;
}
template <>
__device__ __forceinline__ unsigned short byte_pair<Float8E5M2>(float first, float second) {
  unsigned short both;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
#else
  using Narrow = NarrowedByBits<2, -14, 0x7B>;
  both = static_cast<unsigned short>(Narrow::of(second) << 8 | Narrow::of(first));
#endif
  return both;
}

template <class Out>
struct NarrowedToByte {
  static __device__ __forceinline__ Out of(float x) {
    return {static_cast<unsigned char>(byte_pair<Out>(x, 0.0f))};
  }
};
template <>
struct Narrowed<Float8E4M3> : NarrowedToByte<Float8E4M3> {};
template <>
struct Narrowed<Float8E5M2> : NarrowedToByte<Float8E5M2> {};

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

  __device__ __forceinline__ void store(T* to) const {
    if constexpr (COUNT == 1) {
      *reinterpret_cast<unsigned char*>(to) = static_cast<unsigned char>(words[0]);
    } else if constexpr (COUNT == 2) {
      *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(words[0]);
    } else if constexpr (COUNT == 4) {
      *reinterpret_cast<unsigned*>(to) = words[0];
    } else {
      *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    }
  }

  __device__ __forceinline__ T get(int i) const {
    return {static_cast<unsigned char>(words[i / 4] >> i % 4 * 8)};
  }
  __device__ __forceinline__ void set(int i, T x) {
    words[i / 4] |= static_cast<unsigned>(x.bits) << i % 4 * 8;
  }
};
template <int COUNT>
struct Pack<Float8E4M3, COUNT> : BytePack<Float8E4M3, COUNT> {};
template <int COUNT>
struct Pack<Float8E5M2, COUNT> : BytePack<Float8E5M2, COUNT> {};
