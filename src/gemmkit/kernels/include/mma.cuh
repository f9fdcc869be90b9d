// mma.sync: a warp multiplies small matrices on the tensor cores, 16 x 8 results at once. Lane number
// 4 g + t holds rows g and g + 8 of A, column g of B, and results in columns 2 t and 2 t + 1.
#pragma once

#include "typed_tiles.cuh"

template <class In>
struct Mma;

// Two numbers of 16 bits a register, neighbours along k. Turing has the half of this shape only.
template <class In, bool BFLOAT>
struct HalfMma {
  using Sum = float;
  using Register = unsigned;
  static constexpr int DEPTH = 16, IN_REGISTER = 2, A_REGISTERS = 4, B_REGISTERS = 2;

  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    if constexpr (BFLOAT) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
          "{%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
#endif
  }
};
template <>
struct Mma<Half> : HalfMma<Half, false> {};
template <>
struct Mma<BFloat16> : HalfMma<BFloat16, true> {};

template <>
struct Mma<double> {
  using Sum = double;
  using Register = double;
  static constexpr int DEPTH = 4, IN_REGISTER = 1, A_REGISTERS = 2, B_REGISTERS = 1;

  static __device__ __forceinline__ void multiply(double (&d)[4], const double (&a)[2],
                                                  const double (&b)[1]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(b[0]));
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(d[2 * half]), "+d"(d[2 * half + 1])
          : "d"(a[half]), "d"(b[0]));
    }
#endif
  }
};

// The tiles of one operand, EXTENT rows of A or columns of B by BK steps of k, on their way to shared
// memory, and how the registers of a fragment are read there. fp64 lies as the sums of `typed` do.
template <class In, int THREADS, int VEC, int EXTENT, int BK, bool ALONG_K>
struct Doubles : TypedFetch<In, double, THREADS, VEC, EXTENT, BK, ALONG_K> {
  using TypedFetch<In, double, THREADS, VEC, EXTENT, BK, ALONG_K>::TypedFetch;
  using Tile = double[BK][EXTENT + 4];

  static __device__ __forceinline__ double read(const Tile& tile, int place, int k) {
    return tile[k][place];
  }
};

// Numbers of 16 bits whose neighbours along k are neighbours in memory stay so. Rows are padded so
// that the eight rows of a fragment lie in different banks.
template <class In, int THREADS, int VEC, int EXTENT, int BK>
struct HalvesAlongK : TypedFetch<In, float, THREADS, VEC, EXTENT, BK, true> {
  using Fetch = TypedFetch<In, float, THREADS, VEC, EXTENT, BK, true>;
  using Fetch::Fetch;
  using Tile = In[EXTENT][BK + 8];

  __device__ __forceinline__ void put(Tile& tile) const {
#pragma unroll
    for (int step = 0; step < Fetch::STEPS; ++step) {
      if (!Fetch::mine(step)) continue;
      this->held[step].store(&tile[Fetch::row(step)][Fetch::col(step)]);
    }
  }
  static __device__ __forceinline__ unsigned read(const Tile& tile, int place, int k) {
    return *reinterpret_cast<const unsigned*>(&tile[place][k]);
  }
};

// Where they are not, a thread takes the same columns of two rows and puts each pair in a word.
template <class In, int THREADS, int VEC, int EXTENT, int BK>
struct HalvesAcrossK {
  using Walk = TypedFetch<In, float, THREADS, VEC, EXTENT, BK / 2, false>;
  using Tile = unsigned[BK / 2][EXTENT + 8];
  static constexpr int CHUNK = VEC < 4 ? VEC : 4;

  const In* first;
  const int ld, inside;
  Pack<In, VEC> held[Walk::STEPS][2];

  __device__ __forceinline__ HalvesAcrossK(const In* tile, int ld, int inside)
      : first(element(tile, ld, 2 * Walk::row(0), Walk::col(0))), ld(ld), inside(inside) {}

  __device__ __forceinline__ void fetch(int depth) {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
      const int k = 2 * Walk::row(step), col = Walk::col(step);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        held[step][odd] = {};
        if (Walk::mine(step) && k + odd < depth && col < inside) {
          const int down = k + odd - 2 * Walk::row(0);
          held[step][odd].load(element(first, ld, down, col - Walk::col(0)));
        }
      }
    }
  }
  __device__ __forceinline__ void advance() { first = element(first, ld, BK, 0); }

  __device__ __forceinline__ void put(Tile& tile) const {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
      if (!Walk::mine(step)) continue;
#pragma unroll
      for (int v = 0; v < VEC; v += CHUNK) {
        alignas(16) unsigned words[CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
          const unsigned low = held[step][0].get(v + i).bits, high = held[step][1].get(v + i).bits;
          words[i] = low | high << 16;
        }
        copy_words(&tile[Walk::row(step)][Walk::col(step) + v], words);
      }
    }
  }
  static __device__ __forceinline__ unsigned read(const Tile& tile, int place, int k) {
    return tile[k / 2][place];
  }

 private:
  static __device__ __forceinline__ void copy_words(unsigned* to, const unsigned (&from)[CHUNK]) {
    if constexpr (CHUNK == 4) {
      *reinterpret_cast<uint4*>(to) = {from[0], from[1], from[2], from[3]};
    } else if constexpr (CHUNK == 2) {
      *reinterpret_cast<uint2*>(to) = {from[0], from[1]};
    } else {
      *to = from[0];
    }
  }
};

template <class In, int THREADS, int VEC, int EXTENT, int BK, bool ALONG_K>
using Halves = Either<ALONG_K, HalvesAlongK<In, THREADS, VEC, EXTENT, BK>,
                      HalvesAcrossK<In, THREADS, VEC, EXTENT, BK>>;

template <class In, int THREADS, int VEC, int EXTENT, int BK, bool ALONG_K>
using MmaOperand =
    Either<sizeof(In) == sizeof(double), Doubles<In, THREADS, VEC, EXTENT, BK, ALONG_K>,
           Halves<In, THREADS, VEC, EXTENT, BK, ALONG_K>>;
