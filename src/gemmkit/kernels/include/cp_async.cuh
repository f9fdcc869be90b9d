// cp.async (sm_80 and later): copies from global to shared memory that run beside the arithmetic
// and pass through no register.
#pragma once

#include "tile_io.cuh"

// Starts the copy of VEC floats (1 or 4) to shared memory; with `inside` false nothing is read and
// the floats become zero.
template <int VEC>
__device__ __forceinline__ void cp_async(float* shared, const float* global, bool inside) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = inside ? 4 * VEC : 0;
  if (VEC == 4) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(bytes));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes));
  }
}

// Closes a group: all copies that this thread has started since the last one.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }

// Waits until at most PENDING of this thread's groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
