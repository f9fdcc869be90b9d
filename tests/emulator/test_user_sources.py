"""Whole `.cu` files like users' kernels, through compiler and executors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launching import Executor, Outcome, launch

from gemmkit.errors import DeviceError
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

LANES = np.arange(32)


@pytest.fixture(params=["sm_86", "sm_100a"])
def arch(request: pytest.FixtureRequest) -> str:
    """Architectures of both PTX dialects."""
    return request.param


def ptx(source: str, arch: str, folder: Path, entry: str = "k") -> str:
    file = SourceFile(source, "my.cu", "cuda", (str(folder),))
    return compile_source(file, entry, arch, assemble=False).ptx


def floats(count: int) -> np.ndarray:
    return np.linspace(-2, 3, count, dtype=np.float32)


def test_tiles_in_dynamic_shared_memory(executor: Executor, arch: str, tmp_path: Path) -> None:
    source = """
    #include <cuda_runtime.h>
    #include <cassert>
    #define PAD 1
    constexpr int cdiv(int a, int b) { return (a + b - 1) / b; }
    __constant__ float scale[2] = {1.f, 0.5f};
    template <int T, bool HALVED = false>
    __global__ void __launch_bounds__(T * T) k(const float* __restrict__ A,
                                               const float* __restrict__ B, float* C, int n) {
      assert(blockDim.x * blockDim.y == T * T);
      extern __shared__ float tiles[];
      float *As = tiles, *Bs = tiles + T * (T + PAD);
      int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
      float sum = 0;
      for (int t = 0; t < cdiv(n, T); t++) {
        int i = t * T + threadIdx.x, j = t * T + threadIdx.y;
        As[threadIdx.y * (T + PAD) + threadIdx.x] =
            row < n && i < n ? __ldg(A + row * n + i) : 0.f;
        Bs[threadIdx.y * (T + PAD) + threadIdx.x] = j < n && column < n ? B[j * n + column] : 0.f;
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < T; k++)
          sum += As[threadIdx.y * (T + PAD) + k] * Bs[k * (T + PAD) + threadIdx.x];
        __syncthreads();
      }
      if (row < n && column < n) C[row * n + column] = sum * scale[HALVED];
    }
    int main() { k<8><<<1, 1>>>(0, 0, 0, 0); }
    """
    n = 19
    a, b = floats(n * n).reshape(n, n), floats(n * n)[::-1].reshape(n, n)
    text = ptx(source, arch, tmp_path, "k<8, true>")
    out = launch(
        executor,
        text,
        *(a, b, np.zeros((n, n), np.float32), np.int32(n)),
        grid=(3, 3, 1),
        block=(8, 8, 1),
        shared_bytes=2 * 8 * 9 * 4,
    )
    assert np.allclose(out.arrays[2], a @ b / 2, rtol=1e-5)


def test_a_failed_assertion_is_reported(executor: Executor, arch: str, tmp_path: Path) -> None:
    source = (
        "#include <assert.h>\n__global__ void k(float* C, int n) {\n"
        "  assert(C != nullptr);\n  assert(threadIdx.x < n);\n  C[threadIdx.x] = 1;\n}"
    )
    text = ptx(source, arch, tmp_path)
    out = launch(executor, text, np.zeros(32, np.float32), np.int32(32))
    assert out.arrays[0].tolist() == [1] * 32
    with pytest.raises(DeviceError, match=r"failed assertion at my\.cu:4"):
        launch(executor, text, np.zeros(32, np.float32), np.int32(31))


def test_functions_that_stay_functions(executor: Executor, arch: str, tmp_path: Path) -> None:
    source = """
    struct Pair { float low, high; };
    __device__ __noinline__ Pair split(float x, float at) {
      if (x < at) return {x, 0};
      return {at, x - at};
    }
    __device__ __noinline__ float folded(float x, int times) {
      for (int i = 0; i < times; i++) { Pair p = split(x, 1.f); x = p.low - p.high; }
      return x;
    }
    extern "C" __global__ void k(float* C, const float* A) {
      float x = A[threadIdx.x];
      if (threadIdx.x % 3) x = folded(x, threadIdx.x % 5);
      C[threadIdx.x] = x + folded(2 * x, 1);
    }
    """

    def folded(x: float, times: int) -> float:
        for _ in range(times):
            x = x if x < 1 else 1 - (x - 1)
        return x

    given = floats(32)
    text = ptx(source, arch, tmp_path)
    out = launch(executor, text, np.zeros(32, np.float32), given).arrays[0]
    inner = [folded(float(x), i % 5) if i % 3 else float(x) for i, x in enumerate(given)]
    assert np.allclose(out, [x + folded(2 * x, 1) for x in inner], rtol=1e-6, atol=1e-6)


def test_half_precision_sums(executor: Executor, arch: str, tmp_path: Path) -> None:
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __global__ void k(float* out, const float* in) {
      half sum = __float2half(0.f);
      half2 pair = __float2half2_rn(1.f);
      __nv_bfloat16 product = __float2bfloat16(1.f);
      for (int i = 0; i < 8; i++) {
        half x = __float2half(in[(threadIdx.x + i) & 31]);
        sum = __hfma(x, x, sum);
        pair = __hadd2(pair, __halves2half2(x, __hneg(x)));
        product = product * __float2bfloat16(in[i]) + __float2bfloat16(0.25f);
      }
      float4* row = reinterpret_cast<float4*>(out) + threadIdx.x;
      *row = make_float4(__half2float(sum), __low2float(pair), __high2float(pair),
                         __bfloat162float(product));
    }
    """
    given = floats(32)
    text = ptx(source, arch, tmp_path)
    out = launch(executor, text, np.zeros((32, 4), np.float32), given).arrays[0]
    halves = given.astype(np.float16)
    for lane in range(32):
        total, low, high = np.float16(0), np.float16(1), np.float16(1)
        for i in range(8):
            x = halves[(lane + i) & 31]
            total = np.float16(np.float64(x) * np.float64(x) + np.float64(total))
            low, high = low + x, high - x
        assert out[lane, :3].tolist() == [total, low, high]
    product = 1.0
    for x in given[:8].tolist():
        product = product * x + 0.25
    assert np.allclose(out[:, 3], product, rtol=0.05, atol=0.02)


