// Parts of the skinny mainloop for 16 bits: vectors of a streamed matrix whose rows begin anywhere, and
// lines of the small one in shared memory.
#pragma once

#include "layout.cuh"
#include "typed.cuh"

// How a kernel goes about the small side, of `side` rows or (`tall`) columns. The streamed matrix is
// contiguous along k (`k_major`) or along the long side; the small one along k (`small_k_major`) or
// along the small side, of which BK steps of k are in shared memory at a time. A block takes BN lines
// along the long side, and vectors of the streamed matrix are up to `stages` steps ahead.
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

// Starts the copy of a vector of a stream to shared memory; with `inside` false nothing is read and the
// elements become zero.
__device__ __forceinline__ void copy_stream(void* shared, const void* global, bool inside) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(inside ? 16 : 0));
}

// The same of elements `begin` to `end` of one vector in each of ROWS rows, of which `rows` are inside,
// from `from(row)` to `to(row)`. cp.async takes the pairs; a pair with one element inside, at either end,
// goes through a register.
template <int ROWS, class In, class From, class To>
__device__ __forceinline__ void copy_ends(const From& from, const To& to, int rows, int begin,
                                          int end) {
  const bool high = begin % 2 == 1, low = end % 2 == 1;
  unsigned first[ROWS], last[ROWS];
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    first[row] = high && row < rows ? static_cast<unsigned>(from(row)[begin].bits) << 16 : 0;
    last[row] = low && row < rows ? from(row)[end - 1].bits : 0;
  }
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
    if (row >= rows) break;
    unsigned* const pairs = to(row);
#pragma unroll
    for (int i = 0; i < VECTOR; i += 2) {
      if ((high && i == begin - 1) || (low && i == end - 1)) continue;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                       static_cast<unsigned>(__cvta_generic_to_shared(pairs + i / 2))),
                   "l"(from(row) + i), "r"(begin <= i && i < end ? 4 : 0));
    }
    if (high) pairs[begin / 2] = first[row];
    if (low) pairs[end / 2] = last[row];
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
#pragma unroll 8
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
