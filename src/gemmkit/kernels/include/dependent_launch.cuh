// Programmatic dependent launch (sm_90 and later): the blocks of a kernel may start while the kernel
// before it on the stream still runs.
#pragma once

// By every thread, before any access to global memory: waits until the kernel before this one has
// ended and what it wrote is visible. The next kernel's blocks may start from here on. Where the launch
// is an ordinary one, it does nothing.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