def test_inline_ptx(executor: Executor, arch: str, tmp_path: Path) -> None:
    source = r"""
    #include <stdint.h>
    #define GUARDED(to, from, guard) asm volatile(                                    \
        "{ .reg .pred p;\n setp.ne.u32 p, %2, 0;\n @!p mov.b32 %0, 0;\n"              \
        " @p ld.global.f32 %0, [%1]; }\n" : "=f"(to) : "l"(from), "r"(guard))
    __global__ void k(float* out, const float* in, int n) {
      __shared__ alignas(16) float tile[2][32 * 4];
      uint32_t to = (uint32_t)__cvta_generic_to_shared(&tile[0][threadIdx.x * 4]);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to),
                   "l"(in + 4 * threadIdx.x));
      int given = threadIdx.x + 4 < n ? 4 : 0;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to + 512),
                   "l"(in + threadIdx.x), "r"(given));
      asm volatile("cp.async.commit_group;\n cp.async.wait_group %0;\n" ::"n"(0) : "memory");
      __syncthreads();
      float guarded, again;
      GUARDED(guarded, in + threadIdx.x, (unsigned)(threadIdx.x < n));
      GUARDED(again, in + 2 * threadIdx.x, threadIdx.x & 1u);
      float4 quad = *reinterpret_cast<float4*>(&tile[0][(threadIdx.x ^ 1) * 4]);
      out[threadIdx.x] = quad.x + quad.w + 100 * tile[1][threadIdx.x * 4] + guarded - again;
    }
    """
    given = np.arange(128, dtype=np.float32)
    text = ptx(source, arch, tmp_path)
    out = launch(executor, text, np.zeros(32, np.float32), given, np.int32(20)).arrays[0]
    quads = 8 * (LANES ^ 1) + 3
    partly = np.where(LANES + 4 < 20, 100 * LANES, 0) + np.where(LANES < 20, LANES, 0)
    assert out.tolist() == (quads + partly - np.where(LANES % 2, 2 * LANES, 0)).tolist()


