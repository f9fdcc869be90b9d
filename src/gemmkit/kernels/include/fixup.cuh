// Results whose k was cut: the parts of the sums, and how they come together. They are added in the
// order of k whoever does it, so that a product has the same bits each time.
#pragma once

#include "tile_io.cuh"

// Sums of THREADS threads, TM x TN each, kept in memory slot by slot. Within a slot the first quads
// of all threads lie side by side, then their second ones ...: whole lines in both directions, and
// no edges, since a slot holds what lies outside of C too.
template <int THREADS, int TM, int TN>
struct Partials {
  static constexpr int QUADS = TM * TN / 4;
  // Quads under way at once when parts are added: of as many parts, and of each as many, as leave
  // room in the registers.
  static constexpr int BATCH = QUADS < 16 ? 16 / QUADS : 1, CHUNK = QUADS < 16 ? QUADS : 8;

  float* slots;
  const int thread;  // of THREADS

  __device__ __forceinline__ float* quad(int slot, int q) const {
    return slots + (static_cast<long long>(slot) * QUADS + q) * (THREADS * 4) + thread * 4;
  }

  __device__ __forceinline__ void put(const float (&sums)[TM][TN], int slot) const {
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      // Not the sums themselves: a 128-bit store wants four neighbouring registers, and the sums
      // would be multiplied and added in places that suit this store, in the same register banks
      // as the fragments. Adding zero changes no number, but no compiler may leave it out.
      const float* sum = &sums[0][0] + q * 4;
      alignas(16) const float x[4] = {sum[0] + 0.0f, sum[1] + 0.0f, sum[2] + 0.0f, sum[3] + 0.0f};
      copy_vector<4>(quad(slot, q), x);
    }
  }

  // sums = what slot_of(0), slot_of(1) ... slot_of(parts - 1) hold, of which this thread has put
  // slot_of(own) itself. The first two commute, so each of them may stay where it is, in `sums`.
  template <class SlotOf>
  __device__ __forceinline__ void add_up(float (&sums)[TM][TN], int parts, int own,
                                         const SlotOf& slot_of) const {
    if (own > 1) {
#pragma unroll
      for (int i = 0; i < TM * TN; ++i) (&sums[0][0])[i] = 0.0f;
    }
    for (int first = own > 1 ? 0 : 1; first < parts; first += BATCH) {
#pragma unroll
      for (int chunk = 0; chunk < QUADS; chunk += CHUNK) {
        float4 held[BATCH][CHUNK];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
          const int part = first + b, slot = slot_of(own == 1 && part == 1 ? 0 : part);
#pragma unroll
          for (int q = 0; q < CHUNK; ++q) {
            const float4* at = reinterpret_cast<const float4*>(quad(slot, chunk + q));
            held[b][q] = part < parts ? __ldcg(at) : float4{};
          }
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
#pragma unroll
          for (int q = 0; q < CHUNK; ++q) {
            float* sum = &sums[0][0] + (chunk + q) * 4;
            const float4 x = held[b][q];
            sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
          }
        }
      }
    }
  }
};

// The slices of a block (see AsyncTiles) bring their sums together in shared memory, which has room
// for SLICES - 1 tiles: slice 0 then has the sums over all of k.
template <int SLICES, int THREADS, int TM, int TN>
__device__ __forceinline__ void add_slices(float (&sums)[TM][TN], void* shared) {
  if (SLICES == 1) return;
  const int slice = threadIdx.x / THREADS;
  const Partials<THREADS, TM, TN> others{static_cast<float*>(shared),
                                         static_cast<int>(threadIdx.x % THREADS)};
  __syncthreads();  // nobody reads tiles there any more
  if (slice > 0) others.put(sums, slice - 1);
  __syncthreads();
  if (slice > 0) return;
#pragma unroll
  for (int other = 0; other < SLICES - 1; ++other) {
#pragma unroll
    for (int q = 0; q < others.QUADS; ++q) {
      alignas(16) float x[4];
      copy_vector<4>(x, others.quad(other, q));
#pragma unroll
      for (int i = 0; i < 4; ++i) (&sums[0][0])[q * 4 + i] += x[i];
    }
  }
}
