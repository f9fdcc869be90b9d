// Lines of an fp32 operand, rows of A or columns of B, as two fp16 parts each: x 2^s = high + low.
//
// 2^s brings the largest element of a line to [2^14, 2^15). The parts of 32 neighbors along k lie one
// behind the other: 64 bytes of `high`, then 64 bytes of `low`. Past the end of k there are zeros.
// `exponents` receives -s of each line, or SPECIAL where an element is infinite or NaN.
#pragma once

#include "cluster.cuh"
#include "epilogue/line_scales.cuh"
#include "typed.cuh"

constexpr int GROUP = 32, PART = 8, WARPS = 8, LARGEST_EXPONENT = 14;

// The power of two by which a line is multiplied.
struct LineScale {
  float first, second;  // its factors: a single float does not reach as far
  int exponent;

  // From the bits of the largest absolute value, which order as the values do.
  __device__ __forceinline__ explicit LineScale(unsigned largest) {
    constexpr int BIAS = 127, MANTISSA = 23;
    const int stored = largest >> MANTISSA;
    // Of subnormal numbers, the highest bit that is set.
    const int own = stored ? stored - BIAS : 31 - __clz(largest) - (BIAS - 1 + MANTISSA);
    exponent = largest == 0 ? 0 : LARGEST_EXPONENT - own;
    const int near = min(exponent, BIAS);
    first = power_of_two(near);
    second = power_of_two(exponent - near);
    if (stored == 255) exponent = SPECIAL;
  }
  __device__ __forceinline__ float operator()(float x) const { return x * first * second; }
  __device__ __forceinline__ int stored() const {
    return exponent == SPECIAL ? SPECIAL : -exponent;
  }
};

// Stores a number at its place in the shared memory of another block of the cluster.
__device__ __forceinline__ void store_at_peer(unsigned* place, unsigned number, int rank) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(peer_address(place, rank)), "r"(number)
               : "memory");
}

// As `cluster_arrive`, but it also orders earlier accesses to the shared memory of peers.
__device__ __forceinline__ void cluster_arrive_released() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }

// Both parts of neighbors along k.
struct Parts {
  Pack<Half, PART> high, low;

  __device__ __forceinline__ Parts(const float (&x)[PART], const LineScale& scale) {
#pragma unroll
    for (int i = 0; i < PART; ++i) {
      const float scaled = scale(x[i]);
      const Half part = Narrowed<Half>::of(scaled);
      high.set(i, part);
      low.set(i, Narrowed<Half>::of(scaled - widened<float>(part)));
    }
  }
};

// Neighbors from `k` on of a line whose elements are contiguous; past its end zeros.
__device__ __forceinline__ void load_along(const float* line, int k, int K, bool vectors,
                                           float (&x)[PART]) {
  if (vectors && k + PART <= K) {
#pragma unroll
    for (int i = 0; i < PART; i += 4) {
      const float4 found = *reinterpret_cast<const float4*>(line + k + i);
      x[i] = found.x, x[i + 1] = found.y, x[i + 2] = found.z, x[i + 3] = found.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < PART; ++i) x[i] = k + i < K ? line[k + i] : 0.0f;
  }
}

// Parts of a matrix lie in lines, `ld_to` elements apart; or, in PANELS, those of 32 of k of all `panel`
// lines come before those of the next 32.

// Lines whose elements are contiguous. `sharing` warps have one, and of it up to 32 elements per lane in
// registers; longer lines are read twice.
template <bool PANELS>
__device__ __forceinline__ void split_along(const float* from, long long ld, Half* to,
                                            int* exponents, int lines, int K, long long ld_to,
                                            int block, int blocks, int sharing,
                                            long long panel = 0) {
  constexpr int HELD = 4;
  __shared__ unsigned largest_of[WARPS];
  const int lane = threadIdx.x, warp = threadIdx.y, together = WARPS / sharing;
  const int mine = warp % sharing, step = sharing * 32 * PART;
  const bool vectors = (reinterpret_cast<unsigned long long>(from) | ld * sizeof(float)) % 16 == 0;
  for (int first = block * together; first < lines; first += blocks * together) {
    const int line = first + warp / sharing;
    const bool inside = line < lines;
    const float* const own = from + (inside ? line : 0) * ld;
    float x[HELD][PART];
    const auto load = [&](int k) {
#pragma unroll
      for (int i = 0; i < HELD; ++i) {
        load_along(own, k + i * step, inside ? K : 0, vectors, x[i]);
      }
    };
    unsigned largest = 0;
    // Also what lies past the end of k, up to a whole group: it is stored.
    for (int k = (mine * 32 + lane) * PART; 2 * k < ld_to; k += HELD * step) {
      load(k);
#pragma unroll
      for (int i = 0; i < HELD; ++i) {
#pragma unroll
        for (int j = 0; j < PART; ++j) largest = max(largest, magnitude(x[i][j]));
      }
    }
    largest = __reduce_max_sync(~0u, largest);
    if (sharing > 1) {
      __syncthreads();
      if (lane == 0) largest_of[warp] = largest;
      __syncthreads();
      for (int i = 0; i < sharing; ++i) largest = max(largest, largest_of[warp - mine + i]);
    }
    if (!inside) continue;
    const LineScale scale{largest};
    if (lane == 0 && mine == 0) exponents[line] = scale.stored();
    for (int k = (mine * 32 + lane) * PART; 2 * k < ld_to; k += HELD * step) {
      if (K > HELD * step) load(k);
#pragma unroll
      for (int i = 0; i < HELD; ++i) {
        const int at = k + i * step;
        if (2 * at < ld_to) {
          const Parts parts{x[i], scale};
          Half* const place = PANELS ? to + (at / GROUP * panel + line) * (2 * GROUP) + at % GROUP
                                     : to + line * ld_to + at / GROUP * 2 * GROUP + at % GROUP;
          parts.high.store(place);
          parts.low.store(place + GROUP);
        }
      }
    }
  }
}

