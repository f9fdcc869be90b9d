"""A product by wgmma whose tiles of A are multicast by tensor copies: sound, and with bugs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from cluster_kernels import HELPERS, LAST_MEETING
from launching import parsed
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile
from gemmkit.tensor_maps import TensorMap

SUMS = 4
_D = ", ".join(f"%{number}" for number in range(SUMS))
_OUTPUTS = ", ".join(f'"+f"(d[{number}])' for number in range(SUMS))
_WGMMA = f"""
struct alignas(64) Map {{ unsigned long long words[16]; }};
DEVICE void tensor(void* to, const Map* map, int x, int y, unsigned b) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {{%2, %3}}], [%4];"
               :: "r"(at(to)), "l"(map), "r"(x), "r"(y), "r"(b) : "memory");
}}
DEVICE void tensor_multicast(void* to, const Map* map, int x, int y, unsigned b, short mask) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {{%2, %3}}], [%4], %5;"
               :: "r"(at(to)), "l"(map), "r"(x), "r"(y), "r"(b), "h"(mask) : "memory");
}}
DEVICE unsigned long long descriptor(const void* tile) {{
  return (at(tile) & 0x3FFFF) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}}
DEVICE void multiply(float (&d)[{SUMS}], unsigned long long a, unsigned long long b, int adds) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{SUMS + 2}, 0;"
    " wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
    " {{{_D}}}, %{SUMS}, %{SUMS + 1}, p, 1, 1, 0, 0; }}"
    : {_OUTPUTS} : "l"(a), "l"(b), "r"(adds));
}}
"""

# The two blocks of a cluster have the same 64 rows of A, and 8 columns each. Each loads half of
# the tile of A for both.
KERNEL = (
    HELPERS
    + _WGMMA
    + """
constexpr int BM = 64, BN = 8, BK = 64, STAGES = 2, CONSUMERS = 128;
extern "C" __global__ void __cluster_dims__(2, 1, 1)
k(const __grid_constant__ Map map_a, const __grid_constant__ Map map_b, float* C, int N, int K) {
  __shared__ __align__(1024) unsigned short As[STAGES][BM * BK], Bs[STAGES][BN * BK];
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  const unsigned rank = rank_of();
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      init(at(&full[s]), 1);
      init(at(&empty[s]), 2 * CONSUMERS / 32);
    }
    init_fence();
  }
  cluster_arrive();
  cluster_wait();
  const int row = blockIdx.y * BM, column = blockIdx.x * BN;
  if (threadIdx.x >= CONSUMERS) {
    if (threadIdx.x == CONSUMERS)
      #pragma unroll 1
      for (int i = 0; i < K / BK; ++i) {
        const int s = i % STAGES;
        wait(at(&empty[s]), i / STAGES & 1 ^ 1);
        expect(at(&full[s]), 2 * (BM + BN) * BK);
        const int half = rank * BM / 2;
        tensor_multicast(As[s] + half * BK, &map_a, i * BK, row + half, at(&full[s]), 3);
        tensor(Bs[s], &map_b, i * BK, column, at(&full[s]));
      }
  } else {
    float d[4] = {};
    #pragma unroll 1
    for (int i = 0; i < K / BK; ++i) {
      const int s = i % STAGES;
      wait(at(&full[s]), i / STAGES & 1);
      const unsigned long long left = descriptor(As[s]), right = descriptor(Bs[s]);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int k = 0; k < BK / 16; ++k) multiply(d, left + 2 * k, right + 2 * k, i + k);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (threadIdx.x % 32 < 2) arrive_at(at(&empty[s]), threadIdx.x % 32);
      __syncwarp();
    }
    const int own = row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    for (int r = 0; r < 4; ++r)
      C[(own + 8 * (r / 2)) * N + column + threadIdx.x % 4 * 2 + r % 2] = d[r];
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
}
"""
)

# What is replaced, by what; the kinds of findings, of which one must be found.
BUGS: dict[str, tuple[str, str, set[str]]] = {
    "the mask names a block outside of the cluster": (
        "at(&full[s]), 3)",
        "at(&full[s]), 6)",
        {"invalid multicast"},
    ),
    "a peer announces no bytes": (
        "        expect(at(&full[s])",
        "        if (rank == 0) expect(at(&full[s])",
        {"deadlock"},
    ),
    "a peer announces its own half only": (
        "expect(at(&full[s]), 2 * (BM + BN) * BK)",
        "expect(at(&full[s]), 2 * ((rank ? BM / 2 : BM) + BN) * BK)",
        {"deadlock", "read before wait", "too many bytes"},
    ),
    "a stage refilled before the peer's consumers released it": (
        "arrive_at(at(&empty[s]), threadIdx.x % 32)",
        "arrive_at(at(&empty[s]), rank)",
        {"overwritten before read"},
    ),
    "a stage released before its products are complete": (
        'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");',
        'asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");',
        {"write after read", "accumulator in flight"},
    ),
    "the multicast begins before the peer's mbarriers are there": (
        "  cluster_arrive();\n  cluster_wait();\n  const int row",
        "  __syncthreads();\n  const int row",
        {"mbarrier not visible", "block may not run yet", "invalid mbarrier"},
    ),
    "a block ends while its peer still releases": (
        "  __syncwarp();\n" + LAST_MEETING,
        "}\n",
        {"block may have exited"},
    ),
}


def with_bug(name: str) -> str:
    """The source of the kernel with a bug."""
    old, new, _ = BUGS[name]
    assert KERNEL.count(old) == 1, name
    return KERNEL.replace(old, new)


@cache
def compiled(source: str) -> str:
    """The PTX of a kernel."""
    file = SourceFile(source, "k.cu", "cuda", ("",), ("--minimal",))
    return compile_source(file, "k", "sm_90a", assemble=False).ptx


def run(
    source: str = KERNEL,
    sizes: tuple[int, int, int] = (64, 16, 256),
    *,
    seed: int = 0,
    sanitize: bool = False,
    by_oracle: bool = False,
    **options: Any,
) -> tuple[Execution, NDArray[np.float32], NDArray[np.float32]]:
    """Run a kernel on small integers; returns its product and what that should be. `options` are
    those of `Program.run`."""
    m, n, k = sizes
    rng = np.random.default_rng(3)
    memory, parameters = DeviceMemory(), b""
    operands = []
    for name, rows, box in (("A", m, 32), ("B", n, 8)):
        numbers = rng.integers(-4, 5, (rows, k)).astype(np.float32)
        bits = (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        held = memory.allocate(bits.nbytes, name)
        memory.view(held.address, held.nbytes)[:] = bits.view(np.uint8).reshape(-1)
        each = TensorMap(held.address, "bfloat16", (k, rows), (2 * k,), (64, box), swizzle=128)
        parameters += encoded(each)
        operands.append(numbers)
    c = memory.allocate(4 * m * n, "C", initialized=False)
    parameters += c.address.to_bytes(8, "little") + np.array([n, k], np.int32).tobytes()
    request = LaunchRequest((n // 8, m // 64, 1), (160, 1, 1), parameters)
    ptx = compiled(source)
    if by_oracle:
        execution = oracle.run(parsed(ptx)[1], request, memory)
    else:
        execution = load(ptx, "k", sanitize=sanitize).run(
            request, memory, warp_seed=seed, sanitize=sanitize, max_steps=5_000_000, **options
        )
    found = memory.view(c.address, c.nbytes).view(np.float32).reshape(m, n).copy()
    return execution, found, operands[0] @ operands[1].T
