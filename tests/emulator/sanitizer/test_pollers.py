"""A warp that waits for too small a count is resumed at the first value that satisfies it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import sanitizing

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Execution
from gemmkit.emulator.sanitizer.pollers import Pollers
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

# The first of three blocks waits for the parts of the others, and adds them up.
_BLOCKS = """
__device__ float part[3][32];
__device__ int count;
extern "C" __global__ void @CLUSTER@ k(float* out) {
  const int b = blockIdx.x, t = threadIdx.x;
  if (b) {
    part[b][t] = b;
    __syncwarp();
    if (t == 0) @WRITE@
    return;
  }
  if (t == 0) { int seen; do { @READ@ } while (seen < @COUNT@); @AFTER@ }
  __syncwarp();
  out[t] = part[1][t] + part[2][t];
}
"""
_RELEASE = 'asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(&count) : "memory");'
_ACQUIRE = (
    'asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(&count) : "memory");'
)
_FENCED = "{ __threadfence(); atomicAdd(&count, 1); }"
# The first of three warps waits for the others.
_WARPS = """
extern "C" __global__ void k(float* out) {
  __shared__ float part[3][32];
  __shared__ int count;
  const int w = threadIdx.x / 32, t = threadIdx.x % 32;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  if (w) {
    part[w][t] = w;
    __threadfence_block();
    __syncwarp();
    if (t == 0) atomicAdd(&count, 1);
    return;
  }
  if (t == 0) while (*(volatile int*)&count < @COUNT@) {}
  __threadfence_block();
  __syncwarp();
  out[t] = part[1][t] + part[2][t];
}
"""


def _blocks(write: str, read: str, after: str = "", cluster: str = "") -> str:
    source = _BLOCKS.replace("@WRITE@", write).replace("@READ@", read)
    return source.replace("@AFTER@", after).replace("@CLUSTER@", cluster)


KERNELS = {
    "release and acquire": (_blocks(_RELEASE, _ACQUIRE), 3),
    "fences": (_blocks(_FENCED, "seen = *(volatile int*)&count;", "__threadfence();"), 3),
    "atomics": (_blocks(_FENCED, "seen = atomicAdd(&count, 0);", "__threadfence();"), 3),
    "blocks of a cluster": (_blocks(_RELEASE, _ACQUIRE, cluster="__cluster_dims__(3, 1, 1)"), 3),
    "warps of a block": (_WARPS, 1),
}  # fmt: skip


# The last block waits: it first looks when the others have ended.
_LATE = _BLOCKS.replace("if (b) {", "if (b < 2) {").replace(
    "part[b][t] = b", "part[b + 1][t] = b + 1"
)
_LATE_COUNTED = _LATE.replace("k(float* out)", "k(float* out, int n)").replace(
    "(seen < @COUNT@)", "(seen <= n - 3 + @COUNT@ - 1)"
)


def _late(text: str, write: str, read: str, after: str = "", cluster: str = "") -> str:
    source = text.replace("@WRITE@", write).replace("@READ@", read)
    return source.replace("@AFTER@", after).replace("@CLUSTER@", cluster)


KERNELS |= {
    "late": (_late(_LATE, _RELEASE, _ACQUIRE), 3),
    "late, with a number": (_late(_LATE_COUNTED, _RELEASE, _ACQUIRE), 3),
    "late, fences": (
        _late(_LATE, _FENCED, "seen = *(volatile int*)&count;", "__threadfence();"), 3),
    "late, atomics": (_late(_LATE, _FENCED, "seen = atomicAdd(&count, 0);", "__threadfence();"), 3),
    "late, a cluster": (_late(_LATE, _RELEASE, _ACQUIRE, cluster="__cluster_dims__(3, 1, 1)"), 3),
    "late, the cluster's scope": (
        _late(_LATE, _RELEASE.replace("gpu", "cluster"), _ACQUIRE.replace("gpu", "cluster"),
              cluster="__cluster_dims__(3, 1, 1)"), 3),
}  # fmt: skip


@cache
def _ptx(source: str) -> str:
    file = SourceFile(source, "k.cu", "cuda", ("",), ())
    return compile_source(file, "k", "sm_90", assemble=False).ptx


def run(name: str, count: int, seed: int) -> tuple[Execution, list[float]]:
    source, blocks = KERNELS[name]
    memory = DeviceMemory()
    out = memory.allocate(128, "out")
    threads = 32 if blocks > 1 else 96
    request = LaunchRequest(
        (blocks, 1, 1),
        (threads, 1, 1),
        out.address.to_bytes(8, "little") + blocks.to_bytes(4, "little"),
        at_once=132,
    )
    program = load(_ptx(source.replace("@COUNT@", str(count))), "k", sanitize=True)
    execution = program.run(request, memory, warp_seed=seed, sanitize=True, max_steps=100_000_000)
    return execution, memory.view(out.address, 128).view(np.float32).tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.sample
def test_a_count_of_too_few(name: str, seed: int) -> None:
    execution, found = run(name, 1, seed)
    kinds = {each.kind for each in execution.findings}
    assert kinds & {"write after read", "read after write", "uninitialized"}, execution.findings
    # Whoever looks late reads the right numbers all the same.
    assert found != [3.0] * 32 or name.startswith("late")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.sample(9)
def test_a_count_of_all(name: str, seed: int) -> None:
    execution, found = run(name, 2, seed)
    kinds = {each.kind for each in execution.findings}
    assert kinds <= {"flag left set"}, execution.findings
    assert found == [3.0] * 32


# Two warps take turns; each waits for the other.
_TURNS = """
k(float* out) {
  __shared__ int turn;
  __shared__ float sum;
  const int w = threadIdx.x / 32, t = threadIdx.x % 32;
  if (threadIdx.x == 0) { turn = 0; sum = 0; }
  __syncthreads();
  if (t == 0) {
    for (int i = w; i < 8; i += 2) {
      while (*(volatile int*)&turn != i) {}
      __threadfence_block();
      sum += i;
      __threadfence_block();
      *(volatile int*)&turn = i + 1;
    }
  }
  __syncthreads();
  out[threadIdx.x] = sum;
}
"""


def test_a_warp_that_polls_lets_others_run_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    polls, accessed = [], Pollers.accessed

    def counted(self: Pollers, *args: Any, **how: Any) -> None:
        polls.append(how["reads"])
        accessed(self, *args, **how)

    monkeypatch.setattr(Pollers, "accessed", counted)
    outcome = sanitizing.run(_TURNS)
    assert not outcome.findings
    assert (outcome.arrays["out"].view(np.float32) == 28).all()
    assert sum(polls) < 1000
