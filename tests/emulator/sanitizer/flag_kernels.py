"""Kernels whose threads wait for flags, count, or wait for earlier launches: sound ones, and bugs
planted in them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

_HELPERS = """
#define DEVICE __device__ __forceinline__
DEVICE int look(const int* p) { return *(const volatile int*)p; }
DEVICE void set(int* p, int x) { *(volatile int*)p = x; }
DEVICE unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
DEVICE void wait_for_launches() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void init(unsigned b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n) : "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
DEVICE void wait(unsigned b) {
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
               " @!p bra WAIT; }" :: "r"(b) : "memory");
}
DEVICE void load(void* to, const void* from, int n, unsigned b) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(b), "r"(n) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1], %2, [%3];"
               :: "r"(at(to)), "l"(from), "r"(n), "r"(b) : "memory");
}
"""

# Each reverses the 128 numbers of A, by two blocks of 64 threads.
_BLOCKS = """
__device__ int flag, parts[64];
extern "C" __global__ void k(const int* a, int* c) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    parts[t] = a[t];
    __threadfence();
    __syncthreads();
    if (t == 0) set(&flag, 1);
    c[t] = a[127 - t];
  } else {
    if (t == 0) while (look(&flag) == 0) {}
    __syncthreads();
    __threadfence();
    c[64 + t] = parts[63 - t];
    __syncthreads();
    if (t == 0) set(&flag, 0);
  }
}
"""
_WARPS = """
extern "C" __global__ void k(const int* a, int* c) {
  __shared__ int flag, data[32];
  const int t = threadIdx.x, lane = t % 32, other = 127 - 64 * blockIdx.x - t;
  if (t == 0) set(&flag, 0);
  __syncthreads();
  if (t < 32) {
    data[31 - lane] = a[other - 32];
    __threadfence_block();
    __syncwarp();
    if (lane == 0) set(&flag, 1);
    c[64 * blockIdx.x + t] = a[other];
  } else {
    if (lane == 0) while (look(&flag) == 0) {}
    __syncwarp();
    __threadfence_block();
    c[64 * blockIdx.x + t] = data[31 - lane];
  }
}
"""
# Barriers of all blocks, which leave their variable with another value after each launch.
_BARRIER = """
VARIABLES
__device__ int parts[128];
extern "C" __global__ void k(const int* a, int* c) {
  const int t = threadIdx.x, i = 64 * blockIdx.x + t;
  parts[i] = a[i];
  __threadfence();
  __syncthreads();
  if (t == 0) {
    WAIT
    __threadfence();
  }
  __syncthreads();
  c[i] = parts[127 - i];
}
"""
_FLIPPED_BIT = _BARRIER.replace("VARIABLES", "__device__ unsigned arrived;").replace("WAIT", """
    const unsigned last = 0x80000000u;
    const unsigned old = atomicAdd(&arrived, blockIdx.x == 0 ? last - (gridDim.x - 1) : 1);
    while (((old ^ *(volatile unsigned*)&arrived) & last) == 0) {}
""")  # fmt: skip
_GENERATIONS = _BARRIER.replace("VARIABLES", "__device__ int arrived, generation;").replace(
    "WAIT", """
    const int now = look(&generation);
    __threadfence();
    if (atomicAdd(&arrived, 1) == gridDim.x - 1) {
      set(&arrived, 0);
      __threadfence();
      set(&generation, now + 1);
    } else {
      while (look(&generation) == now) {}
    }
