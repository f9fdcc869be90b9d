"""Matrix products by warp-specialized pipelines: sound kernels, and bugs planted in them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

HELPERS = """
#define DEVICE __device__ __forceinline__
DEVICE unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
DEVICE void init(unsigned b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n) : "memory");
}
DEVICE void arrive(unsigned b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(b) : "memory");
}
DEVICE void arrive_expecting(unsigned b, int n) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(b), "r"(n) : "memory");
}
DEVICE void arrive_after_copies(unsigned b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(b) : "memory");
}
DEVICE void wait(unsigned b, int parity) {
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @!p bra WAIT; }" :: "r"(b), "r"(parity) : "memory");
}
DEVICE void load(void* to, const void* from, int n, unsigned b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1], %2, [%3];" :: "r"(at(to)), "l"(from), "r"(n), "r"(b) : "memory");
}
DEVICE void store(void* to, const void* from, int n) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :: "l"(to), "r"(at(from)), "r"(n) : "memory");
}
DEVICE void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at(to)), "l"(from) : "memory");
}
DEVICE void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEVICE void wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void consumers_meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }
"""

# A persistent kernel: 32x32 tiles, 16 steps of k in each of 3 stages. Warp 4 loads by bulk copies,
# warps 0 to 3 multiply, and thread 0 stores the tile of C by bulk copies.
BULK = (
    HELPERS
    + """
constexpr int BM = 32, BN = 32, BK = 16, STAGES = 3, CONSUMERS = 128;
extern "C" __global__ void k(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ __align__(128) float As[STAGES][BM][BK];
  __shared__ __align__(128) float Bs[STAGES][BK][BN];
  __shared__ __align__(128) float Cs[BM][BN];
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      init(at(&full[s]), 1);
      init(at(&empty[s]), CONSUMERS);
    }
    init_fence();
  }
  __syncthreads();
  const int tiles = M / BM * (N / BN), steps = K / BK;
  int step = 0;
  if (threadIdx.x >= CONSUMERS) {
    if (threadIdx.x == CONSUMERS)
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int row = tile / (N / BN) * BM, column = tile % (N / BN) * BN;
        for (int i = 0; i < steps; ++i, ++step) {
          const int s = step % STAGES;
          wait(at(&empty[s]), step / STAGES & 1 ^ 1);
          arrive_expecting(at(&full[s]), 4 * (BM * BK + BK * BN));
          #pragma unroll 1
          for (int r = 0; r < BM; ++r)
            load(As[s][r], A + (row + r) * K + i * BK, 4 * BK, at(&full[s]));
          #pragma unroll 1
          for (int r = 0; r < BK; ++r)
            load(Bs[s][r], B + (i * BK + r) * N + column, 4 * BN, at(&full[s]));
        }
      }
  } else {
    const int x = threadIdx.x % BN, y = threadIdx.x / BN;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int row = tile / (N / BN) * BM, column = tile % (N / BN) * BN;
      float sums[8] = {};
      for (int i = 0; i < steps; ++i, ++step) {
        const int s = step % STAGES;
        wait(at(&full[s]), step / STAGES & 1);
        #pragma unroll 1
        for (int k = 0; k < BK; ++k)
          for (int r = 0; r < 8; ++r) sums[r] += As[s][y + 4 * r][k] * Bs[s][k][x];
        arrive(at(&empty[s]));
      }
      if (threadIdx.x == 0) wait_read();
      consumers_meet();
      for (int r = 0; r < 8; ++r) Cs[y + 4 * r][x] = sums[r];
      proxy_fence();
      consumers_meet();
      if (threadIdx.x == 0) {
        #pragma unroll 1
        for (int r = 0; r < BM; ++r) store(C + (row + r) * N + column, Cs[r], 4 * BN);
        commit();
      }
    }
    if (threadIdx.x == 0) wait_all();
  }
}
"""
)

# One lane of each consumer warp waits and arrives for all of them.
ELECTED = (
    BULK.replace("wait(at(&full[s])", "if (threadIdx.x % 32 == 0) wait(at(&full[s])")
    .replace("for (int k = 0;", "for (int k = (__syncwarp(), 0);")
    .replace("        arrive(", "        __syncwarp();\n        if (threadIdx.x % 32 == 0) arrive(")
    .replace("init(at(&empty[s]), CONSUMERS)", "init(at(&empty[s]), CONSUMERS / 32)")
)

# The same by cp.async: all lanes of the producer warp copy, and their copies arrive.
COPIES = (
    BULK.replace("init(at(&full[s]), 1);", "init(at(&full[s]), 32);")
    .replace("if (threadIdx.x == CONSUMERS)\n", "const int lane = threadIdx.x % 32;\n")
    .replace("          arrive_expecting(at(&full[s]), 4 * (BM * BK + BK * BN));\n", "")
    .replace(
        """          #pragma unroll 1
          for (int r = 0; r < BM; ++r)
            load(As[s][r], A + (row + r) * K + i * BK, 4 * BK, at(&full[s]));
          #pragma unroll 1
          for (int r = 0; r < BK; ++r)
            load(Bs[s][r], B + (i * BK + r) * N + column, 4 * BN, at(&full[s]));
