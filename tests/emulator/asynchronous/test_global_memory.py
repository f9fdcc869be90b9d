"""Races in global memory of kernels with mbarriers and bulk copies, in whatever order they run."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from pipelines import HELPERS

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

# Of 64 threads t in block b; `out` has 64 floats, `s` and `q` are in shared memory.
KERNEL = """
extern "C" __global__ void k(float* out) {
  __shared__ __align__(128) float s[64], q[64];
  __shared__ unsigned long long bar, meet;
  const int t = threadIdx.x, b = blockIdx.x;
  if (t == 0) { init(at(&bar), 1); init(at(&meet), 32); init_fence(); }
  s[t] = t;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  BODY
}
"""
EXTRA = """
DEVICE void reduce(void* to, const void* from, int n) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :: "l"(to), "r"(at(from)), "r"(n) : "memory");
}
DEVICE void stored(float* to, const float* from) { store(to, from, 256); commit(); wait_all(); }
DEVICE void reduced(float* to, const float* from) { reduce(to, from, 256); commit(); wait_all(); }
DEVICE void loaded(float* to, const float* from, unsigned bar) {
  arrive_expecting(bar, 256);
  load(to, from, 256, bar);
}
DEVICE void fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
"""
BULK = "missing proxy fence"
# How many blocks, what they do, and the kind of finding; none if it is sound.
CASES = {
    "a store and a plain update": (2, "if (b) out[t] += 1; else if (t == 0) stored(out, s);",
                                   "read after write"),
    "a plain store and a reduction": (2, "if (!b) out[t] = 1; else if (t == 0) reduced(out, s);",
                                      "write after write"),
    "a store and an atomic": (2, "if (b) atomicAdd(out + t, 1); else if (t == 0) stored(out, s);",
                              "write after write"),
    "a store and a reduction": (2, "if (t == 0) b ? reduced(out, s) : stored(out, s);",
                                "write after write"),
    "two stores": (2, "if (t == 0) stored(out, s);", "write after write"),
    "two reductions": (2, "if (t == 0) reduced(out, s);", ""),
    "a reduction and an atomic": (2, "if (b) atomicAdd(out + t, 1); else if (t == 0) "
                                     "reduced(out, s);", ""),
    "only the source waited for": (1, "if (t == 0) { store(out, s, 256); commit(); wait_read(); "
                                      "out[0] = out[1]; wait_all(); }", "read before wait"),
    "stored and read": (1, "if (t == 0) { stored(out, s); out[0] = out[1]; }", ""),
    "stored, and read by another warp": (1, "if (t == 0) stored(out, s);"
                                            "q[t] = out[t];", "read before wait"),
    "stored, and read after a barrier": (1, "if (t == 0) stored(out, s); __syncthreads();"
                                            "q[t] = out[t];", ""),
    "stored, and read after an mbarrier": (1, "if (t < 32) { if (t == 0) stored(out, s);"
                                              "__syncwarp();"
                                              "arrive(at(&meet)); } else { wait(at(&meet), 0);"
                                              "q[t] = out[t]; }", ""),
    "no proxy fence before a load": (1, "out[t] = 1; __syncthreads(); if (t == 0) loaded(q, out, "
                                        "at(&bar)); wait(at(&bar), 0);", BULK),
    "a proxy fence before a load": (1, "out[t] = 1; fence(); __syncthreads(); if (t == 0) "
                                       "loaded(q, out, at(&bar)); wait(at(&bar), 0);", ""),
    "loaded before it is stored": (1, "if (t == 0) { store(out, s, 256); commit(); wait_read();"
                                      "loaded(q, out, at(&bar)); } wait(at(&bar), 0);"
                                      "if (t == 0) wait_all();", "read after write"),
    "two stores of a thread": (1, "if (t == 0) { store(out, s, 256); commit(); stored(out, s); }",
                               "write after write"),
    "loaded and overwritten": (1, "if (t == 0) { stored(out, s); loaded(q, out, at(&bar)); }"
                                  "__syncthreads(); out[t] = 1; wait(at(&bar), 0);",
                               "write before wait"),
    "loaded, waited for and overwritten": (1, "if (t == 0) { stored(out, s); loaded(q, out, "
                                              "at(&bar)); } __syncthreads(); wait(at(&bar), 0);"
                                              "out[t] = 1;", ""),
    "no order between warps": (1, "if (t < 32) out[t] = out[t + 32] = 1; else q[t] = out[t - 32];",
                               "read after write"),
    "an mbarrier between warps": (1, "if (t < 32) { out[t] = 1; arrive(at(&meet)); } else {"
                                     "wait(at(&meet), 0); q[t] = out[t - 32]; }", ""),
    "written after the arrival": (1, "if (t < 32) { arrive(at(&meet)); out[t] = 1; } else {"
                                     "wait(at(&meet), 0); q[t] = out[t - 32]; }",
                                  "read after write"),
}  # fmt: skip


@cache
def ptx() -> str:
    parts = [HELPERS, EXTRA]
    for number, (_, body, _) in enumerate(CASES.values()):
        kernel = KERNEL.replace("void k(", f"void k{number}(").replace(
            "BODY", f"{body} if (q[t] == 99) out[t] = 0;"
        )
        parts.append(f"namespace n{number} {{{kernel}}}\n")
    file = SourceFile("".join(parts), "k.cu", "cuda", ("",), ())
    return compile_source(file, "n0::k0", "sm_90", assemble=False).ptx


def run(name: str, seed: int) -> Execution:
    memory = DeviceMemory()
    held = memory.allocate(256, "out")
    request = LaunchRequest(
        (CASES[name][0], 1, 1), (64, 1, 1), np.array([held.address], np.int64).tobytes()
    )
    program = load(ptx(), f"k{list(CASES).index(name)}")
    return program.run(request, memory, sanitize=True, warp_seed=seed)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(2)
def test_accesses_to_global_memory(name: str) -> None:
    wanted = CASES[name][2]
    for seed in (0, 1):
        found = run(name, seed).findings
        kinds = {each.kind for each in found if each.array == "out"}
        assert wanted in kinds if wanted else not kinds, found
