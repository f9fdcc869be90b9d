"""Kernels that load, store and reduce by tensor copies: sound ones, and bugs planted in them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pipelines import HELPERS

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile
from gemmkit.tensor_maps import TensorMap

TENSOR_HELPERS = (
    HELPERS
    + """
struct alignas(64) Map { unsigned long long words[16]; };
DEVICE void load2(void* to, const Map* map, int x, int y, unsigned b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3}], [%4];"
               :: "r"(at(to)), "l"(map), "r"(x), "r"(y), "r"(b) : "memory");
}
DEVICE void store2(const Map* map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               :: "l"(map), "r"(x), "r"(y), "r"(at(from)) : "memory");
}
DEVICE void add2(const Map* map, const void* from, int x, int y) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
               " [%0, {%1, %2}], [%3];"
               :: "l"(map), "r"(x), "r"(y), "r"(at(from)) : "memory");
}
// Where element (x, y) of a box of 32 floats per row is, with a swizzle of 128 bytes.
DEVICE int swizzled(int y, int x) { return 32 * y + (x / 4 ^ y % 8) * 4 + x % 4; }
"""
)

# A persistent kernel: C (32 columns) is the sum of A's blocks of 32 columns. Warp 4 loads boxes of
# 32x8 into 3 stages, warps 0 to 3 add them, and thread 0 stores boxes of C.
RING = """
constexpr int STAGES = 3, CONSUMERS = 128, BOX = 1024;
extern "C" __global__ void k(const __grid_constant__ Map map_a, const __grid_constant__ Map map_c,
                             Map* maps, int M, int K) {
  __shared__ __align__(1024) float As[STAGES][256];
  __shared__ __align__(1024) float Cs[256];
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      init(at(&full[s]), 1);
      init(at(&empty[s]), CONSUMERS);
    }
    init_fence();
  }
  __syncthreads();
  const int steps = (K + 31) / 32;
  int step = 0;
  if (threadIdx.x >= CONSUMERS) {
    if (threadIdx.x == CONSUMERS)
      for (int row = 0; row < M; row += 8)
        for (int i = 0; i < steps; ++i, ++step) {
          const int s = step % STAGES;
          wait(at(&empty[s]), step / STAGES & 1 ^ 1);
          arrive_expecting(at(&full[s]), BOX);
          load2(As[s], &map_a, 32 * i, row, at(&full[s]));
        }
  } else {
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int row = 0; row < M; row += 8) {
      float sums[2] = {};
      for (int i = 0; i < steps; ++i, ++step) {
        const int s = step % STAGES;
        wait(at(&full[s]), step / STAGES & 1);
        for (int r = 0; r < 2; ++r) sums[r] += As[s][swizzled(y + 4 * r, x)];
        arrive(at(&empty[s]));
      }
      if (threadIdx.x == 0) wait_read();
      consumers_meet();
      for (int r = 0; r < 2; ++r) Cs[swizzled(y + 4 * r, x)] = sums[r];
      proxy_fence();
      consumers_meet();
      if (threadIdx.x == 0) {
        store2(&map_c, Cs, 0, row);
        commit();
      }
    }
    if (threadIdx.x == 0) wait_all();
  }
}
"""

# The same sums by reductions: the box of a step is loaded, and added to C from where it is.
REDUCE = """
extern "C" __global__ void k(const __grid_constant__ Map map_a, const __grid_constant__ Map map_c,
                             Map* maps, int M, int K) {
  __shared__ __align__(1024) float tile[2][256];
  __shared__ unsigned long long full[2];
  if (threadIdx.x < 2) init(at(&full[threadIdx.x]), 1);
  init_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int step = 0;
    for (int row = 0; row < M; row += 8)
      for (int x = 0; x < K; x += 32, ++step) {
        const int s = step & 1;
        if (step > 1) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        arrive_expecting(at(&full[s]), 1024);
        load2(tile[s], &map_a, x, row, at(&full[s]));
        wait(at(&full[s]), step / 2 & 1);
        add2(&map_c, tile[s], 0, row);
        commit();
      }
    wait_all();
  }
}
"""

# The map of A is copied to global memory first, as a kernel does that makes its own.
OWN_MAP = """
extern "C" __global__ void k(const __grid_constant__ Map map_a, const __grid_constant__ Map map_c,
                             Map* maps, int M, int K) {
  __shared__ __align__(1024) float tile[256];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) init(at(&full), 1), init_fence();
  if (threadIdx.x < 16) maps[0].words[threadIdx.x] = map_a.words[threadIdx.x];
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(maps) : "memory");
    int step = 0;
    for (int row = 0; row < M; row += 8)
      for (int x = 0; x < K; x += 32, ++step) {
        wait_read();
        arrive_expecting(at(&full), 1024);
        load2(tile, maps, x, row, at(&full));
        wait(at(&full), step & 1);
        add2(&map_c, tile, 0, row);
        commit();
      }
    wait_all();
  }
}
"""

SOUND = {"ring": RING, "reduce": REDUCE, "own map": OWN_MAP}
# A's columns end within a box.
M, K = 16, 120

_FULL = "wait(at(&full[s]), step / STAGES & 1);"
_EMPTY = "wait(at(&empty[s]), step / STAGES & 1 ^ 1);"
_EXPECT = "arrive_expecting(at(&full[s]), BOX);"
_RACES = {"read before wait", "write before wait"}
_ACQUIRE = 'asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(maps)'
# The kernel, the text to replace, its replacement, and the kinds of which one must be found.
BUGS: dict[str, tuple[str, str, str, set[str]]] = {
    "box read before it is full": (RING, _FULL, "", {"read before wait"}),
    "wrong parity of full": (RING, _FULL, _FULL.replace("& 1)", "& 1 ^ 1)"),
                             {"read before wait", "deadlock"}),
    "stage refilled before it is empty": (
        RING, _EMPTY, "", {"write after read", "too many arrivals"}),
    "released before it is read": (
        RING.replace("        arrive(at(&empty[s]));\n", ""), _FULL,
        f"{_FULL} arrive(at(&empty[s]));", {"write after read"}),
    "bytes inside the tensor announced": (
        RING, _EXPECT, _EXPECT.replace("BOX", "i + 1 < steps ? BOX : 8 * 24 * 4"),
        {"deadlock", "read before wait"}),
    "too many bytes announced": (RING, _EXPECT, _EXPECT.replace("BOX", "BOX + 128"), {"deadlock"}),
    "no bytes announced": (RING, _EXPECT, "arrive(at(&full[s]));",
                           {"read before wait", "deadlock"}),
    "no proxy fence before a store": (RING, "      proxy_fence();\n", "", {"missing proxy fence"}),
    "store not waited for before its source is overwritten": (
        RING, "      if (threadIdx.x == 0) wait_read();\n", "", {"write before wait"}),
    "store waited for by another thread": (
        RING, "if (threadIdx.x == 0) wait_read();", "if (threadIdx.x == 32) wait_read();",
        {"write before wait"}),
    "store without commit": (
        RING, "        commit();\n", "", {"write before wait", "copy not waited for"}),
    "store not waited for at the end": (
        RING, "    if (threadIdx.x == 0) wait_all();\n", "", {"copy not waited for"}),
    "initialization not fenced": (RING, "    init_fence();\n", "", {"mbarrier not visible"}),
    "misaligned box": (RING, "load2(As[s], &", "load2(As[s] + 4, &", {"misaligned"}),
    "box past the end of its array": (
        RING, "As[STAGES][256]", "As[STAGES][128]", {"out of bounds"} | _RACES),
    "swizzled box in too small an array": (
        RING, "__align__(1024) float Cs[256]", "__align__(1024) float Cs[224]",
        {"out of bounds"}),
    "map copied to local memory": (
        RING, "load2(As[s], &map_a,", "Map local = map_a; local.words[15] += M > 1000;\n"
        "          load2(As[s], &local,", {"invalid tensor map"}),
    "pointer to something else": (
        RING, "load2(As[s], &map_a,", "load2(As[s], maps + 1,", {"invalid tensor map"}),
    "reduction of a box that has not arrived": (
        REDUCE, "        wait(at(&full[s]), step / 2 & 1);\n", "", {"read before wait"}),
    "reduction's source refilled": (
        REDUCE, 'if (step > 1) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");', "",
        {"write before wait"}),
    "too few groups waited for": (
        REDUCE, "wait_group.read 1;", "wait_group.read 2;", {"write before wait"}),
    "map used without acquire": (
        OWN_MAP, _ACQUIRE, 'asm volatile("" :: "l"(maps)', {"tensor map not fenced"}),
    "map used without release": (
        OWN_MAP, "fence.proxy.tensormap::generic.release.gpu;", "", {"tensor map not fenced"}),
    "map acquired before it is written": (
        OWN_MAP.replace(f'    {_ACQUIRE} : "memory");\n', ""),
        "  if (threadIdx.x < 16) maps", f'  {_ACQUIRE} : "memory");\n'
        "  if (threadIdx.x < 16) maps", {"tensor map not fenced"}),
}  # fmt: skip


def with_bug(name: str) -> str:
    """A kernel with one of the bugs."""
    source, old, new, _ = BUGS[name]
    assert source.count(old) == 1, name
    return source.replace(old, new)


@cache
def _all() -> list[str]:
    return [*SOUND.values(), *map(with_bug, BUGS)]


@cache
def _ptx() -> str:
    """All kernels as one text, which takes less time to compile than each alone."""
    parts = [TENSOR_HELPERS]
    for number, source in enumerate(_all()):
        parts.append(f"namespace n{number} {{{source.replace('void k(', f'void k{number}(')}}}\n")
    file = SourceFile("".join(parts), "k.cu", "cuda", ("",), ())
    return compile_source(file, "n0::k0", "sm_90", assemble=False).ptx


def maps_of(a: int, c: int) -> tuple[TensorMap, TensorMap]:
    """The maps of A, whose rows have 128 floats of which K count, and of C."""
    of_a = TensorMap(a, "float32", (K, M), (512,), (32, 8), swizzle=128)
    return of_a, TensorMap(c, "float32", (32, M), (128,), (32, 8), swizzle=128)


def run(
    source: str,
    *,
    seed: int = 0,
    sanitize: bool = True,
    rows: int = M,
    last: int = M,
    **options: Any,
) -> tuple[Execution, NDArray[np.float32], NDArray[np.float32]]:
    """Run a kernel; returns A and C too. The map of A is for so many `rows`, and the kernel told
    that `last` are there."""
    memory = DeviceMemory()
    a = np.random.default_rng(4).integers(-9, 9, (M, 128)).astype(np.float32)
    reduces = "add2(" in source
    held = memory.allocate(a.nbytes, "A")
    memory.view(held.address, held.nbytes)[:] = a.view(np.uint8).reshape(-1)
    c = memory.allocate(128 * M, "C", initialized=reduces)
    own = memory.allocate(256, "maps")
    map_a, map_c = maps_of(held.address, c.address)
    map_a = replace(map_a, sizes=(K, rows))
    packed = encoded(map_a) + encoded(map_c)
    packed += own.address.to_bytes(8, "little") + np.array([last, K], np.int32).tobytes()
    name = f"k{_all().index(source)}"
    execution = load(_ptx(), name, sanitize=sanitize).run(
        LaunchRequest((1, 1, 1), (160, 1, 1), packed), memory,
        threads=1, warp_seed=seed, sanitize=sanitize, max_steps=2_000_000, **options,
    )  # fmt: skip
    result = memory.view(c.address, c.nbytes).view(np.float32).reshape(M, 32).copy()
    return execution, a, result
