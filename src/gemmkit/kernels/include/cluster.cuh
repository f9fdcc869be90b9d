// Thread block clusters (sm_90 and later): blocks that run at the same time on neighboring SMs and
// reach each other's shared memory.
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Where something of this block's shared memory lies in that of another block of the cluster.
__device__ __forceinline__ unsigned peer_address(const void* pointer, int rank) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

// The number of this block in its cluster.
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The two halves of a barrier for all threads of the cluster. It orders no accesses but those to
// mbarriers that `make_barriers_visible` has made visible: a release would wait for all of memory.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Stores four numbers to the shared memory of another block; its barrier, there too, counts the
// bytes when they have come.
__device__ __forceinline__ void store_at_peer(unsigned to, const float* numbers, unsigned barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(numbers[0]), "f"(numbers[1]), "f"(numbers[2]), "f"(numbers[3]), "r"(barrier)
      : "memory");
}
