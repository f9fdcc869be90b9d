"""wgmma reads tiles with the swizzle with which tensor copies wrote them, or that is a finding."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from warpgroup_kernels import HELPERS, _wrapper, bf16

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.findings import Finding
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile
from gemmkit.tensor_maps import TensorMap

# C = A·B of 64x32x64, the tile of A so many bytes after a multiple of 1024; `bits` are the upper
# half of the descriptor of A.
KERNEL = (
    HELPERS
    + _wrapper(32)
    + """
struct alignas(64) Map { unsigned char bytes[128]; };
DEVICE void load_box(void* to, const Map* map, unsigned b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3}], [%4];"
               :: "r"(at(to)), "l"(map), "r"(0), "r"(0), "r"(b) : "memory");
}
extern "C" __global__ void __launch_bounds__(128)
k(const __grid_constant__ Map map_a, const __grid_constant__ Map map_b, float* C, int offset,
  unsigned bits) {
  __shared__ __align__(1024) unsigned char As[10240], Bs[4096];
  __shared__ unsigned long long full;
  const int t = threadIdx.x;
  for (int i = t; i < 2560; i += 128) ((int*)As)[i] = 0;
  proxy_fence();
  if (t == 0) { init(at(&full), 1); init_fence(); }
  __syncthreads();
  if (t == 0) {
    arrive_expecting(at(&full), 8192 + 4096);
    load_box(As + offset, &map_a, at(&full));
    load_box(Bs, &map_b, at(&full));
  }
  wait(at(&full), 0);
  float d[16] = {};
  keep(d);
  const unsigned long long upper = (unsigned long long)bits << 32;
  const unsigned long long left = at(As + offset) >> 4 | 1ull << 16 | upper;
  const unsigned long long right = descriptor(Bs);
  fence();
  for (int k = 0; k < 4; ++k) multiply(d, left + 2 * k, right + 2 * k, k);
  commit();
  wait_groups<0>();
  keep(d);
  const int row = t / 32 * 16 + t % 32 / 4;
  for (int j = 0; j < 16; ++j)
    C[(row + j / 2 % 2 * 8) * 32 + j / 4 * 8 + t % 4 * 2 + j % 2] = d[j];
}
"""
)
# The upper half of a descriptor: the stride offset, the swizzle, and the base offset.
S128, S64, S32 = 64 | 1 << 30, 64 | 2 << 30, 64 | 3 << 30
BASE = 1 << 17


@cache
def _ptx() -> str:
    file = SourceFile(KERNEL, "k.cu", "cuda", ("",), ())
    return compile_source(file, "k", "sm_90a", assemble=False).ptx


def run(offset: int, bits: int, swizzle: int = 128) -> tuple[tuple[Finding, ...], bool]:
    """The findings, and whether the result is right."""
    generator = np.random.default_rng(3)
    a, b = (generator.integers(-4, 5, (rows, 64)).astype(np.float32) for rows in (64, 32))
    memory, packed = DeviceMemory(), b""
    for name, matrix, of in (("A", a, swizzle), ("B", b, 128)):
        held = memory.allocate(2 * matrix.size, name)
        memory.view(held.address, held.nbytes)[:] = bf16(matrix).view(np.uint8).reshape(-1)
        rows = len(matrix)
        packed += encoded(TensorMap(held.address, "bfloat16", (64, rows), (128,), (64, rows),
                                    swizzle=of))  # fmt: skip
    held = memory.allocate(4 * 64 * 32, "C")
    packed += held.address.to_bytes(8, "little") + np.array([offset, bits], np.uint32).tobytes()
    request = LaunchRequest((1, 1, 1), (128, 1, 1), packed)
    found = load(_ptx(), "k", sanitize=True).run(request, memory, sanitize=True).findings
    c = memory.view(held.address, held.nbytes).view(np.float32).reshape(64, 32)
    return found, bool(np.array_equal(c, a @ b.T))


# Both count the lines of the pattern by bits of the address.
@pytest.mark.parametrize("offset", [0, 128, 256, 512, 896, 1024])
def test_a_tile_anywhere_in_the_pattern(offset: int) -> None:
    assert run(offset, S128) == ((), True)


@pytest.mark.parametrize(
    ("offset", "bits", "words"),
    [
        (0, S128 | BASE, "a 128-byte swizzle and base offset 1"),
        (256, S128 | 2 * BASE, "a 128-byte swizzle and base offset 2"),
        (512, S128 | 4 * BASE, "a 128-byte swizzle and base offset 4"),
        (0, S64, "a 64-byte swizzle,"),
        (0, S32, "a 32-byte swizzle,"),
        (0, 64, "no swizzle,"),
    ],
)
def test_another_pattern_or_phase(offset: int, bits: int, words: str) -> None:
    (found,), right = run(offset, bits)
    assert not right
    assert (found.check, found.kind, found.array) == ("synccheck", "swizzle mismatch", "As")
    assert f"as part of A with {words}" in found.message
    assert "writes with a 128-byte swizzle" in found.message
    assert ("base offset 0" in found.message) == ("base offset" in words)


def test_a_tile_without_a_swizzle_may_be_swizzled_in_global_memory() -> None:
    assert run(0, S128, swizzle=0) == ((), False)
