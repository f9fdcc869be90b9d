// Types of matrix elements besides float and double, and conversions between all of them. They are
// written without CUDA's headers, which NVRTC would have to find and read.
#pragma once

// IEEE's binary16.
struct Half {
  unsigned short bits;
};

// The upper half of a float.
struct BFloat16 {
  unsigned short bits;
};

// Numbers of 8 bits: with 4 of exponent and 3 of mantissa, and with 5 and 2. See float8.cuh.
struct Float8E4M3 {
  unsigned char bits;
};
struct Float8E5M2 {
  unsigned char bits;
};

// Sum: float or double.
template <class Sum>
__device__ __forceinline__ Sum widened(float x) {
  return x;
}
template <class Sum>
__device__ __forceinline__ Sum widened(double x) {
  return static_cast<Sum>(x);
}
template <class Sum>
__device__ __forceinline__ Sum widened(Half x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
template <class Sum>
__device__ __forceinline__ Sum widened(BFloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

// To the nearest number of a type, ties to even; each rounds once.
template <class Out>
struct Narrowed {
  template <class Sum>
  static __device__ __forceinline__ Out of(Sum x) {
    return static_cast<Out>(x);
  }
};
template <>
struct Narrowed<Half> {
  static __device__ __forceinline__ Half of(float x) {
    Half narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
  }
  static __device__ __forceinline__ Half of(double x) {
    Half narrow;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(narrow.bits) : "d"(x));
    return narrow;
  }
};
template <>
struct Narrowed<BFloat16> {
  static __device__ __forceinline__ BFloat16 of(float x) {
    BFloat16 narrow;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
#else
    const unsigned bits = __float_as_uint(x);
    const unsigned rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    narrow.bits = static_cast<unsigned short>(x == x ? rounded : 0x7FFF);
#endif
    return narrow;
  }
  // By way of the float that has an odd last bit where x has more: it remembers on which side of a
  // tie x lies (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
  static __device__ __forceinline__ BFloat16 of(double x) {
    const float cut = __double2float_rz(x);
    const bool inexact = static_cast<double>(cut) != x;
    return of(__uint_as_float(__float_as_uint(cut) | inexact));
  }
};

// COUNT neighbors in memory, moved in accesses of up to 16 bytes. They stay as they are in
// memory, in whole registers, until they are asked for: as numbers of 16 bits the compiler would
// take them apart right after the load, and wait for it there.
template <class T, int COUNT>
struct Pack {
  static constexpr int BYTES = COUNT * sizeof(T);
  static constexpr int WORDS = BYTES < 4 ? 1 : BYTES / 4;
  unsigned words[WORDS] = {};

  __device__ __forceinline__ void load(const T* from) {
    if constexpr (BYTES == 2) {
      words[0] = *reinterpret_cast<const unsigned short*>(from);
    } else if constexpr (BYTES == 4) {
      words[0] = *reinterpret_cast<const unsigned*>(from);
    } else if constexpr (BYTES == 8) {
      const uint2 found = *reinterpret_cast<const uint2*>(from);
      words[0] = found.x, words[1] = found.y;
    } else {
#pragma unroll
      for (int i = 0; i < WORDS; i += 4) {
        const uint4 found = reinterpret_cast<const uint4*>(from)[i / 4];
        words[i] = found.x, words[i + 1] = found.y;
        words[i + 2] = found.z, words[i + 3] = found.w;
      }
    }
  }

  __device__ __forceinline__ void store(T* to) const {
    if constexpr (BYTES == 2) {
      *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(words[0]);
    } else if constexpr (BYTES == 4) {
      *reinterpret_cast<unsigned*>(to) = words[0];
    } else if constexpr (BYTES == 8) {
      *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    } else {
#pragma unroll
      for (int i = 0; i < WORDS; i += 4) {
        reinterpret_cast<uint4*>(to)[i / 4] = {words[i], words[i + 1], words[i + 2], words[i + 3]};
      }
    }
  }

  __device__ __forceinline__ T get(int i) const {
    if constexpr (sizeof(T) == 2) {
      return {static_cast<unsigned short>(words[i / 2] >> i % 2 * 16)};
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words[i]);
    } else {
      return __hiloint2double(words[2 * i + 1], words[2 * i]);
    }
  }

  // Elements are set once each, onto zeros.
  __device__ __forceinline__ void set(int i, T x) {
    if constexpr (sizeof(T) == 2) {
      words[i / 2] |= static_cast<unsigned>(x.bits) << i % 2 * 16;
    } else if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(x);
    } else {
      words[2 * i] = __double2loint(x), words[2 * i + 1] = __double2hiint(x);
    }
  }
};
