// Parts of the skinny mainloop for 16 bits: vectors of a streamed matrix whose rows begin anywhere, and
// lines of the small one in shared memory.
#pragma once

#include "layout.cuh"
#include "typed.cuh"

// How a kernel goes about the small side, of `side` rows or (`tall`) columns. The streamed matrix is
// contiguous along k (`k_major`) or along the long side; the small one along k (`small_k_major`) or
// along the small side, of which BK steps of k are in shared memory at a time. A block takes BN lines
// along the long side, and vectors of the streamed matrix are `stages` steps ahead of the products.
struct SkinnyMmaTile {
  int side = 0;
  bool tall = false, k_major = false, small_k_major = false;
  int BN = 0, BK = 0, stages = 0;
};

// Elements of a vector. Rows so many apart begin at the same place of one, whatever lies between rows:
// they are a class, of which a block has a warp for each.
constexpr int VECTOR = 8, CLASSES = 8;
// Steps of k that a block makes at once.
constexpr int STEP = 128;

// Reads a vector of a stream: it takes no room in L1, and L2 fetches what lies beside. With `inside`
// false nothing is read and the elements become zero.
__device__ __forceinline__ void read_vector(unsigned (&to)[4], const void* from, bool inside) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = 0;
  if (inside) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
  }
}

// Reads elements `begin` to `end` of a vector, of which the others are zero.
template <class In>
__device__ __forceinline__ void read_part(unsigned (&to)[4], const In* from, int begin, int end) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const In* const pair = from + 2 * i;
    const bool low = begin <= 2 * i && 2 * i < end, high = begin <= 2 * i + 1 && 2 * i + 1 < end;
    to[i] = 0;
    if (low && high) {
      to[i] = *reinterpret_cast<const unsigned*>(pair);
    } else if (low) {
      to[i] = pair[0].bits;
    } else if (high) {
      to[i] = static_cast<unsigned>(pair[1].bits) << 16;
    }
  }
}

// Lines of the small matrix, SIDE of BK steps of k and the VECTOR before them. They are padded so that
// most of a warp's eight lines lie in different banks.
template <class In, int SIDE, int BK>
struct SmallLines {
  static constexpr int LENGTH = VECTOR + BK, PITCH = LENGTH + 2;
  alignas(16) unsigned short bits[SIDE * PITCH];

  // By all THREADS of a block: copies steps from `first` - VECTOR on; past the matrix, zeros.
  template <bool K_MAJOR, int THREADS>
  __device__ __forceinline__ void copy(const In* small, int ld, int lines, int first, int K) {
    constexpr int COUNT = SIDE * LENGTH;
#pragma unroll 16
    for (int i = threadIdx.x; i < COUNT; i += THREADS) {
      const int line = K_MAJOR ? i / LENGTH : i % SIDE, place = K_MAJOR ? i % LENGTH : i / SIDE;
      const int k = first - VECTOR + place;
      const bool inside = line < lines && 0 <= k && k < K;
      const In* const from = K_MAJOR ? element(small, ld, line, k) : element(small, ld, k, line);
      bits[line * PITCH + place] = inside ? from->bits : static_cast<unsigned short>(0);
    }
  }

  // The element `k` steps from the first on. Past the lines there are comes the last one.
  __device__ __forceinline__ unsigned get(int line, int k) const {
    return bits[min(line, SIDE - 1) * PITCH + VECTOR + k];
  }

  // The VECTOR neighbors from there on, in pairs.
  __device__ __forceinline__ void get_vector(unsigned (&pairs)[4], int line, int k) const {
    const int place = min(line, SIDE - 1) * PITCH + VECTOR + k;
    const unsigned* const words = reinterpret_cast<const unsigned*>(bits) + place / 2;
    unsigned low = words[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned high = words[i + 1];
      pairs[i] = __funnelshift_r(low, high, place % 2 * 16);
      low = high;
    }
  }
};
