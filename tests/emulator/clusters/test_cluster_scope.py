"""What orders the blocks of a cluster: not instructions of block scope, nor the wait of a peer."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

ARRIVE = "mbarrier.arrive{}.shared::cluster.b64 _, [peer_bar];"
WAIT = "WAIT: mbarrier.try_wait.parity{}.shared::cta.b64 done, [bar], 0; @!done bra WAIT;"
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
STORE = "st.shared::cluster.f32 [peer], value;"
# What rank 1 does, what rank 0 waits by, and the end; then the kind of finding, if any.
CASES = {
    "of cluster scope": (STORE + ARRIVE.format(".release.cluster"), ".acquire.cluster", MEET, ""),
    "an arrival of block scope": (
        STORE + ARRIVE.format(""), ".acquire.cluster", MEET, "block scope between blocks"),
    "a wait of block scope": (
        STORE + ARRIVE.format(".release.cluster"), "", MEET, "block scope between blocks"),
    "an arrival of block scope after a fence": (
        STORE + "fence.acq_rel.cluster;" + ARRIVE.format(""), ".acquire.cluster", MEET, ""),
    "no data": (ARRIVE.format(""), "", MEET, ""),
}  # fmt: skip
BODY = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* out) {
  __shared__ float own[64];
  __shared__ unsigned long long bar;
  const int t = threadIdx.x, rank = blockIdx.x;
  const unsigned at = (unsigned)__cvta_generic_to_shared(own + t);
  const unsigned mbarrier = (unsigned)__cvta_generic_to_shared(&bar);
  own[t] = t;
  if (t == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 64; fence.mbarrier_init.release.cluster;"
                 :: "r"(mbarrier) : "memory");
  asm volatile("MEET" ::: "memory");
  if (rank == 1) {
    asm volatile("{ .reg .b32 peer, peer_bar; .reg .f32 value; mov.b32 value, 0f3F800000;"
                 "mapa.shared::cluster.u32 peer, %0, 0; mapa.shared::cluster.u32 peer_bar, %1, 0;"
                 "SEND }" :: "r"(at), "r"(mbarrier) : "memory");
  } else {
    asm volatile("{ .reg .pred done; .reg .b32 bar; mov.b32 bar, %0; RECEIVE }"
                 :: "r"(mbarrier) : "memory");
    out[t] = own[t];
  }
  asm volatile("END" ::: "memory");
}
"""
HANDED_OVER = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* out) {
  __shared__ __align__(16) float own[64], got[64];
  __shared__ unsigned long long bar;
  const int t = threadIdx.x, rank = blockIdx.x;
  const unsigned mbarrier = (unsigned)__cvta_generic_to_shared(&bar);
  own[t] = t;
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;"
                 :: "r"(mbarrier) : "memory");
  }
  asm volatile("fence.proxy.async; MEET" ::: "memory");
  if (rank == 1) {
    if (t == 0)
      asm volatile("{ .reg .b32 to, at; mapa.shared::cluster.u32 to, %0, 0;"
                   "mapa.shared::cluster.u32 at, %2, 0;"
                   "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
                   " [to], [%1], 256, [at]; }"
                   :: "r"((unsigned)__cvta_generic_to_shared(got)),
                      "r"((unsigned)__cvta_generic_to_shared(own)), "r"(mbarrier) : "memory");
  } else {
    asm volatile("{ .reg .pred done; .reg .b32 bar; mov.b32 bar, %0; RECEIVE }"
                 :: "r"(mbarrier) : "memory");
    out[t] = got[t];
  }
  END
}
"""


@cache
def ptx(kernel: str) -> str:
    file = SourceFile(kernel.replace("MEET", MEET), "k.cu", "cuda", ("",), ())
    return compile_source(file, "k", "sm_90", assemble=False).ptx


def run(kernel: str, seed: int) -> Execution:
    memory = DeviceMemory()
    held = memory.allocate(256, "out")
    request = LaunchRequest((2, 1, 1), (64, 1, 1), np.array([held.address], np.int64).tobytes())
    return load(ptx(kernel), "k").run(request, memory, sanitize=True, warp_seed=seed)


@pytest.mark.parametrize("name", CASES)
def test_data_of_a_peer(name: str) -> None:
    send, scope, end, wanted = CASES[name]
    kernel = BODY.replace("SEND", send).replace("RECEIVE", WAIT.format(scope))
    for seed in (0, 1):
        found = run(kernel.replace("END", end), seed).findings
        assert {each.kind for each in found} == ({wanted} if wanted else set()), found
        assert all(each.forgiven_by for each in found)


@pytest.mark.parametrize("meets", [True, False])
def test_a_block_that_ends_while_its_copy_is_read(meets: bool) -> None:
    kernel = HANDED_OVER.replace("RECEIVE", WAIT.format(""))
    end = f'asm volatile("{MEET}" ::: "memory");' if meets else ""
    found = run(kernel.replace("END", end), 0).findings
    assert {each.kind for each in found} == (set() if meets else {"block may have exited"}), found
    assert all("'own'" in each.message for each in found)
