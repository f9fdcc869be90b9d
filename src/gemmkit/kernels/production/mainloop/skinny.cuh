// Parts of the skinny mainloop: reading what nobody reads again, and adding up what lanes hold.
#pragma once

#include "cp_async.cuh"

// How a kernel goes about the small side, of `side` rows or (`tall`) columns. The streamed matrix is
// contiguous along k (`k_major`) or along the long side; the small one along k (`small_k_major`) or
// along the small side. Lines of it along k may be `staged` in shared memory. Pieces of the streamed
// matrix on their way are there too, in a `ring`, or in registers. A block takes BN results along
// the long side and BK steps of k, a warp WN neighbors of a row of the streamed matrix.
struct SkinnyTile {
  int side = 0;
  bool tall = false, k_major = false, small_k_major = false, staged = false, ring = false;
  int BN = 0, BK = 0, WN = 0, stages = 0;
  int pad = 0;  // floats behind each staged column
  int threads = 0;
};

// Reads VEC floats (1 or 4) of a stream: they take no room in L1, and L2 fetches what lies beside.
// With `inside` false nothing is read and the floats become zero.
template <int VEC>
__device__ __forceinline__ void read_once(float* to, const float* from, bool inside) {
#pragma unroll
  for (int i = 0; i < VEC; ++i) to[i] = 0.0f;
  if (!inside) return;
  if (VEC == 4) {
    float4& v = *reinterpret_cast<float4*>(to);
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from));
  } else {
    *to = __ldg(from);
  }
}

// Reads VEC floats that other warps read too, through L1. All kinds are volatile so that they stay
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

// Reads VEC floats of shared memory. In assembly, because NVRTC 13 puts plain loads together into
// vectors anew, and from one compilation to the next it may read two of the floats twice.
template <int VEC>
__device__ __forceinline__ void read_shared(float* to, const float* from) {
  if (VEC == 4) {
    float4& v = *reinterpret_cast<float4*>(to);
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(from))));
  } else {
    *to = *from;
  }
}

// How THREADS threads copy SIDE lines along k of the small matrix to shared memory. `first` is where
// a thread begins in global memory. `copy` starts its copies; past the `lines` there are and the
// `k_left` floats of each, zeros. `place` is where floats of a line are in a stage of SIZE floats:
// the k-th and those behind, shifted by `lane_k`.
template <bool PER_WARP, bool K_MAJOR, int THREADS, int SIDE, int LENGTH, int VEC, int PAD>
struct StagedLines;

// The block copies LENGTH floats of each line for all its warps: one by one where lines are columns
// in memory, which turns them, else VEC at a time.
template <bool K_MAJOR, int THREADS, int SIDE, int LENGTH, int VEC, int PAD>
struct StagedLines<false, K_MAJOR, THREADS, SIDE, LENGTH, VEC, PAD> {
  static constexpr int PITCH = LENGTH + PAD, SIZE = SIDE * PITCH;

  static __device__ __forceinline__ const float* first(const float* matrix, int ld, int k) {
    return K_MAJOR ? matrix + k : element(matrix, ld, k, 0);
  }
  static __device__ __forceinline__ void copy(float* to, const float* from, int ld, int lines,
                                              int k_left) {
    constexpr int WIDTH = K_MAJOR ? VEC : 1, VECTORS = LENGTH / WIDTH;
#pragma unroll 4
    for (int i = threadIdx.x; i < SIDE * VECTORS; i += THREADS) {
      const int line = K_MAJOR ? i / VECTORS : i % SIDE;
      const int k = K_MAJOR ? i % VECTORS * WIDTH : i / SIDE;
      const float* const source = K_MAJOR ? element(from, ld, line, k) : element(from, ld, k, line);
      cp_async<WIDTH>(to + line * PITCH + k, source, k < k_left && line < lines);
    }
  }
  static __device__ __forceinline__ int place(int line, int k, int lane_k) {
    return line * PITCH + k + lane_k;
  }
};

// Each warp copies its own LENGTH floats of each line, VEC at a time. Its vectors are in the order
// of lanes and those of a thread THREADS vectors apart, so that one address serves for all. With
// two pieces per thread, LENGTH is 32 where a warp reads 32 columns: whole lines of the cache.
template <int THREADS, int SIDE, int LENGTH, int VEC, int PAD>
struct StagedLines<true, true, THREADS, SIDE, LENGTH, VEC, PAD> {
  static constexpr int WARP = 32 * VEC, TIMES = (SIDE * LENGTH + WARP - 1) / WARP;
  static constexpr int SIZE = TIMES * THREADS * VEC;

  // Which line a lane begins with, and where in it.
  static __device__ __forceinline__ int own_line() { return threadIdx.x % 32 * VEC / LENGTH; }
  static __device__ __forceinline__ int own_k() { return threadIdx.x % 32 * VEC % LENGTH; }

  static __device__ __forceinline__ const float* first(const float* matrix, int ld, int k) {
    return element(matrix, ld, own_line(), k + own_k());
  }
  static __device__ __forceinline__ void copy(float* to, const float* from, int ld, int lines,
                                              int k_left) {
    const int lines_left = lines - own_line(), own_left = k_left - own_k();
#pragma unroll
    for (int time = 0; time < TIMES; ++time) {
      const int line = time * WARP / LENGTH, k = time * WARP % LENGTH;
      if (SIDE * LENGTH % WARP == 0 || own_line() < SIDE - line) {
        cp_async<VEC>(to + (time * THREADS + threadIdx.x) * VEC, element(from, ld, line, k),
                      line < lines_left && k < own_left);
      }
    }
  }
  // `lane_k` never leads from one of the warp's rows of vectors to the next.
  static __device__ __forceinline__ int place(int line, int k, int lane_k) {
    const int number = line * LENGTH + k;
    return (number / WARP * THREADS + threadIdx.x / 32 * 32) * VEC + number % WARP + lane_k;
  }
};

// Adds to four sums of each line its product with a piece, of which the columns are along k where it
// is K_MAJOR, and else the rows.
template <bool K_MAJOR, int SMALL>
__device__ __forceinline__ void multiply_piece(float* sums, const float (&line)[SMALL][4],
                                               const float (&piece)[4][4]) {
#pragma unroll
  for (int s = 0; s < SMALL; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[4 * s + (K_MAJOR ? i : j)] += line[s][K_MAJOR ? j : i] * piece[i][j];
      }
    }
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
