// cp.async (sm_80 and later): copies from global to shared memory that run beside the arithmetic
// and pass through no register.
#pragma once

#include "tile_io.cuh"

// Starts the copy of VEC floats (1 or 4) to shared memory. Only the first `valid` are read, and
// with valid <= 0 none at all; the others become zero.
template <int VEC>
__device__ __forceinline__ void cp_async(float* shared, const float* global, int valid) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if (VEC == 4) {
    const int bytes = 4 * min(max(valid, 0), 4);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(bytes));
  } else {
    const int bytes = valid > 0 ? 4 : 0;
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

// Starts the block's copy of a tile.
template <int THREADS, int VEC, int ROWS, int COLS, int PITCH>
__device__ __forceinline__ void cp_async_tile(float (&tile)[ROWS][PITCH], const float* from, int ld,
                                              int rows, int cols) {
  using Share = Deal<THREADS, VEC, ROWS, COLS>;
#pragma unroll
  for (int step = 0; step < Share::STEPS; ++step) {
    const int row = Share::row(step), col = Share::col(step);
    cp_async<VEC>(&tile[row][col], element(from, ld, row, col), row < rows ? cols - col : 0);
  }
}

// The same, rows and columns exchanged on the way: float by float.
template <int THREADS, int ROWS, int COLS, int PITCH>
__device__ __forceinline__ void cp_async_tile_transposed(float (&tile)[COLS][PITCH],
                                                         const float* from, int ld, int rows,
                                                         int cols) {
  using Share = Deal<THREADS, 1, ROWS, COLS>;
#pragma unroll
  for (int step = 0; step < Share::STEPS; ++step) {
    const int row = Share::row(step), col = Share::col(step);
    cp_async<1>(&tile[col][row], element(from, ld, row, col), row < rows ? cols - col : 0);
  }
}
