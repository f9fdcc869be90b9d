// The fix-up of tiles whose k is split: each block leaves its partial sums in the workspace, and the
// last one, by the tile's semaphore, adds all of them up in the order of k. No block waits for
// another, and a product has the same bits each time.
#pragma once

#include "tile_io.cuh"

// Counts one more and says how many there were: what this thread and those that have met it at a
// barrier wrote can be read by who counts later, the other way round too. After the last, zero.
__device__ __forceinline__ unsigned count_in(int* counter, int parts) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(parts - 1)
               : "memory");
  return before;
}

// To be called by all threads of each of `parts` blocks when their part is written; true in the
// block that came last, which may then read every part. The counter is back at zero after that.
__device__ __forceinline__ bool is_last_part(int* counter, int parts) {
  __shared__ bool last;
  __syncthreads();  // all of the part is written
  if (threadIdx.x == 0) last = count_in(counter, parts) == parts - 1;
  __syncthreads();
  return last;
}

// In place of an epilogue: sums that go to memory as they are where they are a part, and through
// the epilogue where they are the whole. One store for both: two leave the compiler fewer registers.
template <class Epilogue>
struct PartOrWhole {
  bool part;
  Epilogue epilogue;

  template <int VEC>
  __device__ __forceinline__ void store_vector(float* to, const float* sums, int row,
                                               int col) const {
    if (!part) return epilogue.template store_vector<VEC>(to, sums, row, col);
    // Adding zero changes no number, but no compiler leaves it out. Stored directly, the sums would
    // have to stand in neighboring registers all along, in the same register banks as fragments.
    alignas(16) float x[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) x[v] = sums[v] + 0.0f;
    copy_vector<VEC>(to, x);
  }
};

// Adds up `parts` tiles of BM x BN: the block's threads take quads in turn, read each part's by
// `read(part, quad)`, and give the sum to `take(quad, sum)`.
template <int THREADS, int BM, int BN, class Read, class Take>
__device__ __forceinline__ void add_parts(int parts, const Read& read, const Take& take) {
  constexpr int QUADS = BM * BN / 4, STEPS = (QUADS + THREADS - 1) / THREADS;
  // Quads under way at once, for each takes long to come: CHUNK of a part, and of BATCH parts.
  constexpr int CHUNK = STEPS < 8 ? STEPS : 8, BATCH = (STEPS > 16 ? 32 : 16) / CHUNK;
  // Few quads are added up at once, and their places worked out only now, or they would take
  // registers all along. With more, a thread's sums are slower so.
  constexpr bool AT_ONCE = QUADS == CHUNK * THREADS && CHUNK <= 4;
  const int thread = AT_ONCE ? opaque(threadIdx.x) : threadIdx.x;
  if (AT_ONCE) __builtin_assume(thread >= 0 && thread < THREADS);
#pragma unroll 1
  for (int first_quad = thread; AT_ONCE || first_quad < QUADS; first_quad += CHUNK * THREADS) {
    float4 sums[CHUNK] = {};
#pragma unroll 1
    for (int first = 0; first < parts; first += BATCH) {
      float4 held[BATCH][CHUNK];
#pragma unroll
      for (int b = 0; b < BATCH; ++b) {
#pragma unroll
        for (int c = 0; c < CHUNK; ++c) {
          const int part = first + b, quad = first_quad + c * THREADS;
          held[b][c] = part < parts && (AT_ONCE || quad < QUADS) ? read(part, quad) : float4{};
        }
      }
#pragma unroll
      for (int b = 0; b < BATCH; ++b) {
#pragma unroll
        for (int c = 0; c < CHUNK; ++c) {
          sums[c].x += held[b][c].x, sums[c].y += held[b][c].y;
          sums[c].z += held[b][c].z, sums[c].w += held[b][c].w;
        }
      }
    }
#pragma unroll
    for (int c = 0; c < CHUNK; ++c) {
      const int quad = first_quad + c * THREADS;
      if (AT_ONCE || quad < QUADS) take(quad, sums[c]);
    }
    if (AT_ONCE) break;
  }
}

// Finishes a quad of a BM x BN tile and stores it in C.
template <int BN, int VEC, class Epilogue>
__device__ __forceinline__ void store_quad(int quad, const float4& sum, const Epilogue& epilogue,
                                           float* C, int ldc, int M, int N, int block_row,
                                           int block_col) {
  const int row = block_row + quad / (BN / 4), col = block_col + quad % (BN / 4) * 4;
  alignas(16) const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int v = 0; v < 4; v += VEC) {
    if (row < M && col + v < N) {
      epilogue.template store_vector<VEC>(element(C, ldc, row, col + v), sums + v, row, col + v);
    }
  }
}
