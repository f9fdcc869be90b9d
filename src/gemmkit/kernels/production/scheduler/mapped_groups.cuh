// Groups whose matrices TMA loads and stores: each product has tensor maps of its own, in the table.
#pragma once

#include "scheduler/grouped.cuh"
#include "tma.cuh"

// A product and its maps, laid out as MAPPED_GROUP in group_maps.py has it. There are no maps of what
// is not read or written by TMA.
template <class In, class Out>
struct alignas(64) MappedGroup : Group<In, Out> {
  TensorMap map_a, map_b, map_c;
};
static_assert(sizeof(MappedGroup<float, float>) == 512);

// Lets this thread's copies use a map that was copied to global memory: what TMA has cached of this
// address may be the map of an earlier launch. The host's copy counts as one by the system.
__device__ __forceinline__ void tma_acquire(const TensorMap& map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(&map) : "memory");
}
