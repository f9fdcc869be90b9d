// How blocks that share a result meet, without one waiting for another: each leaves its part in
// global memory and counts itself in; the last to arrive finds the parts of all.
#pragma once

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
__device__ __forceinline__ bool arrives_last(int* counter, int parts) {
  __shared__ bool last;
  __syncthreads();  // all of the part is written
  if (threadIdx.x == 0) last = count_in(counter, parts) == parts - 1;
  __syncthreads();
  return last;
}
