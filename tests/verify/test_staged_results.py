"""Results that a kernel stages in shared memory are none of the operands that lie there."""

from __future__ import annotations

import pytest

from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_kernel, compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.verify.roundings import arithmetic_of

SMALL = {"BM": 64, "BN": 32, "stages": 3, "consumers": 1, "cluster_m": 1}

# One warp multiplies fragments out of shared memory. Its sums go to shared memory as bfloat16, at
# the end, or at each step, to be added to.
KERNEL = """
__device__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ unsigned pair(float x, float y) {
  unsigned word;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  return word;
}
__device__ float low(unsigned word) { return __uint_as_float(word << 16); }
__device__ float high(unsigned word) { return __uint_as_float(word & 0xFFFF0000); }

extern "C" __global__ void staged(int K, const unsigned* A, const unsigned* B, unsigned* C) {
  __shared__ unsigned words[4 * 32 + 2 * 32 + 2 * 32];
  const int lane = threadIdx.x;
  float sums[4] = {};
  for (int k = 0; k < K; k += 16) {
    for (int i = 0; i < 4; ++i) words[32 * i + lane] = A[4 * (k * 2 + lane) + i];
    for (int i = 0; i < 2; ++i) words[128 + 32 * i + lane] = B[2 * (k * 2 + lane) + i];
    __syncthreads();
    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) a[i] = words[32 * i + (lane ^ 1)];
    for (int i = 0; i < 2; ++i) b[i] = words[128 + 32 * i + (lane ^ 1)];
    mma(sums, a, b);
    __syncthreads();
#ifdef EACH_STEP
    for (int i = 0; i < 2; ++i) words[192 + 32 * i + lane] = pair(sums[2 * i], sums[2 * i + 1]);
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
      const unsigned word = words[192 + 32 * i + (lane ^ 2)];
      sums[2 * i] = low(word), sums[2 * i + 1] = high(word);
    }
#endif
  }
  for (int i = 0; i < 2; ++i) words[192 + 32 * i + lane] = pair(sums[2 * i], sums[2 * i + 1]);
  __syncthreads();
  for (int i = 0; i < 2; ++i) C[32 * i + lane] = words[192 + 32 * i + (lane ^ 3)];
}
"""


def arithmetic(options=()):
    found = compile_kernel(KERNEL, "staged", "sm_80", options=options, assemble=False)
    return arithmetic_of(found.ptx, found.entry, "bfloat16", "bfloat16")


def test_the_rounding_on_the_way_out_is_that_of_the_result():
    found = arithmetic()
    assert not found.rounded
    assert found.tensor is not None


def test_sums_that_are_staged_at_each_step_are_rounded_at_each():
    (rounded,) = arithmetic(["-DEACH_STEP"]).rounded
    assert rounded.format.name == "bfloat16"
    assert rounded.rate == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [(65, 33, 193), (64, 40, 192)], ids=["from shared", "by TMA"])
def test_gemm_wgmma_rounds_its_results_once(dtype, sizes):
    kernel, board = find_kernel("gemm_wgmma"), find_board("h100")
    plan = kernel.plan(GemmProblem(*sizes, dtype=dtype), kernel.configure(SMALL), board)
    found = compile_plan(plan, board.arch, assemble=False)
    assert not arithmetic_of(found.ptx, found.entry, dtype, dtype).rounded


# Sums on tensor cores in 8 bits, which go to C through shared memory and a bulk copy.
BULK_STORE = """
extern "C" __global__ void stored(float* C) {
  __shared__ __align__(128) float words[128];
  const int lane = threadIdx.x;
  const unsigned* operands = reinterpret_cast<const unsigned*>(words);
  float d[4] = {};
  for (int k = 0; k < 64; k += 32)
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(operands[lane]), "r"(operands[lane ^ 1]), "r"(operands[lane ^ 2]),
          "r"(operands[lane ^ 3]), "r"(operands[lane ^ 4]), "r"(operands[lane ^ 5]));
  __syncthreads();
  for (int i = 0; i < 4; ++i) words[4 * lane + i] = d[i];
  asm volatile("STORE;" ::"l"(C), "r"((unsigned)__cvta_generic_to_shared(words)) : "memory");
}
"""


@pytest.mark.parametrize(
    "store",
    [
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 512",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {0, 0}], [%1]",
    ],
)
def test_results_that_a_bulk_copy_stores_have_the_bound_of_tensor_cores(store):
    source = BULK_STORE.replace("STORE", store)
    found = compile_kernel(source, "stored", "sm_90a", assemble=False)
    assert arithmetic_of(found.ptx, found.entry, "float8_e4m3", "float32").tensor is not None