""")  # fmt: skip
_SCHEDULER = """
__device__ unsigned next;
extern "C" __global__ void k(const int* a, int* c) {
  __shared__ unsigned tile;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) tile = atomicAdd(&next, 1);
    __syncthreads();
    if (tile >= 4) break;
    if (threadIdx.x < 32) {
      const int i = 32 * tile + threadIdx.x;
      c[i] = a[127 - i];
    }
  }
  if (threadIdx.x == 0 && tile == 4 + gridDim.x - 1) next = 0;
}
"""
_LAST_BLOCK = """
__device__ unsigned count;
__device__ int parts[128];
extern "C" __global__ void k(const int* a, int* c) {
  __shared__ bool last;
  const int t = threadIdx.x, i = 64 * blockIdx.x + t;
  parts[i] = a[127 - i];
  __threadfence();
  __syncthreads();
  if (t == 0) last = atomicInc(&count, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (last) {
    __threadfence();
    c[t] = parts[t];
    c[64 + t] = parts[64 + t];
  }
}
"""
_ATOMICS = """
__device__ int flag, sums[64];
extern "C" __global__ void k(const int* a, int* c) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    atomicAdd(&sums[t], a[63 - t]);
    __threadfence();
    __syncthreads();
    if (t == 0) set(&flag, 1);
    c[t] = a[127 - t];
  } else {
    if (t == 0) while (look(&flag) == 0) {}
    __syncthreads();
    c[64 + t] = atomicAdd(&sums[t], 0);
    atomicExch(&sums[t], 0);
    __syncthreads();
    if (t == 0) set(&flag, 0);
  }
}
"""
_DEPENDENT = """
extern "C" __global__ void k(const int* a, int* c) {
  const int i = 64 * blockIdx.x + threadIdx.x;
  wait_for_launches();
  const int x = a[127 - i];
  let_next_begin();
  c[i] = x;
}
"""
_PRODUCER = """
extern "C" __global__ void k(const int* a, int* c) {
  __shared__ alignas(128) int data[64];
  __shared__ alignas(8) unsigned long long full;
  const int t = threadIdx.x;
  if (t == 0) init(at(&full), 1);
  __syncthreads();
  if (t == 0) {
    wait_for_launches();
    load(data, a + 64 - 64 * blockIdx.x, 256, at(&full));
  }
  wait(at(&full));
  c[64 * blockIdx.x + t] = data[63 - t];
}
"""

SOUND = {
    name: f"{_HELPERS}{text}"
    for name, text in {
        "a flag between blocks": _BLOCKS,
        "a barrier that flips a bit": _FLIPPED_BIT,
        "a barrier of generations": _GENERATIONS,
        "a flag between warps": _WARPS,
        "a counter of work": _SCHEDULER,
        "a counter of blocks": _LAST_BLOCK,
        "atomics and a flag": _ATOMICS,
        "a dependent launch": _DEPENDENT,
        "a dependent launch with a producer": _PRODUCER,
    }.items()
}
_RACE, _APART = {"read after write"}, {"lanes not in step"}
_EARLY = {"earlier launch not waited for"}
_LEFT_SET = {"flag left set", "counter left set"}
# For each bug, where it is planted, what it changes, and what may be found.
BUGS = {
    "data announced without a fence": (
        "a flag between blocks", "    __threadfence();\n    __syncthreads();\n    if (t == 0) set",
        "    __syncthreads();\n    if (t == 0) set", _RACE),
    "a fence of the block's scope": (
        "a flag between blocks", "    __threadfence();\n    __syncthreads();\n    if (t == 0) set",
        "    __threadfence_block();\n    __syncthreads();\n    if (t == 0) set", _RACE),
    "strong stores announced without a fence": (
        "a flag between blocks", "    parts[t] = a[t];\n    __threadfence();\n",
        "    set(&parts[t], a[t]);\n", _RACE),
    "data read without a fence": (
        "a flag between blocks", "    __threadfence();\n    c[64", "    c[64", _RACE),
    "a flag that stays set": (
        "a flag between blocks", "    if (t == 0) set(&flag, 0);\n", "", _LEFT_SET),
    "a bit that the first launch sets for all": (
        "a barrier that flips a bit", "((old ^ *(volatile unsigned*)&arrived) & last)",
        "(*(volatile unsigned*)&arrived & last)", {"flag left set"}),
    "a flag between warps without a fence": (
        "a flag between warps",
        "    __threadfence_block();\n    __syncwarp();\n    if (lane == 0) set",
        "    __syncwarp();\n    if (lane == 0) set", _RACE),
    "lanes ahead of the one that waits": (
        "a flag between warps",
        "(look(&flag) == 0) {}\n    __syncwarp();\n    __threadfence_block();",
        "(look(&flag) == 0) {}\n    if (lane == 0) __threadfence_block();",
        _APART),
    "lanes behind the one that sets": (
        "a flag between warps", "    __syncwarp();\n    if (lane == 0) set",
        "    if (lane == 0) set", _APART),
    "a flag cleared with no barrier": (
        "a flag between warps", "  if (t == 0) set(&flag, 0);\n  __syncthreads();\n",
        "  if (t == 0) set(&flag, 0);\n", {"uninitialized flag"}),
    "a flag that nobody clears": (
        "a flag between warps", "  if (t == 0) set(&flag, 0);\n  __syncthreads();\n", "",
        {"uninitialized flag", "uninitialized"}),
    "work counted on from the launch before": (
        "a counter of work", "  if (threadIdx.x == 0 && tile == 4 + gridDim.x - 1) next = 0;\n", "",
        {"counter left set"}),
    "blocks counted on from the launch before": (
        "a counter of blocks", "atomicInc(&count, gridDim.x - 1)", "atomicAdd(&count, 1)",
        _LEFT_SET),
    "sums announced without a fence": (
        "atomics and a flag", "    __threadfence();\n", "", _RACE),
    "a load before the wait": (
        "a dependent launch", "  wait_for_launches();\n  const int x = a[127 - i];\n",
        "  const int x = look(&a[127 - i]);\n  wait_for_launches();\n", _EARLY),
    "one warp waits": (
        "a dependent launch", "  wait_for_launches();\n",
        "  if (threadIdx.x < 32) wait_for_launches();\n", _EARLY),
    "one lane of each warp waits": (
        "a dependent launch", "  wait_for_launches();\n",
        "  if (threadIdx.x % 32 == 0) wait_for_launches();\n", _APART),
    "no thread waits": (
        "a dependent launch", "  wait_for_launches();\n  const",
        "  if (gridDim.x > 2) wait_for_launches();\n  const",
        {"launch that never waits"} | _EARLY),
    "the producer waits too late": (
        "a dependent launch with a producer",
        "    wait_for_launches();\n    load(data, a + 64 - 64 * blockIdx.x, 256, at(&full));\n",
        "    load(data, a + 64 - 64 * blockIdx.x, 256, at(&full));\n    wait_for_launches();\n",
        _EARLY),
    "consumers that store before their data are there": (
        "a dependent launch with a producer", "  wait(at(&full));\n",
        "  if (t >= 32) c[64 * blockIdx.x + t] = 0;\n  wait(at(&full));\n", _EARLY),
}  # fmt: skip


def with_bug(name: str) -> str:
    """The source of a kernel with a bug."""
    kernel, old, new, _ = BUGS[name]
    sound = SOUND[kernel]
    assert sound.count(old) == 1, name
    return sound.replace(old, new)


@cache
def compiled(source: str) -> str:
    """The PTX of a kernel."""
    file = SourceFile(source, "kernel.cu", "cuda", ("",), ("--minimal",))
    return compile_source(file, "k", "sm_90a", assemble=False).ptx


def run(
    source: str, *, seed: int = 0, sanitize: bool = True, **options: Any
) -> tuple[Execution, NDArray[np.int32], NDArray[np.int32]]:
    """Run a kernel; returns the result of a second launch, and A, too. `options` are those of
    `Program.run`."""
    a = np.arange(128, dtype=np.int32) * 3
    memory = DeviceMemory()
    places = [memory.allocate(a.nbytes, name) for name in ("A", "C")]
    memory.view(places[0].address, a.nbytes)[:] = a.view(np.uint8)
    parameters = np.array([each.address for each in places], np.uint64).tobytes()
    request = LaunchRequest((2, 1, 1), (64, 1, 1), parameters, at_once=2)
    program = load(compiled(source), "k")
    execution = program.run(
        request, memory, warp_seed=seed, sanitize=sanitize, interleavings=sanitize,
        max_steps=10_000_000, **options,
    )  # fmt: skip
    result = memory.view(places[1].address, a.nbytes).view(np.int32)
    if not sanitize:
        result[:] = -1
        program.run(request, memory, warp_seed=seed, max_steps=10_000_000, **options)
    return execution, result.copy(), a
