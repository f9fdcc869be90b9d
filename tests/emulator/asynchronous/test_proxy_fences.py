"""Proxy fences in global memory between blocks: at the writer, at the reader, or at neither."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from pipelines import HELPERS

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

# Block 0 writes `out` and sets a flag; block 1 waits for the flag and reads `out` by a bulk copy.
# Two warps each; the words behind `out` are flags, which the last block clears.
KERNEL = """
extern "C" __global__ void k(float* out) {
  __shared__ __align__(128) float q[64];
  __shared__ unsigned long long bar;
  const int t = threadIdx.x, b = blockIdx.x;
  int* flags = (int*)(out + 64);
  if (t == 0) { init(at(&bar), 1); init_fence(); }
  __syncthreads();
  if (b == 0) { WRITES } else { READS }
}
"""
PROXY = """
DEVICE void fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
DEVICE void fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
DEVICE void loaded(float* to, const float* from, unsigned bar) {
  arrive_expecting(bar, 256);
  load(to, from, 256, bar);
}
DEVICE void set(int* flag) { atomicExch(flag, 1); }
DEVICE void await(int* flag) { while (atomicAdd(flag, 0) == 0); atomicExch(flag, 0); }
"""
SET = "__threadfence(); __syncthreads(); if (t == 0) set(flags);"
WRITES = "out[t] = t;" + SET
WRITES_FENCED = "out[t] = t; fence();" + SET
AWAIT = "if (t == 0) { await(flags); __threadfence();"
LOAD = "loaded(q, out, at(&bar)); }"
WAIT = "wait(at(&bar), 0); out[128 + t] = q[t];"
OTHER_WARP = (
    "__syncthreads(); if (t == 32) { loaded(q, out, at(&bar)); } wait(at(&bar), 0);"
    "out[128 + t] = q[t];"
)
STORED = "store(out, q, 256); commit(); wait_all(); }"
FILL = "q[t] = t; fence(); __syncthreads();"
# The blocks, what block 0 does, what the others do, and whether a proxy fence is missing.
CASES = {
    "no fence": (2, WRITES, AWAIT + LOAD + WAIT, True),
    "at the writer": (2, WRITES_FENCED, AWAIT + LOAD + WAIT, False),
    "at the writer, for global memory": (
        2, "out[t] = t; fence_global();" + SET, AWAIT + LOAD + WAIT, False),
    "at the writer, for shared memory": (
        2, "out[t] = t; proxy_fence();" + SET, AWAIT + LOAD + WAIT, True),
    "at the reader, for shared memory": (2, WRITES, AWAIT + "proxy_fence();" + LOAD + WAIT, True),
    "before the write": (2, "fence(); out[t] = t;" + SET, AWAIT + LOAD + WAIT, True),
    "by one writer for all": (
        2, "out[t] = t; __threadfence(); __syncthreads(); if (t == 0) { fence(); set(flags); }",
        AWAIT + LOAD + WAIT, False),
    "by one writer too early": (
        2, "if (t == 0) fence(); out[t] = t;" + SET, AWAIT + LOAD + WAIT, True),
    "by one of two warps": (2, "out[t] = t; if (t < 32) fence();" + SET, AWAIT + LOAD + WAIT, True),
    "at the reader": (2, WRITES, AWAIT + "fence();" + LOAD + WAIT, False),
    "at the reader, for global memory": (
        2, WRITES, AWAIT + "fence_global();" + LOAD + WAIT, False),
    "at the reader, before it knows": (
        2, WRITES, "if (t == 0) { fence(); await(flags); __threadfence();" + LOAD + WAIT, True),
    "by another warp of the reader": (2, WRITES, AWAIT + "fence(); }" + OTHER_WARP, False),
    "by the warp that loads": (
        2, WRITES, AWAIT + "}" + OTHER_WARP.replace("{ loaded", "{ fence(); loaded"), False),
    "by no warp of the reader": (2, WRITES, AWAIT + "}" + OTHER_WARP, True),
    "by an atomic": (2, "atomicAdd(out + t, 1);" + SET, AWAIT + LOAD + WAIT, True),
    "by an atomic, fenced": (
        2, "atomicAdd(out + t, 1); fence();" + SET, AWAIT + LOAD + WAIT, False),
    "overwritten": (2, WRITES, FILL + AWAIT + STORED, True),
    "overwritten after a fence": (2, WRITES, FILL + AWAIT + "fence();" + STORED, False),
    "through a third block": (
        3, WRITES, "if (t == 0 && b == 1) { await(flags); __threadfence(); set(flags + 1); }"
        "if (b == 2) { if (t == 0) { await(flags + 1); __threadfence();" + LOAD + WAIT + "}", True),
    "in a third block": (
        3, WRITES,
        "if (t == 0 && b == 1) { await(flags); __threadfence(); fence(); __threadfence();"
        "set(flags + 1); } if (b == 2) { if (t == 0) { await(flags + 1); __threadfence();"
        + LOAD + WAIT + "}", False),
    "at the writer, through a third block": (
        3, WRITES_FENCED, "if (t == 0 && b == 1) { await(flags); __threadfence(); set(flags + 1); }"
        "if (b == 2) { if (t == 0) { await(flags + 1); __threadfence();"
        + LOAD + WAIT + "}", False),
    "written by a bulk copy": (
        2, FILL + "if (t == 0) { " + STORED + SET, AWAIT + LOAD + WAIT, False),
}  # fmt: skip


@cache
def ptx() -> str:
    parts = [HELPERS, PROXY]
    for number, (_, writes, reads, _) in enumerate(CASES.values()):
        kernel = KERNEL.replace("void k(", f"void k{number}(")
        kernel = kernel.replace("WRITES", writes).replace("READS", reads)
        parts.append(f"namespace n{number} {{{kernel}}}\n")
    file = SourceFile("".join(parts), "k.cu", "cuda", ("",), ())
    return compile_source(file, "n0::k0", "sm_90", assemble=False).ptx


def run(name: str, seed: int) -> Execution:
    memory = DeviceMemory()
    held = memory.allocate(4 * 256, "out")
    arguments = np.array([held.address], np.int64).tobytes()
    request = LaunchRequest((CASES[name][0], 1, 1), (64, 1, 1), arguments)
    program = load(ptx(), f"k{list(CASES).index(name)}")
    return program.run(request, memory, sanitize=True, warp_seed=seed)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(4)
def test_a_proxy_fence_between_blocks(name: str) -> None:
    for seed in (0, 1):
        found = run(name, seed).findings
        if not CASES[name][3]:
            assert not found
            continue
        (finding,) = found
        assert finding.kind == "missing proxy fence"
        assert "of block (0, 0, 0) at k.cu" in finding.message.split("which", 1)[1]
        assert "with no fence.proxy.async, or fence.proxy.async.global, between" in finding.message
