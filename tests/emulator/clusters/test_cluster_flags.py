"""Global memory that the blocks of a cluster share: flags and barriers, and proxy fences."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cluster_kernels import HELPERS

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

# Of 64 threads t of the blocks b, which are pairs of ranks r; `out` has 512 floats, and then flags.
# `s` and `q` are in shared memory.
KERNEL = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* out) {
  __shared__ __align__(128) float s[64], q[64];
  __shared__ unsigned long long bar;
  __shared__ int near;
  const int t = threadIdx.x, b = blockIdx.x, r = rank_of();
  int* flags = (int*)(out + 512);
  if (t == 0) { init(at(&bar), 1); init_fence(); near = 0; }
  s[t] = t;
  proxy_fence();
  cluster_arrive();
  cluster_wait();
  BODY
  cluster_arrive();
  cluster_wait();
}
"""
EXTRA = """
DEVICE void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
DEVICE void meet() { cluster_arrive(); cluster_wait(); }
DEVICE void set(int* flag) { atomicExch(flag, 1); }
DEVICE void await(int* flag) { while (atomicAdd(flag, 0) == 0); atomicExch(flag, 0); }
DEVICE void handed(int* flag) { __threadfence(); __syncthreads(); if (threadIdx.x == 0) set(flag); }
DEVICE void taken(int* flag) {
  if (threadIdx.x == 0) { await(flag); __threadfence(); }
  __syncthreads();
}
DEVICE void loaded(float* to, const float* from, unsigned b) {
  expect(b, 256);
  load(to, from, 256, b);
}
DEVICE void store(float* to, const float* from) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
               :: "l"(to), "r"(at(from)) : "memory");
  asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
DEVICE void signal(int* flag) {
  asm volatile("red.release.cluster.global.add.s32 [%0], 1;" :: "l"(flag) : "memory");
}
DEVICE void signal_block(int* flag) {
  asm volatile("red.release.cta.global.add.s32 [%0], 1;" :: "l"(flag) : "memory");
}
DEVICE void signal_relaxed(int* flag) {
  asm volatile("red.relaxed.cluster.global.add.s32 [%0], 1;" :: "l"(flag) : "memory");
}
DEVICE void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
DEVICE void observe_relaxed(int* flag) {
  int seen;
  do asm volatile("ld.relaxed.cluster.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  while (!seen);
}
DEVICE void observe(int* flag) {
  int seen;
  do asm volatile("ld.acquire.cluster.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  while (!seen);
}
DEVICE void put_flag(unsigned p) {
  asm volatile("st.volatile.shared::cluster.s32 [%0], 1;" :: "r"(p) : "memory");
}
"""
FENCE = "missing proxy fence"
LOADED = "if (t == 0) loaded(q, out, at(&bar)); wait(at(&bar), 0); out[256 + t] = q[t];"
SENT = "put(map(at(&q[t]), 1), t);"
STORED = "if (r == 1 && t == 0) store(out, q);"
# How many blocks, what they do, and the kind of finding; none if it is sound.
CASES = {
    "a flag": (2, "if (r == 0) { out[t] = t; handed(flags); } else { taken(flags);"
                  "out[64 + t] = out[t]; }", ""),
    "a flag from the later block": (2, "if (r == 1) { out[t] = t; handed(flags); } else {"
                                       "taken(flags); out[64 + t] = out[t]; }", ""),
    "a flag with no fence before": (2, "if (r == 0) { out[t] = t; __syncthreads(); if (t == 0) "
                                       "set(flags); } else { taken(flags);"
                                       "out[64 + t] = out[t]; }",
                                    "read after write"),
    "a flag with no fence after": (2, "if (r == 0) { out[t] = t; handed(flags); } else { "
                                      "if (t == 0) await(flags); __syncthreads();"
                                      "out[64 + t] = out[t]; }",
                                   "read after write"),
    "past the L1 with no fence after": (2, "if (r == 0) { out[t] = t; handed(flags); } else {"
                                           "if (t == 0) await(flags); __syncthreads();"
                                           "out[64 + t] = __ldcg(out + t); }", ""),
    "no flag": (2, "__threadfence(); if (r == 0) out[t] = t; else out[64 + t] = out[t];",
                "read after write|write after read"),
    "both write": (2, "__threadfence(); out[t] = r;", "write after write"),
    "both write in turn": (2, "if (r == 0) { out[t] = r; handed(flags); } else { taken(flags);"
                              "out[t] = r; }", ""),
    "read, then written": (2, "__threadfence(); if (r == 1) out[t] = t; meet(); if (r == 0) "
                              "out[64 + t] = out[t]; else out[t] = 1;", "write after read"),
    "the cluster's barrier": (2, "__threadfence(); if (r == 0) out[t] = t; meet(); if (r == 1) "
                                 "out[64 + t] = out[t];", ""),
    "the cluster's barrier without its order": (
        2, "__threadfence(); if (r == 0) out[t] = t; cluster_arrive_relaxed(); cluster_wait();"
           "if (r == 1) out[64 + t] = out[t];", "read after write"),
    # Ranks 0 and 1 of two clusters; what a peer has handed on counts.
    "known through the peer": (4, "if (b == 0) { out[t] = t; handed(flags); } if (b == 2) "
                                  "taken(flags); meet(); if (b == 3) out[64 + t] = out[t];", ""),
    "not known through the peer": (4, "if (b == 0) { out[t] = t; handed(flags); } if (b == 2) "
                                      "taken(flags); if (b == 3) out[64 + t] = out[t]; meet();",
                                   "read after write"),
    "released by the peer": (4, "if (b == 0) out[t] = t; meet(); if (b == 1) handed(flags);"
                                "if (b == 2) { taken(flags); out[64 + t] = out[t]; }", ""),
    "released by the peer too early": (4, "if (b == 0) out[t] = t; if (b == 1) handed(flags);"
                                          "meet();"
                                          "if (b == 2) { taken(flags); out[64 + t] = out[t]; }",
                                       "read after write"),
    # Flags of the cluster's scope, and in shared memory.
    "a flag of the cluster's scope": (
        2, "if (r == 0) { out[t] = t; __syncthreads(); if (t == 0) signal(flags); } else {"
           "if (t == 0) { observe(flags); *(volatile int*)flags = 0; } __syncthreads();"
           "out[64 + t] = out[t]; }", ""),
    "a flag of the block's scope": (
        2, "if (r == 0) { out[t] = t; __syncthreads(); if (t == 0) signal_block(flags); } else {"
           "if (t == 0) { observe(flags); *(volatile int*)flags = 0; } __syncthreads();"
           "out[64 + t] = out[t]; }", "read after write"),
    "a flag of the cluster's scope, relaxed": (
        2, "if (r == 0) { out[t] = t; __syncthreads(); if (t == 0) signal_relaxed(flags); } else {"
           "if (t == 0) { observe(flags); *(volatile int*)flags = 0; } __syncthreads();"
           "out[64 + t] = out[t]; }", "read after write"),
    "fences of the cluster's scope": (
        2, "if (r == 0) { out[t] = t; fence_cluster(); __syncthreads(); if (t == 0) "
           "signal_relaxed(flags); } else { if (t == 0) { observe_relaxed(flags); "
           "fence_cluster(); *(volatile int*)flags = 0; } __syncthreads();"
           "out[64 + t] = out[t]; }", ""),
    "no fence of the cluster's scope after": (
        2, "if (r == 0) { out[t] = t; fence_cluster(); __syncthreads(); if (t == 0) "
           "signal_relaxed(flags); } else { if (t == 0) { observe_relaxed(flags); "
           "*(volatile int*)flags = 0; } __syncthreads();"
           "out[64 + t] = out[t]; }", "read after write"),
    "between clusters": (
        4, "if (b == 0) { out[t] = t; __syncthreads(); if (t == 0) signal(flags); } if (b == 2) {"
           "if (t == 0) { observe(flags); *(volatile int*)flags = 0; } __syncthreads();"
           "out[64 + t] = out[t]; }", "read after write|write after write"),
    "a flag in shared memory": (
        2, "if (r == 0) { out[t] = t; __threadfence(); __syncthreads(); if (t == 0) "
           "put_flag(map(at(&near), 1)); } else { if (t == 0) { while (!*(volatile int*)&near); "
           "__threadfence(); } __syncthreads(); out[64 + t] = out[t]; }", ""),
    "a flag in shared memory with no fence after": (
        2, "if (r == 0) { out[t] = t; __threadfence(); __syncthreads(); if (t == 0) "
           "put_flag(map(at(&near), 1)); } else { if (t == 0) { while (!*(volatile int*)&near); "
           "} __syncthreads(); out[64 + t] = out[t]; }", "read after write"),
    "shared memory, by a flag there": (
        2, "if (r == 0) { put(map(at(&q[t]), 1), t); fence_cluster(); __syncthreads(); "
           "if (t == 0) put_flag(map(at(&near), 1)); } else { if (t == 0) { "
           "while (!*(volatile int*)&near); fence_cluster(); } __syncthreads(); out[t] = q[t]; }",
        ""),
    "shared memory, by a flag of the cluster's scope": (
        2, "if (r == 0) { put(map(at(&q[t]), 1), t); __syncthreads(); if (t == 0) signal(flags); }"
           "else { if (t == 0) { observe(flags); *(volatile int*)flags = 0; } __syncthreads(); "
           "out[t] = q[t]; }", ""),
    "shared memory, by a relaxed flag": (
        2, "if (r == 0) { put(map(at(&q[t]), 1), t); __syncthreads(); if (t == 0) "
           "signal_relaxed(flags); } else { if (t == 0) { observe(flags); "
           "*(volatile int*)flags = 0; } __syncthreads(); out[t] = q[t]; }", "read after write"),
    # Bulk copies.
    "loaded after a flag": (2, "if (r == 0) { out[t] = t; handed(flags); } else { taken(flags);"
                            + LOADED + "}", FENCE),
    "loaded after a flag, fenced by the writer": (
        2, "if (r == 0) { out[t] = t; proxy_fence(); handed(flags); } else { taken(flags);"
        + LOADED + "}", ""),
    "loaded after a flag, fenced by the reader": (
        2, "if (r == 0) { out[t] = t; handed(flags); } else { taken(flags); proxy_fence();"
        + LOADED + "}", ""),
    "loaded without a flag": (2, "__threadfence(); if (r == 0) out[t] = t; else {" + LOADED + "}",
                              "read after write|write before wait"),
    "loaded after the barrier": (2, "if (r == 0) out[t] = t; meet(); if (r == 1) {" + LOADED + "}",
                                 FENCE),
    "loaded after the barrier, fenced by the writer": (
        2, "if (r == 0) { out[t] = t; proxy_fence(); } meet(); if (r == 1) {" + LOADED + "}", ""),
    "loaded after the barrier, fenced by the reader": (
        2, "if (r == 0) out[t] = t; meet(); if (r == 1) { proxy_fence();" + LOADED + "}", ""),
    "known and fenced through the peer": (
        4, "if (b == 0) { out[t] = t; handed(flags); } if (b == 2) { taken(flags); proxy_fence(); }"
           "meet(); if (b == 3) {" + LOADED + "}", ""),
    "known through the peer, not fenced": (
        4, "if (b == 0) { out[t] = t; handed(flags); } if (b == 2) taken(flags);"
           "meet(); if (b == 3) {" + LOADED + "}", FENCE),
    "stored by a bulk copy": (2, "if (r == 0) { if (t == 0) store(out, s); handed(flags); } else {"
                                 "taken(flags); out[64 + t] = out[t]; }", ""),
    "stored by a bulk copy, no flag": (
        2, "__threadfence(); if (r == 0) { if (t == 0) store(out, s); } else out[64 + t] = out[t];",
        "read before wait|write after read"),
    "loaded, then written": (2, "if (r == 1) out[t] = t; proxy_fence(); meet(); if (r == 0) { "
                             + LOADED + "handed(flags); } else { taken(flags); out[t] = 1; }", ""),
    # A peer's stores to shared memory.
    "sent": (2, "if (r == 0) " + SENT + "meet();" + STORED, FENCE),
    "sent, fenced by the writer": (2, "if (r == 0) {" + SENT + "proxy_fence(); } meet();" + STORED,
                                   ""),
    "sent, fenced by the reader": (
        2, "if (r == 0) " + SENT + "meet(); if (r == 1 && t == 0) {"
           "proxy_fence(); store(out, q); }",
        ""),
    "sent, fenced for global memory": (
        2, "if (r == 0) {" + SENT + 'asm volatile("fence.proxy.async.global;" ::: "memory"); }'
        "meet();" + STORED, FENCE),
    "sent through an mbarrier": (
        2, "if (r == 0) {" + SENT + "__syncthreads(); if (t == 0) arrive_at(at(&bar), 1); }"
        "else if (t == 0) { wait(at(&bar), 0); store(out, q); }", FENCE),
    "sent through an mbarrier, fenced": (
        2, "if (r == 0) {" + SENT + "proxy_fence(); __syncthreads(); if (t == 0) "
        "arrive_at(at(&bar), 1); } else if (t == 0) { wait(at(&bar), 0); store(out, q); }", ""),
}  # fmt: skip


@cache
def ptx() -> str:
    parts = [HELPERS, EXTRA]
    for number, (_, body, _) in enumerate(CASES.values()):
        kernel = KERNEL.replace(" k(", f" k{number}(").replace("BODY", body)
        parts.append(f"namespace n{number} {{{kernel}}}\n")
    file = SourceFile("".join(parts), "k.cu", "cuda", ("",), ())
    return compile_source(file, "n0::k0", "sm_90", assemble=False).ptx


def run(name: str, seed: int) -> Execution:
    memory = DeviceMemory()
    held = memory.allocate(4 * 576, "out")
    arguments = np.array([held.address], np.int64).tobytes()
    request = LaunchRequest((CASES[name][0], 1, 1), (64, 1, 1), arguments)
    program = load(ptx(), f"k{list(CASES).index(name)}")
    return program.run(request, memory, sanitize=True, warp_seed=seed, max_steps=3_000_000)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(5)
def test_accesses_of_a_clusters_blocks(name: str) -> None:
    wanted = CASES[name][2]
    for seed in (0, 1):
        found = run(name, seed).findings
        kinds = {each.kind for each in found}
        assert kinds <= set(wanted.split("|")), found
        assert bool(kinds) == bool(wanted)
