// How blocks that share a result meet, without one waiting for another: each leaves its part in
// global memory and counts itself in; the last to arrive finds the parts of all.
#pragma once

// To be called by all threads of each of `parts` blocks when their part is written; true in the
// block that came last, which may then read every part. The counter is back at zero after that.
__device__ __forceinline__ bool arrives_last(int* counter, int parts) {
  __shared__ bool last;
  __threadfence();  // this thread's share of the part, before the count
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicInc(reinterpret_cast<unsigned*>(counter), parts - 1) == parts - 1;
    __threadfence();  // the count, before any read of the parts
  }
  __syncthreads();
  return last;
}
