"""A relaxed arrival orders what precedes a fence before it, and a relaxed wait what follows a fence
after it, in one block and between the blocks of a cluster."""

from __future__ import annotations

from functools import cache

import pytest
from pipelines import HELPERS

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

# Warp 0 of the last block writes to the first one, whose last warp reads.
KERNEL = """
extern "C" __global__ void CLUSTER k(float* a, float* c) {
  __shared__ float tile[32];
  __shared__ unsigned long long full;
  const int t = threadIdx.x;
  if (t == 0) { init(at(&full), 32); init_fence(); }
  MEET
  if (blockIdx.x == gridDim.x - 1 && t < 32) {
    unsigned theirs, barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(theirs) : "r"(at(tile + t)));
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(barrier) : "r"(at(&full)));
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(theirs), "f"(a[t]) : "memory");
    BEFORE
    asm volatile("mbarrier.arrive.ARRIVE.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
  }
  if (blockIdx.x == 0 && t >= 32) {
    asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.WAIT_SEM.shared::cta.b64 p, [%0],"
                 " 0; @!p bra WAIT; }" :: "r"(at(&full)) : "memory");
    AFTER
    c[t - 32] = tile[t - 32];
  }
  MEET
}
"""
MEET = 'asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");'
ORDERS = ("arrive", "wait")


@cache
def _ptx(blocks: int, relaxed: tuple[str, ...], fenced: tuple[str, ...]) -> str:
    text = KERNEL.replace("CLUSTER", f"__cluster_dims__({blocks}, 1, 1)").replace("MEET", MEET)
    fence = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
    text = text.replace("BEFORE", fence if "arrive" in fenced else "")
    text = text.replace("AFTER", fence if "wait" in fenced else "")
    for word, order, strong in (("ARRIVE", "arrive", "release"), ("WAIT_SEM", "wait", "acquire")):
        text = text.replace(word, f"{'relaxed' if order in relaxed else strong}.cluster")
    file = SourceFile(HELPERS + text, "k.cu", "cuda", ("",), ())
    return compile_source(file, "k", "sm_90a", assemble=False).ptx


def _kinds(blocks: int, relaxed: tuple[str, ...], fenced: tuple[str, ...]) -> set[str]:
    memory = DeviceMemory()
    arrays = [memory.allocate(128, each) for each in "ac"]
    packed = b"".join(each.address.to_bytes(8, "little") for each in arrays)
    request = LaunchRequest((blocks, 1, 1), (64, 1, 1), packed)
    program = load(_ptx(blocks, relaxed, fenced), "k", sanitize=True)
    run = program.run(request, memory, sanitize=True, max_steps=1_000_000)
    return {each.kind for each in run.findings}


@pytest.mark.parametrize("relaxed", [("wait",), ("arrive",), ORDERS])
@pytest.mark.parametrize("blocks", [1, 2])
def test_relaxed_instructions_order_by_fences(blocks: int, relaxed: tuple[str, ...]) -> None:
    assert _kinds(blocks, relaxed, relaxed) == set()


@pytest.mark.parametrize("missing", ORDERS)
@pytest.mark.parametrize("blocks", [1, 2])
def test_without_one_of_the_fences_they_do_not(blocks: int, missing: str) -> None:
    fenced = tuple(each for each in ORDERS if each != missing)
    assert _kinds(blocks, ORDERS, fenced) == {"read after write"}
