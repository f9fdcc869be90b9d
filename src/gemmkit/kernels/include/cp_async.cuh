// cp.async (sm_80 and later): copies from global to shared memory that run beside the arithmetic
// and pass through no register.
#pragma once

#include "layout.cuh"

// Starts the copy of VEC floats (1 or 4) to shared memory. Only the first `valid` are read, and
// with valid <= 0 none at all; the others become zero.
template <int VEC>
__device__ __forceinline__ void cp_async(float* shared, const float* global, int valid) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = 4 * min(max(valid, 0), VEC);
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

// Starts the block's copy of a ROWS x COLS tile.
template <int THREADS, int VEC, int ROWS, int COLS>
__device__ __forceinline__ void cp_async_tile(float* tile, int pitch, const float* from, int ld,
                                              int rows, int cols) {
#pragma unroll
  for (int i = threadIdx.x * VEC, step = 0; step < ROWS * COLS; step += THREADS * VEC) {
    const int row = (i + step) / COLS, col = (i + step) % COLS;
    cp_async<VEC>(tile + row * pitch + col, element(from, ld, row, col),
                  row < rows ? cols - col : 0);
  }
}

// The same, rows and columns exchanged on the way: float by float.
template <int THREADS, int ROWS, int COLS>
__device__ __forceinline__ void cp_async_tile_transposed(float* tile, int pitch, const float* from,
                                                         int ld, int rows, int cols) {
#pragma unroll
  for (int i = threadIdx.x, step = 0; step < ROWS * COLS; step += THREADS) {
    const int row = (i + step) / COLS, col = (i + step) % COLS;
    cp_async<1>(tile + col * pitch + row, element(from, ld, row, col), row < rows ? cols - col : 0);
  }
}
