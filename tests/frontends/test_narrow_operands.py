"""Users' kernels whose A and B have 8 bits, e4m3 or e5m2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemmkit
from gemmkit import GemmProblem, Kernel
from gemmkit.errors import GemmkitError, UnsupportedType, UsageError

NAIVE = """#include <cuda_fp8.h>
#include <cuda_fp16.h>
__global__ void k(const TYPE* A, const TYPE* B, float* C, int M, int N, int K) {
  const int n = blockIdx.x * 32 + threadIdx.x, m = blockIdx.y;
  if (n >= N) return;
  float sum = 0;
  for (int i = 0; i < K; ++i) sum += float(A[m * K + i]) * float(B[i * N + n]);
  C[m * N + n] = sum;
}
"""

# A by tensor copies of bytes, on tensor cores; B is N×K.
WGMMA = """#include <cuda.h>
#include <cuda_fp8.h>
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__global__ void k(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                  float* C, int N, int K) {
  __shared__ __align__(1024) unsigned char As[64 * 128], Bs[8 * 128];
  __shared__ unsigned long long full;
  const int t = threadIdx.x, n = blockIdx.x * 8, m = blockIdx.y * 64;
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&full)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  float d[4] = {};
  for (int k = 0; k < (K + 127) / 128; ++k) {
    if (t == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 9216;"
                   :: "r"(at(&full)) : "memory");
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                   " [%0], [%1, {%2, %3}], [%4];"
                   :: "r"(at(As)), "l"(&a), "r"(k * 128), "r"(m), "r"(at(&full)) : "memory");
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                   " [%0], [%1, {%2, %3}], [%4];"
                   :: "r"(at(Bs)), "l"(&b), "r"(k * 128), "r"(n), "r"(at(&full)) : "memory");
    }
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
                 " @!p bra W; }" :: "r"(at(&full)), "r"(k & 1) : "memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    const unsigned long long fields = 1ull << 16 | 64ull << 32 | 1ull << 62;
    for (int i = 0; i < 4; ++i)
      asm volatile("{ .reg .pred p; setp.ne.u32 p, 1, 0;"
        " wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, p, 1, 1; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(((at(As) & 0x3FFFF) >> 4) + 2 * i | fields),
          "l"(((at(Bs) & 0x3FFFF) >> 4) + 2 * i | fields));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    __syncthreads();
  }
  for (int r = 0; r < 4; ++r)
    C[(m + t / 32 * 16 + t % 32 / 4 + 8 * (r / 2)) * N + n + t % 4 * 2 + r % 2] = d[r];
}
"""


def check(path: Path, text: str, shape: str, types: dict[str, str], **launch: Any) -> Any:
    source = path / "mine.cu"
    source.write_text(text, "utf-8")
    kernel = Kernel.from_file(source, **launch)
    (record,) = gemmkit.check(kernel, [shape], gpu="h100", **types)
    return record


@pytest.mark.parametrize(
    ("declared", "types"),
    [
        ("__nv_fp8_e4m3", {}),
        ("__nv_fp8_e5m2", {"dtype": "e5m2"}),
    ],
)
@pytest.mark.sample(2)
def test_a_plain_kernel(tmp_path: Path, declared: str, types: dict[str, str]) -> None:
    launch: dict[str, Any] = {"grid": "(N+31)/32,M", "block": 32}
    text = NAIVE.replace("TYPE", declared)
    record = check(tmp_path, text, "9x40x17", types, **launch)
    assert record.verdict == "ok", record.detail
    wrong = check(tmp_path, text.replace("i < K", "i < K - 1"), "9x40x17", types, **launch)
    assert wrong.verdict == "wrong result"


def test_tensor_maps_and_tensor_cores(tmp_path: Path) -> None:
    launch: dict[str, Any] = {
        "grid": "N/8,M/64",
        "block": 128,
        "layout": "NT",
        "multiple_of": (64, 8, 16),
        "tensor_maps": ["a=A,box=128x64,swizzle=128B", "b=B,box=128x8,swizzle=128B"],
    }
    types = {"dtype": "e4m3", "out_dtype": "fp32"}
    record = check(tmp_path, WGMMA, "64x16x272", types, **launch)
    assert record.verdict == "ok", record.detail
    assert not record.findings


def test_results_and_gemmkits_own_kernels_have_other_types() -> None:
    assert GemmProblem(8, 8, 8, dtype="e4m3").result_dtype == "float32"  # type: ignore[arg-type]
    with pytest.raises(UnsupportedType, match="not a type that gemmkit computes"):
        gemmkit.matmul(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32), out_dtype="tf32")


def test_a_matrix_c_of_8_bits_is_refused(tmp_path: Path) -> None:
    text = NAIVE.replace("TYPE", "__nv_fp8_e4m3").replace("float* C", "__nv_fp8_e4m3* C")
    with pytest.raises((UsageError, GemmkitError), match="for A and B only"):
        check(
            tmp_path, text.replace("= sum;", "= __nv_fp8_e4m3(sum);"), "8x8x8", {}, grid="1",
            block=32,
        )  # fmt: skip
