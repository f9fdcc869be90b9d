// The Tensor Memory Accelerator (sm_90 and later): one thread starts the copy of a box of a matrix,
// which a tensor map describes. What is outside of the matrix reads as zero, and is not written.
#pragma once

#include "mbarrier.cuh"

// A matrix, or the matrices of a batch, and the box of each copy: CUtensorMap, encoded by the host.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// Where a box begins: the innermost dimension first.
struct BoxPlace {
  int inner, outer, product;
};

// Starts the copy of a box to shared memory; its bytes count at the barrier. With a MASK of several
// blocks of the cluster, it goes to the same place in each of them and counts at its barrier there.
template <bool BATCHED, bool MULTICAST>
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, BoxPlace from,
                                         const Barrier& full, unsigned short mask) {
  const unsigned barrier = shared_address(&full);
  if constexpr (BATCHED && MULTICAST) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(&map), "r"(from.inner), "r"(from.outer), "r"(from.product), "r"(barrier), "h"(mask)
        : "memory");
  } else if constexpr (BATCHED) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(&map), "r"(from.inner), "r"(from.outer), "r"(from.product), "r"(barrier)
        : "memory");
  } else if constexpr (MULTICAST) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(from.inner), "r"(from.outer), "r"(barrier), "h"(mask)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(from.inner), "r"(from.outer), "r"(barrier)
        : "memory");
  }
}

// Starts the copy of a box from shared memory, in this thread's open group. What threads have
// written there must be made visible by `fence_for_tma`, and a barrier, before.
template <bool BATCHED>
__device__ __forceinline__ void tma_store(const TensorMap& map, BoxPlace to, unsigned from) {
  if constexpr (BATCHED) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::
            "l"(&map),
        "r"(to.inner), "r"(to.outer), "r"(to.product), "r"(from)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
            &map),
        "r"(to.inner), "r"(to.outer), "r"(from)
        : "memory");
  }
}
__device__ __forceinline__ void tma_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but PENDING of this thread's groups have read their shared memory.
template <int PENDING>
__device__ __forceinline__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Makes what this thread has written to shared memory visible to TMA and wgmma.
__device__ __forceinline__ void fence_for_tma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void tma_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
