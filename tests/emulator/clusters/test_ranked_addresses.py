"""Addresses of shared memory hold the rank of their block, and so do descriptors made of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cluster_kernels import HELPERS
from launching import parsed
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.launch import Execution
from gemmkit.errors import DeviceError
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

# Each block of a cluster of two multiplies an A of its own, 64×16, by B, 16×8. In shared memory A
# is M-major with a swizzle of 64 bytes: its leading offset leads to the second 32 rows. B is
# K-major with a swizzle of 32 bytes.
KERNEL = """
DEVICE unsigned long long descriptor(unsigned at, unsigned leading, unsigned stride,
                                     unsigned long long swizzle) {
  return at >> 4 | leading >> 4 << 16 | (unsigned long long)(stride >> 4) << 32 | swizzle << 62;
}
extern "C" __global__ void __cluster_dims__(2, 1, 1)
k(const unsigned short* A, const unsigned short* B, float* C) {
  __shared__ __align__(1024) unsigned short As[64 * 16], Bs[8 * 16];
  const int t = threadIdx.x, block = blockIdx.x;
  for (int i = t; i < 64 * 16; i += 128) {
    const int m = i % 64, k = i / 64, place = m / 32 * 1024 + k / 8 * 512 + k % 8 * 64 + m % 32 * 2;
    As[(place ^ (place >> 7 & 3) << 4) / 2] = A[block * 64 * 16 + m * 16 + k];
  }
  const int byte = t * 2;
  Bs[(byte ^ (byte >> 7 & 1) << 4) / 2] = B[t];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;\\n"
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5,"
    " 0, 1, 1, 1, 0;\\n"
    "wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;\\n"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "l"(descriptor(at(As) MASK_A, 1024, 512, 2)), "l"(descriptor(at(Bs) MASK_B, 16, 256, 3))
    : "memory");
  for (int r = 0; r < 4; ++r)
    C[(block * 64 + t / 32 * 16 + t % 32 / 4 + 8 * (r / 2)) * 8 + t % 4 * 2 + r % 2] = d[r];
}
"""
MASK = "& 0x3FFFF"


@cache
def compiled(a: str, b: str) -> str:
    source = HELPERS + KERNEL.replace("MASK_A", a).replace("MASK_B", b)
    file = SourceFile(source, "k.cu", "cuda", ("",), ())
    return compile_source(file, "k", "sm_90a", assemble=False).ptx


def bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
    bits = (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return bits.view(np.uint8).reshape(-1)


def run(
    a: str, b: str, *, sanitize: bool = False, by_oracle: bool = False
) -> tuple[Execution, NDArray[np.bool_]]:
    """Run the kernel; which of the blocks' products are right."""
    rng = np.random.default_rng(5)
    memory, parameters = DeviceMemory(), b""
    left, right = (
        rng.integers(-4, 5, shape).astype(np.float32) for shape in ((2, 64, 16), (8, 16))
    )
    for name, numbers in (("A", left), ("B", right)):
        held = memory.allocate(numbers.size * 2, name)
        memory.view(held.address, held.nbytes)[:] = bfloat16(numbers)
        parameters += held.address.to_bytes(8, "little")
    c = memory.allocate(4 * 2 * 64 * 8, "C", initialized=False)
    parameters += c.address.to_bytes(8, "little")
    request = LaunchRequest((2, 1, 1), (128, 1, 1), parameters)
    ptx = compiled(a, b)
    if by_oracle:
        execution = oracle.run(parsed(ptx)[1], request, memory)
    else:
        execution = load(ptx, "k", sanitize=sanitize).run(request, memory, sanitize=sanitize)
    found = memory.view(c.address, c.nbytes).view(np.float32).reshape(2, 64, 8)
    return execution, (found == left @ right.T).all(axis=(1, 2))


