"""What one lane fences, releases or copies for its warp needs a `__syncwarp()` before it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from warpgroup_kernels import HELPERS, SOUND, run

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

_STORES = SOUND["stores"]
_HANDS_OVER = "      proxy_fence();\n      arrive(at(&full[s]));"
_ONE = "if (threadIdx.x % 32 == 0)"
# How 128 threads hand over what they have stored, how many of them arrive, and whether it is sound.
WAYS = {
    "each lane does both": (_HANDS_OVER, 128, True),
    "one lane fences": (f"{_ONE} proxy_fence(); arrive(at(&full[s]));", 128, False),
    "one lane fences, in step": (
        f"__syncwarp(); {_ONE} proxy_fence(); arrive(at(&full[s]));", 128, True),
    "one lane arrives": (f"proxy_fence(); {_ONE} arrive(at(&full[s]));", 4, False),
    "one lane arrives, in step": (
        f"proxy_fence(); __syncwarp(); {_ONE} arrive(at(&full[s]));", 4, True),
    "one lane arrives, after a shuffle": (
        f"proxy_fence(); __shfl_sync(~0u, i, 0); if (__any_sync(~0u, 1)) "
        f"{_ONE} arrive(at(&full[s]));", 4, True),
    "one lane does both": (f"{_ONE} {{ proxy_fence(); arrive(at(&full[s])); }}", 4, False),
    "lanes arrive in two branches": (
        "proxy_fence(); if (threadIdx.x % 2) arrive(at(&full[s])); "
        'else asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 1;" :: "r"(at(&full[s])));',
        128, True),
    "some lanes fence, then all": (
        f"{_ONE} proxy_fence(); proxy_fence(); arrive(at(&full[s]));", 128, True),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.sample(5)
def test_stores_that_wgmma_reads(name: str, seed: int) -> None:
    way, arrivals, sound = WAYS[name]
    assert _STORES.count(_HANDS_OVER) == 1
    source = _STORES.replace(_HANDS_OVER, way)
    source = source.replace("init(at(&full[s]), 128)", f"init(at(&full[s]), {arrivals})")
    execution, product, exact = run(source, (64, 32, 256), seed=seed, sanitize=True)
    assert np.array_equal(product, exact)
    kinds = {each.kind for each in execution.findings}
    assert kinds == (set() if sound else {"lanes not in step"}), execution.findings
    assert all(each.forgiven_by for each in execution.findings)
    assert all("no __syncwarp()" in each.message for each in execution.findings)


_COPY = """
extern "C" __global__ void k(float* out) {
  __shared__ __align__(16) float row[128];
  const int t = threadIdx.x;
  for (int i = 0; i < 4; ++i) row[INDEX] = INDEX;
  proxy_fence();
  BETWEEN
  if (ISSUES)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
                 :: "l"(out + FIRST), "r"(at(row + FIRST)), "r"(BYTES) : "memory");
}
"""


@cache
def _copied(*parts: str) -> str:
    source = HELPERS + _COPY
    for name, part in zip(("INDEX", "BETWEEN", "ISSUES", "FIRST", "BYTES"), parts, strict=True):
        source = source.replace(name, part)
    file = SourceFile(source, "k.cu", "cuda", ("",), ())
    return compile_source(file, "k", "sm_90", assemble=False).ptx


@pytest.mark.parametrize(
    ("parts", "sound"),
    [
        (("4 * t + i", "", "t == 0", "0", "512"), False),
        (("4 * t + i", "__syncwarp();", "t == 0", "0", "512"), True),
        (("4 * t + i", "", "t >= 0", "4 * t", "16"), True),
        (("32 * i + t", "", "t >= 0", "4 * t", "16"), False),
    ],
)
def test_stores_that_a_copy_of_one_lane_reads(parts: tuple[str, ...], sound: bool) -> None:
    memory = DeviceMemory()
    out = memory.allocate(512, "out")
    request = LaunchRequest((1, 1, 1), (32, 1, 1), out.address.to_bytes(8, "little"))
    program = load(_copied(*parts), "k", sanitize=True)
    execution = program.run(request, memory, sanitize=True)
    assert memory.view(out.address, 512).view(np.float32).tolist() == [*range(128)]
    kinds = {each.kind for each in execution.findings}
    assert kinds == (set() if sound else {"lanes not in step"}), execution.findings