""",
        """          for (int c = lane; c < BM * BK / 4; c += 32)
            copy16(&As[s][0][4 * c], A + (row + 4 * c / BK) * K + i * BK + 4 * c % BK);
          for (int c = lane; c < BK * BN / 4; c += 32)
            copy16(&Bs[s][0][4 * c], B + (i * BK + 4 * c / BN) * N + column + 4 * c % BN);
          arrive_after_copies(at(&full[s]));
""",
    )
)

LIBRARY = """#include <cuda/barrier>
#include <cuda/pipeline>
#include <cooperative_groups.h>
"""

# By cuda::barrier of libcu++.
BARRIER = """
using Barrier = cuda::barrier<cuda::thread_scope_block>;
constexpr int BM = 32, BN = 32, BK = 16, STAGES = 2, CONSUMERS = 128;
#pragma nv_diag_suppress static_var_with_dynamic_init
extern "C" __global__ void k(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float As[STAGES][BM][BK], Bs[STAGES][BK][BN];
  __shared__ Barrier full[STAGES], empty[STAGES];
  if (threadIdx.x < STAGES) {
    init(&full[threadIdx.x], CONSUMERS + 32);
    init(&empty[threadIdx.x], CONSUMERS + 32);
  }
  __syncthreads();
  const int row = blockIdx.x / (N / BN) * BM, column = blockIdx.x % (N / BN) * BN;
  if (threadIdx.x >= CONSUMERS) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < K / BK; ++i) {
      const int s = i % STAGES;
      empty[s].arrive_and_wait();
      for (int c = lane; c < BM * BK; c += 32)
        As[s][c / BK][c % BK] = A[(row + c / BK) * K + i * BK + c % BK];
      for (int c = lane; c < BK * BN; c += 32)
        Bs[s][c / BN][c % BN] = B[(i * BK + c / BN) * N + column + c % BN];
      (void)full[s].arrive();
    }
  } else {
    for (int s = 0; s < STAGES; ++s) (void)empty[s].arrive();
    const int x = threadIdx.x % BN, y = threadIdx.x / BN;
    float sums[8] = {};
    for (int i = 0; i < K / BK; ++i) {
      const int s = i % STAGES;
      full[s].arrive_and_wait();
      #pragma unroll 1
      for (int k = 0; k < BK; ++k)
        for (int r = 0; r < 8; ++r) sums[r] += As[s][y + 4 * r][k] * Bs[s][k][x];
      (void)empty[s].arrive();
    }
    for (int r = 0; r < 8; ++r) C[(row + y + 4 * r) * N + column + x] = sums[r];
  }
}
"""

# By cuda::pipeline with producers and consumers.
PIPELINE = """
constexpr int BM = 32, BN = 32, BK = 16, STAGES = 2, CONSUMERS = 128;
#pragma nv_diag_suppress static_var_with_dynamic_init
extern "C" __global__ void k(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ __align__(16) float As[STAGES][BM][BK], Bs[STAGES][BK][BN];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
  auto block = cooperative_groups::this_thread_block();
  const bool produces = threadIdx.x >= CONSUMERS;
  auto pipe = cuda::make_pipeline(
      block, &state, produces ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
  const int row = blockIdx.x / (N / BN) * BM, column = blockIdx.x % (N / BN) * BN;
  if (produces) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < K / BK; ++i) {
      const int s = i % STAGES;
      pipe.producer_acquire();
      for (int c = 4 * lane; c < BM * BK; c += 128)
        cuda::memcpy_async(&As[s][c / BK][c % BK], &A[(row + c / BK) * K + i * BK + c % BK],
                           cuda::aligned_size_t<16>(16), pipe);
      for (int c = 4 * lane; c < BK * BN; c += 128)
        cuda::memcpy_async(&Bs[s][c / BN][c % BN], &B[(i * BK + c / BN) * N + column + c % BN],
                           cuda::aligned_size_t<16>(16), pipe);
      pipe.producer_commit();
    }
  } else {
    const int x = threadIdx.x % BN, y = threadIdx.x / BN;
    float sums[8] = {};
    for (int i = 0; i < K / BK; ++i) {
      const int s = i % STAGES;
      pipe.consumer_wait();
      #pragma unroll 1
      for (int k = 0; k < BK; ++k)
        for (int r = 0; r < 8; ++r) sums[r] += As[s][y + 4 * r][k] * Bs[s][k][x];
      pipe.consumer_release();
    }
    for (int r = 0; r < 8; ++r) C[(row + y + 4 * r) * N + column + x] = sums[r];
  }
}
"""

SOUND = {
    "bulk": BULK,
    "elected lanes": ELECTED,
    "cp.async": COPIES,
    "cuda::barrier": BARRIER,
    "cuda::pipeline": PIPELINE,
}
# Each block of `BULK` and `COPIES` computes two tiles, each of the others one.
M, N, K = 64, 32, 64
# Kernels that are compiled together.
TOGETHER = 8

# Bugs: the kernel, the text to replace, its replacement, and the kinds of findings of which at
# least one must be reported.
RACES = {"read before wait", "write before wait", "read after write", "write after read",
         "write after write"}  # fmt: skip
WAIT_FULL = "wait(at(&full[s]), step / STAGES & 1);"
WAIT_EMPTY = "wait(at(&empty[s]), step / STAGES & 1 ^ 1);"
EXPECT = "arrive_expecting(at(&full[s]), 4 * (BM * BK + BK * BN));"
RELEASE = "arrive(at(&empty[s]));"
BUGS: dict[str, tuple[str, str, str, set[str]]] = {
    "stage read before it is full": (BULK, WAIT_FULL, "", {"read before wait"}),
    "wrong parity of full": (
        BULK, WAIT_FULL, WAIT_FULL.replace("& 1", "& 1 ^ 1"), {"read before wait", "deadlock"}),
    "parity that never flips": (
        BULK, WAIT_FULL, "wait(at(&full[s]), 0);", {"read before wait", "deadlock"}),
    "wait for another stage": (
        BULK, WAIT_FULL, WAIT_FULL.replace("[s]", "[(s + 1) % STAGES]"), {"deadlock", *RACES}),
    "stage refilled before it is released": (
        BULK, WAIT_EMPTY, "", {"write after read", "write after write"}),
    "wrong parity of empty": (BULK, WAIT_EMPTY, WAIT_EMPTY.replace(" ^ 1", ""), {"deadlock"}),
    "released before it is read": (
        BULK.replace(RELEASE, ""), WAIT_FULL, f"{WAIT_FULL} {RELEASE}", {"write after read"}),
    "previous stage released": (
        BULK, RELEASE, RELEASE.replace("[s]", "[(s + 2) % STAGES]"), {"deadlock", "phase overrun"}),
    # Right as long as the producer waits before the consumers release the stage once more.
    "next stage released": (
        BULK, RELEASE, RELEASE.replace("[s]", "[(s + 1) % STAGES]"), {"deadlock", "phase overrun"}),
    "bytes not announced": (
        BULK, EXPECT, "arrive(at(&full[s]));", {"read before wait", "deadlock"}),
    "too many bytes announced": (BULK, EXPECT, EXPECT.replace("BK * BN", "BK * BN + 16"),
                                 {"deadlock"}),
    "too few bytes announced": (BULK, EXPECT, EXPECT.replace("4 * (", "2 * ("),
                                {"read before wait", "deadlock"}),
    "bytes counted at another stage": (
        BULK, "4 * BN, at(&full[s])", "4 * BN, at(&full[(s + 1) % STAGES])",
        {"read before wait", "deadlock"}),
    "never released": (BULK, RELEASE, "", {"deadlock"}),
    "one arrival too many expected": (
        BULK, "init(at(&empty[s]), CONSUMERS);", "init(at(&empty[s]), CONSUMERS + 1);",
        {"deadlock"}),
    "too few arrivals expected": (
        BULK, "init(at(&empty[s]), CONSUMERS);", "init(at(&empty[s]), CONSUMERS / 4);",
        {"write after read", "deadlock"}),
    # The last arrival of each phase counts in the next one.
    "one arrival too few expected": (
        BULK, "init(at(&empty[s]), CONSUMERS);", "init(at(&empty[s]), CONSUMERS - 1);",
        {"early arrival"}),
    "one warp too few expected": (
        ELECTED, "init(at(&empty[s]), CONSUMERS / 32);", "init(at(&empty[s]), CONSUMERS / 32 - 1);",
        {"early arrival"}),
    "two arrivals of one expected": (BULK, EXPECT, f"{EXPECT} {RELEASE}", RACES | {"deadlock"}),
    "source of a store overwritten": (
        BULK, "if (threadIdx.x == 0) wait_read();", "", {"write before wait"}),
    "store waited for by another thread": (
        BULK, "if (threadIdx.x == 0) wait_read();", "if (threadIdx.x == 32) wait_read();",
        {"write before wait"}),
    "store waited for too late": (
        BULK, "if (threadIdx.x == 0) wait_read();\n      consumers_meet();",
        "consumers_meet();\n      if (threadIdx.x == 0) wait_read();", {"write before wait"}),
    "store not waited for at the end": (
        BULK, "if (threadIdx.x == 0) wait_all();", "", {"copy not waited for"}),
    "no proxy fence before a store": (
        BULK, "proxy_fence();\n      c", "c", {"missing proxy fence"}),
    "proxy fence of one thread only": (
        BULK, "proxy_fence();\n      c", "if (threadIdx.x == 0) proxy_fence();\n      c",
        {"missing proxy fence"}),
    "no barrier before a store": (
        BULK, "proxy_fence();\n      consumers_meet();", "proxy_fence();",
        {"read after write", "write before wait"}),
    "initialization not visible": (
        BULK, "  __syncthreads();\n", "", {"mbarrier not visible", "invalid mbarrier"}),
    "initialization not fenced": (BULK, "    init_fence();\n", "", {"mbarrier not visible"}),
    "mbarrier never initialized": (
        BULK, "init(at(&empty[s]), CONSUMERS);", "", {"invalid mbarrier"}),
    "mbarrier overwritten": (
        BULK, "  int step = 0;\n",
        "  int step = 0;\n  if (threadIdx.x == 5 && K > 0) ((volatile int*)full)[5] = 0;\n",
        {"mbarrier accessed", "invalid mbarrier"}),
    "copy past the end of its array": (
        BULK, "load(Bs[s][r], B + (i * BK + r) * N + column, 4 * BN",
        "load(Bs[s][r], B + (i * BK + r) * N + column, 4 * BN + 16 * (s == 2 && r == 15)",
        {"out of bounds"}),
    "copy past the end of B": (
        BULK, "B + (i * BK + r) * N + column", "B + (i * BK + r + 1) * N + column",
        {"out of bounds"}),
    "misaligned copy": (
        BULK, "As[s][r], A + (row + r) * K", "As[s][r] + 1, A + (row + r) * K", {"misaligned"}),
    "arrival that does not wait for cp.async": (
        COPIES, "arrive_after_copies(at(&full[s]));", "arrive(at(&full[s]));",
        {"read before wait"}),
    "copies issued after their arrival": (
        COPIES.replace("          arrive_after_copies(at(&full[s]));\n", ""), WAIT_EMPTY,
        f"{WAIT_EMPTY} arrive_after_copies(at(&full[s]));",
        {"read before wait"}),
    "cp.async into a stage in use": (COPIES, WAIT_EMPTY, "", {"write after read", "deadlock"}),
    "cuda::barrier: stage in use": (
        BARRIER, "empty[s].arrive_and_wait();", "(void)empty[s].arrive();",
        {"write after read", "deadlock"}),
    "cuda::barrier: stage not full": (
        BARRIER, "full[s].arrive_and_wait();", "(void)full[s].arrive();",
        {"read after write", "deadlock"}),
    "cuda::pipeline: no wait": (PIPELINE, "pipe.consumer_wait();", "",
                               {"read before wait", "deadlock"}),
    "cuda::pipeline: no release": (PIPELINE, "pipe.consumer_release();", "", {"deadlock"}),
    "cuda::pipeline: no acquire": (PIPELINE, "pipe.producer_acquire();", "",
                                  {"write after read", "deadlock"}),
}  # fmt: skip


def with_bug(name: str) -> str:
    """The source of a kernel with a bug."""
    source, old, new, _ = BUGS[name]
    assert source.count(old) == 1, f"{name}: the text to replace must occur once"
    return source.replace(old, new)


def compiled(source: str) -> tuple[str, str]:
    """The PTX of a kernel, and its name in it."""
    head = HELPERS if source.startswith(HELPERS) else LIBRARY
    number = _all(head).index(source)
    return _ptx(head, number // TOGETHER), f"k{number}"


@cache
def _all(head: str) -> list[str]:
    """All kernels with that head."""
    sources = [*SOUND.values(), *map(with_bug, BUGS)]
    return [source for source in sources if source.startswith(HELPERS) == (head == HELPERS)]


@cache
def _ptx(head: str, group: int) -> str:
    """Some kernels with that head as one text, which takes less time to compile than each alone."""
    parts, first = [head], group * TOGETHER
    for number, source in enumerate(_all(head)[first : first + TOGETHER], first):
        named = source.removeprefix(head).replace("void k(", f"void k{number}(")
        parts.append(f"namespace n{number} {{{named}}}\n")
    file = SourceFile("".join(parts), "k.cu", "cuda", ("",), ())
    return compile_source(file, f"n{first}::k{first}", "sm_90", assemble=False).ptx


def operands() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A and B, of small integers, whose product is exact."""
    rng = np.random.default_rng(5)
    return (rng.integers(-4, 5, (M, K)).astype(np.float32),
            rng.integers(-4, 5, (K, N)).astype(np.float32))  # fmt: skip


def run(
    source: str, *, seed: int = 0, sanitize: bool = True, **options: Any
) -> tuple[Execution, NDArray[np.float32]]:
    """Run a kernel, and return its product too; `options` are those of `Program.run`."""
    memory, a_and_b = DeviceMemory(), operands()
    packed = b""
    for name, value in zip("AB", a_and_b, strict=True):
        held = memory.allocate(value.nbytes, name)
        memory.view(held.address, held.nbytes)[:] = value.view(np.uint8).reshape(-1)
        packed += held.address.to_bytes(8, "little")
    c = memory.allocate(4 * M * N, "C", initialized=False)
    packed += c.address.to_bytes(8, "little") + np.array([M, N, K], np.int32).tobytes()
    blocks = 1 if source.startswith(HELPERS) else 2
    request = LaunchRequest((blocks, 1, 1), (160, 1, 1), packed)
    ptx, name = compiled(source)
    execution = load(ptx, name, sanitize=sanitize).run(
        request,
        memory,
        threads=1,
        warp_seed=seed,
        sanitize=sanitize,
        max_steps=20_000_000,
        **options,
    )
    return execution, memory.view(c.address, c.nbytes).view(np.float32).reshape(M, N)
