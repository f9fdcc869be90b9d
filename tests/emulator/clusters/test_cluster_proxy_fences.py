"""Proxy fences in clusters: one for `shared::cta` does not cover stores to other blocks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

# Each block stores to its peer, which copies what it got to global memory by TMA.
BODY = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* out) {
  __shared__ __align__(16) float got[64];
  __shared__ unsigned long long bar;
  const int t = threadIdx.x, rank = blockIdx.x;
  const unsigned mbarrier = (unsigned)__cvta_generic_to_shared(&bar);
  const unsigned to = (unsigned)__cvta_generic_to_shared(got + t);
  if (t == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 64; fence.mbarrier_init.release.cluster;"
                 :: "r"(mbarrier) : "memory");
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  asm volatile("{ .reg .b32 peer, peer_bar; .reg .pred done;"
               "mapa.shared::cluster.u32 peer, %0, %2; mapa.shared::cluster.u32 peer_bar, %1, %2;"
               "st.shared::cluster.f32 [peer], %3; WRITER"
               "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [peer_bar];"
               "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], 0;"
               "@!done bra WAIT; READER }"
               :: "r"(to), "r"(mbarrier), "r"(rank TARGET), "f"(1.0f * t) : "memory");
  __syncthreads();
  if (t == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
                 "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
                 :: "l"(out + 64 * rank), "r"(to) : "memory");
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
"""
ALL, CTA, CLUSTER = (f"fence.proxy.async{of};" for of in ("", ".shared::cta", ".shared::cluster"))
PEER, ITSELF = "^ 1", ""
# Whose memory the stores are to, the fences of writer and reader, and whether they suffice.
CASES = {
    "none": (PEER, "", "", False),
    "of the cluster": (PEER, CLUSTER, "", True),
    "of everything": (PEER, ALL, "", True),
    "of the writer's block": (PEER, CTA, "", False),
    "of the reader's block": (PEER, "", CTA, True),
    "of both": (PEER, CTA, CTA, True),
    "of global memory": (PEER, "fence.proxy.async.global;", "", False),
    "of aliases": (PEER, "fence.proxy.alias;", "", False),
    "own memory": (ITSELF, CTA, "", True),
    "own memory, aliases": (ITSELF, "fence.proxy.alias;", "", False),
    "own memory, none": (ITSELF, "", "", False),
}


@cache
def _ptx(target: str, writer: str, reader: str) -> str:
    source = BODY.replace("TARGET", target).replace("WRITER", writer).replace("READER", reader)
    file = SourceFile(source, "k.cu", "cuda", ("",), ())
    return compile_source(file, "k", "sm_90a", assemble=False).ptx


def run(name: str, seed: int = 0) -> Execution:
    """Run a case, whose result is right in any case."""
    target, writer, reader, _ = CASES[name]
    memory = DeviceMemory()
    out = memory.allocate(512, "out")
    request = LaunchRequest((2, 1, 1), (64, 1, 1), out.address.to_bytes(8, "little"))
    program = load(_ptx(target, writer, reader), "k", sanitize=True)
    execution = program.run(request, memory, warp_seed=seed, sanitize=True)
    assert memory.view(out.address, 512).view(np.float32).tolist() == [*range(64)] * 2
    return execution


@pytest.mark.parametrize("name", CASES)
def test_a_fence_covers_the_memory_that_it_names(name: str) -> None:
    kinds = {each.kind for each in run(name).findings}
    assert kinds == (set() if CASES[name][3] else {"missing proxy fence"})


def test_the_finding_says_which_fence_is_missing() -> None:
    (found,) = run("of the writer's block", seed=1).findings
    assert "that covers other blocks' shared memory" in found.message
    (own,) = run("own memory, none").findings
    assert "other blocks'" not in own.message