// Lines that lie side by side: the blocks of a cluster share the k of 32, of which each thread has 32
// elements in registers; longer lines are read twice.
template <bool PANELS, int CLUSTER>
__device__ __forceinline__ void split_across(const float* from, long long ld, Half* to,
                                             int* exponents, int lines, int K, long long ld_to,
                                             int block, int blocks, long long panel = 0) {
  __shared__ unsigned largest_of[WARPS][32], largest_in[CLUSTER][32];
  constexpr int CHUNKS = 2 * GROUP / PART;
  __shared__ alignas(16) Pack<Half, PART> turned[WARPS][32][CHUNKS];
  const int lane = threadIdx.x, warp = threadIdx.y, rank = CLUSTER > 1 ? block % CLUSTER : 0;
  constexpr int STEP = CLUSTER * WARPS * GROUP;
  for (int first = block / CLUSTER * 32; first < lines; first += blocks / CLUSTER * 32) {
    const int line = first + lane;
    const bool inside = line < lines;
    const float* const own = from + line;
    float x[GROUP / PART][PART];
    const auto load = [&](int k) {
#pragma unroll
      for (int i = 0; i < GROUP; ++i) {
        x[i / PART][i % PART] = inside && k + i < K ? own[(k + i) * ld] : 0.0f;
      }
    };
    // Peers are there, and have read what they were sent for the lines before.
    if constexpr (CLUSTER > 1) cluster_arrive_released();
    unsigned largest = 0;
    for (int k = (rank * WARPS + warp) * GROUP; k < K; k += STEP) {
      load(k);
#pragma unroll
      for (int i = 0; i < GROUP; ++i) largest = max(largest, magnitude(x[i / PART][i % PART]));
    }
    largest_of[warp][lane] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) largest = max(largest, largest_of[i][lane]);
    if constexpr (CLUSTER > 1) {
      cluster_wait();
      if (warp < CLUSTER) store_at_peer(&largest_in[rank][lane], largest, warp % CLUSTER);
      cluster_arrive_released();
      cluster_wait();
#pragma unroll
      for (int i = 0; i < CLUSTER; ++i) largest = max(largest, largest_in[i][lane]);
    }
    const LineScale scale{largest};
    if (inside && warp == 0 && rank == 0) exponents[line] = scale.stored();
    for (int k = (rank * WARPS + warp) * GROUP; k < K; k += STEP) {
      if (K > STEP) load(k);
      // Through shared memory, so that neighboring lanes store neighbors: a lane's chunks change places
      // as those of a swizzled tile.
      Pack<Half, PART>(&lines_of)[32][CHUNKS] = turned[warp];
      __syncwarp();
#pragma unroll
      for (int part = 0; part < GROUP / PART; ++part) {
        const Parts parts{x[part], scale};
        lines_of[lane][part ^ lane % CHUNKS] = parts.high;
        lines_of[lane][(part + GROUP / PART) ^ lane % CHUNKS] = parts.low;
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 32; i += 32 / CHUNKS) {
        const int other = i + lane / CHUNKS, chunk = lane % CHUNKS;
        if (first + other < lines) {
          Half* const place = PANELS ? to + (k / GROUP * panel + first + other) * (2 * GROUP)
                                     : to + (first + other) * ld_to + 2 * k;
          lines_of[other][chunk ^ other % CHUNKS].store(place + chunk * PART);
        }
      }
    }
    // The warps of this block have read what they left each other.
    if constexpr (CLUSTER == 1) __syncthreads();
  }
}
