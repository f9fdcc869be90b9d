"""The sanitizers find each bug planted in a product by wgmma."""

from __future__ import annotations

import pytest
from warpgroup_kernels import BUGS, HELPERS, _wrapper, compiled, run, with_bug

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.findings import Finding

SEEDS = (0, 1, 2)


@pytest.mark.parametrize(
    ("name", "seed"), [(name, SEEDS[index % len(SEEDS)]) for index, name in enumerate(BUGS)]
)
@pytest.mark.sample(4)
def test_a_bug_is_found(name: str, seed: int) -> None:
    execution, _, _ = run(with_bug(name), seed=seed, sanitize=True)
    kinds = {each.kind for each in execution.findings}
    assert kinds & BUGS[name][3], execution.findings


# The sums are zeroed before the fence, whose asm does not name them.
ZEROED = """
extern "C" __global__ void __launch_bounds__(128) k(float* C) {
  __shared__ __align__(1024) half_t As[64 * 64];
  __shared__ __align__(1024) half_t Bs[32 * 64];
  for (int i = threadIdx.x; i < 64 * 64; i += 128) As[i] = Bs[i % (32 * 64)] = 0;
  proxy_fence();
  __syncthreads();
  float d[16];
  for (int j = 0; j < 16; ++j) { d[j] = 0; NAMED }
  fence();
  multiply(d, descriptor(As), descriptor(Bs), 1);
  commit();
  wait_groups<0>();
  keep(d);
  C[threadIdx.x] = d[0];
}
"""


def of_zeroed(named: str) -> tuple[Finding, ...]:
    text = HELPERS + _wrapper(32) + ZEROED.replace("NAMED", named)
    memory = DeviceMemory()
    c = memory.allocate(4 * 128, "C", initialized=False)
    request = LaunchRequest((1, 1, 1), (128, 1, 1), c.address.to_bytes(8, "little"))
    return load(compiled(text), "k", sanitize=True).run(request, memory, sanitize=True).findings


def test_a_write_that_the_compiler_moves_past_the_fence_is_told_with_both_lines() -> None:
    (found,) = of_zeroed("")
    assert found.kind == "missing wgmma.fence"
    assert "the compiler zeroes it at k.cu:" in found.message
    assert "after the wgmma.fence at k.cu:" in found.message
    assert 'asm volatile("" : "+f"(d[i]) :: "memory")' in found.message
    assert found.forgiven_by
    assert not of_zeroed('asm volatile("" : "+f"(d[j]) :: "memory");')
