// Parts of skinny products: reading what nobody reads again, and adding up what lanes hold.
#pragma once

#include "cp_async.cuh"

// Reads VEC floats (1 or 4) of a stream: they take no room in L1, and L2 fetches what lies beside.
template <int VEC>
__device__ __forceinline__ void read_once(float* to, const float* from) {
  if (VEC == 4) {
    float4& v = *reinterpret_cast<float4*>(to);
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from));
  } else {
    *to = __ldg(from);
  }
}

// Reads VEC floats that other warps read too, through L1. Both kinds are volatile so that they stay
// where they are written: ahead of the arithmetic.
template <int VEC>
__device__ __forceinline__ void read_cached(float* to, const float* from) {
  if (VEC == 4) {
    float4& v = *reinterpret_cast<float4*>(to);
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from));
  } else {
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(*to) : "l"(from));
  }
}

// Starts the block's copies of SIDE lines along k, PITCH floats apart in shared memory; past the
// `lines` there are and the `k_left` floats of each, zeros. ACROSS says that lines lie next to each
// other in global memory, as columns do.
template <int THREADS, int SIDE, int LENGTH, int PITCH, bool ACROSS>
__device__ __forceinline__ void copy_lines(float* to, const float* from, int ld, int lines,
                                           int k_left) {
#pragma unroll 4
  for (int i = threadIdx.x; i < SIDE * LENGTH; i += THREADS) {
    const int line = ACROSS ? i % SIDE : i / LENGTH, k = ACROSS ? i / SIDE : i % LENGTH;
    cp_async<1>(to + line * PITCH + k, element(from, ld, ACROSS ? k : line, ACROSS ? line : k),
                k < k_left && line < lines);
  }
}

// Adds up COUNT sums each of LANES lanes that stand STRIDE apart: in each step a lane keeps one half
// of its sums, gives the other away and adds what it gets. Returns which sum the lane's first is.
template <int LANES, int STRIDE, int COUNT>
__device__ __forceinline__ int reduce_lanes(float* sums) {
  constexpr int DISTANCE = LANES / 2 * STRIDE, HALF = COUNT / 2;
  if constexpr (LANES == 1) {
    return 0;
  } else if constexpr (COUNT == 1) {
    sums[0] += __shfl_xor_sync(~0u, sums[0], DISTANCE);
    return reduce_lanes<LANES / 2, STRIDE, 1>(sums);
  } else {
    const bool upper = threadIdx.x & DISTANCE;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float given = upper ? sums[i] : sums[i + HALF];
      sums[i] = (upper ? sums[i + HALF] : sums[i]) + __shfl_xor_sync(~0u, given, DISTANCE);
    }
    return (upper ? HALF : 0) + reduce_lanes<LANES / 2, STRIDE, HALF>(sums);
  }
}

// The block adds up `count` arrays of RESULTS sums, in their order, and hands on each result.
template <int THREADS, int RESULTS, class Use>
__device__ __forceinline__ void add_up(const float* arrays, int count, const Use& use) {
  for (int place = threadIdx.x; place < RESULTS; place += THREADS) {
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < count; ++i) sum += arrays[i * RESULTS + place];
    use(place, sum);
  }
}
