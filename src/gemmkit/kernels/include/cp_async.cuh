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

// Starts the thread's copies of a tile: those of steps `part`, `part` + PARTS ... With PARTS parts,
// spread over the arithmetic, they do not hold up its shared-memory reads as one burst would.
template <int PARTS, int VEC, int ROWS, int PITCH, class Walk>
__device__ __forceinline__ void cp_async_tile(float (&tile)[ROWS][PITCH], const Walk& walk,
                                              int rows, int cols, int part) {
#pragma unroll
  for (int step = part; step < walk.STEPS; step += PARTS) {
    const int row = walk.row(step), col = walk.col(step);
    cp_async<VEC>(&tile[row][col], walk.source(step), row < rows && col < cols);
  }
}

// The same with rows and columns exchanged on the way, which goes float by float.
template <int PARTS, int COLS, int PITCH, class Walk>
__device__ __forceinline__ void cp_async_transposed(float (&tile)[COLS][PITCH], const Walk& walk,
                                                    int rows, int cols, int part) {
#pragma unroll
  for (int step = part; step < walk.STEPS; step += PARTS) {
    const int row = walk.row(step), col = walk.col(step);
    cp_async<1>(&tile[col][row], walk.source(step), row < rows && col < cols);
  }
}