def test_warps_atomics_and_64_bit_numbers(executor: Executor, arch: str, tmp_path: Path) -> None:
    source = """
    typedef unsigned long long u64;
    __global__ void k(u64* sums, int* votes, const int* in, u64 step) {
      int x = in[threadIdx.x];
      int local[4] = {x, x + 1, x * 2, -x};
      u64 wide = step * (u64)threadIdx.x + (u64)local[x & 3];
      for (int distance = 16; distance; distance >>= 1)
        wide += __shfl_down_sync(0xffffffffu, wide, distance);
      unsigned odd = __ballot_sync(0xffffffffu, x & 1);
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[0], wide);
        atomicMax(&votes[0], __popc(odd));
      }
      switch (x % 6) {
        case 0: atomicAdd(&votes[1], 1); break;
        case 1: atomicAdd(&votes[2], x / 7); break;
        case 4: atomicExch(&votes[3], 77); break;
        case 5: if (__all_sync(__activemask(), x > 0)) atomicAdd(&votes[4], 1); break;
        default: atomicCAS(&votes[5], 0, 5);
      }
      if (threadIdx.x == 0) sums[1] = clock() >= 0 ? __mul64hi(step, step) + wide % 1000003 : 0;
    }
    """
    given = (np.arange(64) * 37 % 101).astype(np.int32)
    step = 0x9E3779B97F4A7C15
    out = launch(
        executor,
        ptx(source, arch, tmp_path),
        *(np.zeros(2, np.uint64), np.zeros(6, np.int32), given, np.uint64(step)),
        block=64,
    )
    local = [(x, x + 1, x * 2, -x)[x & 3] for x in given.tolist()]
    terms = [step * thread + value for thread, value in enumerate(local)]
    sums, votes, *_ = out.arrays
    first, second = sum(terms[:32]) % 2**64, sum(terms[32:]) % 2**64
    signed = step - 2**64
    assert sums.tolist() == [
        (first + second) % 2**64,
        ((signed * signed >> 64) + first % 1000003) % 2**64,
    ]
    assert votes.tolist() == [
        max(int((half % 2).sum()) for half in (given[:32], given[32:])),
        int((given % 6 == 0).sum()),
        int((given[given % 6 == 1] // 7).sum()),
        77,
        int((given % 6 == 5).sum()),
        5,
    ]


def printed(outcome: Outcome) -> list[str]:
    return list(outcome.execution.printed)


def test_no_line_is_lost(executor: Executor, tmp_path: Path) -> None:
    source = """
    #include <cstdio>
    __device__ void report(int i, float x) { printf("%d:%d %.2f\\n", blockIdx.x, i, x); }
    __global__ void k(const float* in) {
      for (int i = 0; i < 100; i++) report(i, in[threadIdx.x] * i);
    }
    """
    outcome = launch(executor, ptx(source, "sm_86", tmp_path), floats(32), grid=2)
    lines = printed(outcome)
    assert len(lines) == 2 * 32 * 100
    assert lines[0] == "0:0 -0.00"
    assert lines[-1] == "1:99 297.00"


@pytest.mark.sample(2)
def test_atomics_of_the_library_and_votes_of_a_block(
    executor: Executor, arch: str, tmp_path: Path
) -> None:
    source = """
    #include <cuda/atomic>
    __global__ void k(float* C, unsigned* count) {
      volatile float kept[2] = {1.f, 2.f};
      bool odd = threadIdx.x & 1;
      kept[odd] = kept[odd] + __syncthreads_count(threadIdx.x < 10);
      cuda::atomic_ref<float, cuda::thread_scope_device> sum(C[blockIdx.x]);
      sum.fetch_add(kept[0] + kept[1], cuda::memory_order_relaxed);
      cuda::atomic_ref<unsigned, cuda::thread_scope_block> ticket(*count);
      unsigned before = ticket.fetch_add(1, cuda::memory_order_acq_rel);
      if (__syncthreads_or(before == 63)) atomicAdd_block(&C[2], 1.f);
      if (__syncthreads_and(before < 64)) atomicAdd_system(&C[3], 1.f);
      if (threadIdx.x == 0) ticket.store(ticket.load() + 1, cuda::memory_order_release);
    }
    """
    text = ptx(source, arch, tmp_path)
    count = np.zeros(1, np.uint32)
    out = launch(executor, text, np.zeros(4, np.float32), count, grid=2, block=64)
    assert out.arrays[0][:2].tolist() == [64 * 13, 64 * 13]
    assert out.arrays[0][2:].tolist() == [64, 64]
    assert out.arrays[1].tolist() == [130]
