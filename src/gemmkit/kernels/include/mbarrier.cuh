// mbarriers (sm_90 and later): barriers in shared memory that count arrivals and, beside these, the
// bytes of asynchronous copies. A phase is complete when all of both have come.
#pragma once

#include "cluster.cuh"

struct alignas(8) Barrier {
  unsigned long long state;

  // By one thread, before `make_barriers_visible`.
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals)
                 : "memory");
  }

  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }

  // Arrives at the barrier that lies here in another block of the cluster.
  __device__ __forceinline__ void arrive_at(int rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(peer_address(this, rank))
                 : "memory");
  }

  // Arrives, and announces bytes of copies that complete this phase too.
  __device__ __forceinline__ void arrive_expecting(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }

  // Waits until the phase of this parity is complete: 0 is the first, 1 the second or, before the
  // first is complete, the one before it.
  __device__ __forceinline__ void wait(unsigned parity) const {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "RETRY:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@!complete bra RETRY;\n"
        "}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// To be called by the thread that has initialized barriers, before a barrier for all threads of the
// block or cluster: then every thread, copy and peer finds them initialized.
__device__ __forceinline__ void make_barriers_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Named barriers of a block, 0 to 15, for some of its warps: THREADS of those that arrive, and may go
// on, and of those that wait.
template <int THREADS>
__device__ __forceinline__ void named_barrier_arrive(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}
template <int THREADS>
__device__ __forceinline__ void named_barrier_sync(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

// The place of a thread in a circular buffer: its stage, and the parity of the round.
template <int STAGES>
struct StageCounter {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ void skip(int stages) {
    stage += stages;
    parity ^= stage / STAGES & 1;
    stage %= STAGES;
  }
};
