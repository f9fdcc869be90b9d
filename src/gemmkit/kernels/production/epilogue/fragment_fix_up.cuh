// The fix-up of tiles whose k is split, where sums are a tensor core's fragments: a block that is not
// the last leaves its partial sums in the workspace, and the last one adds the others' to its own, which
// stay in registers. They are added in the order of k, so that a product has the same bits each time.
#pragma once

#include "cp_async.cuh"
#include "epilogue/fix_up.cuh"
#include "typed.cuh"

// How many blocks have counted in so far. What they wrote is not ordered by this: `is_last_part` is.
__device__ __forceinline__ unsigned counted_in(const int* counter) {
  unsigned count;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}

// Partial sums of a block of so many threads, in quads of 16 bytes: neighboring threads have neighboring
// quads. The other parts come by way of SHARED_BYTES of shared memory: fewer could be under way in
// registers, and to wait for each takes longer than to move it.
template <int THREADS, int SHARED_BYTES, class Sum, int ROWS, int COLS>
struct FragmentParts {
  using Sums = Sum[ROWS][COLS][4];
  static constexpr int IN_QUAD = 16 / sizeof(Sum), QUADS = ROWS * COLS * 4 / IN_QUAD;
  using Quad = Pack<Sum, IN_QUAD>;
  // Quads of a part that a thread copies and adds at a time, and room in shared memory for so many.
  static constexpr int CHUNK = QUADS > 16 ? 8 : QUADS < 4 ? QUADS : 4;
  static constexpr int FITTING = SHARED_BYTES / (CHUNK * THREADS * 16);
  static constexpr int SLOTS = FITTING < 8 ? FITTING : 8;
  static_assert(SLOTS >= 2, "one chunk is added while another is copied");

  static __device__ __forceinline__ void put(Sums& sums, float* part) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      Quad own;
#pragma unroll
      for (int j = 0; j < IN_QUAD; ++j) own.set(j, sum(sums, i, j));
      own.store(reinterpret_cast<Sum*>(part + place(i)));
    }
  }

  // Makes `sums`, which are part `mine` of `parts`, those of all; `part(i)` says where another is. A thread
  // reads nothing in `shared` but what it has copied there itself.
  template <class Part>
  static __device__ __forceinline__ void add(Sums& sums, int mine, int parts, const Part& part,
                                             float* shared) {
    int chunk = 0, other = 0, slot = 0;  // to be copied next
    const auto copy = [&] {
      if (other == mine) ++other;
      if (other == parts) ++chunk, other = mine == 0;
      const float* const from = part(other) + chunk * (CHUNK * THREADS * 4);
#pragma unroll
      for (int c = 0; c < CHUNK; ++c) {
        if (chunk * CHUNK < QUADS) {
          cp_async<4>(shared + slot * (CHUNK * THREADS * 4) + place(c), from + place(c), true);
        }
      }
      cp_async_commit();
      ++other, slot = slot + 1 < SLOTS ? slot + 1 : 0;
    };
    for (int i = 0; i < SLOTS - 1; ++i) copy();
    int arrived = 0;
#pragma unroll
    for (int first = 0; first < QUADS; first += CHUNK) {
      Sum total[CHUNK][IN_QUAD] = {};
#pragma unroll 1
      for (int i = 0; i < parts; ++i) {
        if (i == mine) {
#pragma unroll
          for (int c = 0; c < CHUNK; ++c) {
#pragma unroll
            for (int j = 0; j < IN_QUAD; ++j) total[c][j] += sum(sums, first + c, j);
          }
          continue;
        }
        cp_async_wait<SLOTS - 2>();
        copy();  // to the slot that was added before
        const float* const from = shared + arrived * (CHUNK * THREADS * 4);
        arrived = arrived + 1 < SLOTS ? arrived + 1 : 0;
#pragma unroll
        for (int c = 0; c < CHUNK; ++c) {
          Quad held;
          held.load(reinterpret_cast<const Sum*>(from + place(c)));
#pragma unroll
          for (int j = 0; j < IN_QUAD; ++j) total[c][j] += held.get(j);
        }
      }
#pragma unroll
      for (int c = 0; c < CHUNK; ++c) {
#pragma unroll
        for (int j = 0; j < IN_QUAD; ++j) sum(sums, first + c, j) = total[c][j];
      }
    }
    cp_async_wait<0>();
  }

 private:
  static __device__ __forceinline__ int place(int quad) {
    return (quad * THREADS + threadIdx.x) * 4;
  }
  static __device__ __forceinline__ Sum& sum(Sums& sums, int quad, int i) {
    const int at = quad * IN_QUAD + i;
    return sums[at / 4 / COLS][at / 4 % COLS][at % 4];
  }
};

// To be called by all threads of each of the `parts` blocks that share a tile, of which this one has
// part `mine`; true in the one that came last, whose `sums` are then those of all. `shared` memory is
// used after a barrier.
template <int THREADS, int SHARED_BYTES, class Sum, int ROWS, int COLS, class Part>
__device__ __forceinline__ bool fix_up(Sum (&sums)[ROWS][COLS][4], int mine, int parts,
                                       int* counter, const Part& part, void* shared) {
  using Parts = FragmentParts<THREADS, SHARED_BYTES, Sum, ROWS, COLS>;
  __shared__ bool others_came;
  if (threadIdx.x == 0) others_came = counted_in(counter) == parts - 1;
  __syncthreads();
  if (!others_came) Parts::put(sums, part(mine));
  if (!is_last_part(counter, parts)) return false;
  Parts::add(sums, mine, parts, part, static_cast<float*>(shared));
  return true;
}