@pytest.mark.parametrize("by_oracle", [False, True])
@pytest.mark.parametrize(
    ("a", "b", "right"), [(MASK, MASK, True), (MASK, "", True), ("", MASK, False)]
)
@pytest.mark.sample
def test_the_rank_in_a_descriptor_counts_where_the_leading_offset_does(
    a: str, b: str, right: bool, by_oracle: bool
) -> None:
    _, found = run(a, b, by_oracle=by_oracle)
    assert found.tolist() == [True, right]


def test_masked_descriptors_are_no_finding() -> None:
    execution, found = run(MASK, MASK, sanitize=True)
    assert found.all()
    assert not execution.findings


def test_a_k_major_operand_is_forgiven() -> None:
    execution, found = run(MASK, "", sanitize=True)
    (finding,) = execution.findings
    assert found.all()
    assert (finding.check, finding.kind) == ("synccheck", "rank in descriptor")
    assert "the descriptor of B" in finding.message
    assert "block (1, 0, 0) (rank 1)" in finding.message
    assert "its leading offset is 272 bytes, and 16 without the rank" in finding.message
    assert "mask the shared address to 18 bits" in finding.message
    assert finding.forgiven_by.startswith("current hardware")


def test_an_m_major_operand_is_wrong() -> None:
    execution, found = run("", MASK, sanitize=True)
    kinds = {each.kind: each for each in execution.findings}
    assert found.tolist() == [True, False]
    assert "the descriptor of A" in kinds["rank in descriptor"].message
    assert not kinds["rank in descriptor"].forgiven_by


ACCESS = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(unsigned* out) {
  __shared__ unsigned own[32];
  const unsigned rank = rank_of(), t = threadIdx.x;
  own[t] = 100 * rank + t;
  cluster_arrive();
  cluster_wait();
  unsigned a = at(own) + 4 * t, found = 0, peer;
  READ
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(a), "r"(rank ^ 1));
  out[blockIdx.x * 64 + t] = found;
  out[blockIdx.x * 64 + 32 + t] = (peer >> 24) * 10 + (at(own) >> 24);
  cluster_arrive();
  cluster_wait();
}
"""


def access(form: str, *, by_oracle: bool) -> NDArray[np.uint32]:
    text = f'asm volatile("{form}" : "=r"(found) : "r"(a & 0xFFFFFF), "r"(a));'
    file = SourceFile(HELPERS + ACCESS.replace("READ", text), "k.cu", "cuda", ("",), ())
    ptx = compile_source(file, "k", "sm_90a", assemble=False).ptx
    memory = DeviceMemory()
    out = memory.allocate(4 * 128, "out", initialized=False)
    request = LaunchRequest((2, 1, 1), (32, 1, 1), out.address.to_bytes(8, "little"))
    if by_oracle:
        oracle.run(parsed(ptx)[1], request, memory)
    else:
        load(ptx, "k").run(request, memory)
    return memory.view(out.address, out.nbytes).view(np.uint32).reshape(2, 2, 32).copy()


@pytest.mark.parametrize("by_oracle", [False, True])
def test_the_rank_is_in_addresses(by_oracle: bool) -> None:
    lanes = np.arange(32)
    found = access("ld.shared.u32 %0, [%2];", by_oracle=by_oracle)
    assert np.array_equal(found[:, 0], [lanes, 100 + lanes])
    assert np.array_equal(found[:, 1], [np.full(32, 10), np.full(32, 1)])


@pytest.mark.parametrize("by_oracle", [False, True])
def test_an_address_without_its_rank_is_that_of_rank_0(by_oracle: bool) -> None:
    """As on an H100, which reports an illegal instruction where only own memory is accessed."""
    found = access("ld.shared::cluster.u32 %0, [%1];", by_oracle=by_oracle)
    assert np.array_equal(found[:, 0], [np.arange(32)] * 2)
    with pytest.raises(DeviceError, match=r"out of bounds"):
        access("ld.shared.u32 %0, [%1];", by_oracle=by_oracle)
