"""CUDA C++ through NVRTC on the executors: features that users' kernels use besides arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Executor, launch

from gemmkit.jit.compiler import compile_kernel

LANES = np.arange(32, dtype=np.uint32)


@pytest.fixture(params=["sm_86", "sm_90a", "sm_100a"])
def arch(request: pytest.FixtureRequest) -> str:
    """Architectures of both PTX dialects."""
    return request.param


def ptx(source: str, arch: str) -> str:
    text = 'extern "C" __global__ void ' + source.strip()
    return compile_kernel(text, "k", arch, options=("--minimal",), assemble=False).ptx


def test_warp_sum_by_shuffles(executor: Executor, arch: str) -> None:
    source = """
    k(float* out, const float* in) {
        float sum = in[blockIdx.x * blockDim.x + threadIdx.x];
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
        float next = __shfl_down_sync(0xFFFFFFFFu, sum * threadIdx.x, 1);
        float first = __shfl_sync(0xFFFFFFFFu, next, 3, 8);
        unsigned odd = __ballot_sync(0xFFFFFFFFu, threadIdx.x & 1);
        int both = __popc(odd) + __any_sync(~0u, sum > 0);
        out[blockIdx.x * blockDim.x + threadIdx.x] = first + both;
    }
    """
    values = np.arange(64, dtype=np.float32) / 4
    out = launch(executor, ptx(source, arch), np.zeros(64, np.float32), values, grid=2).arrays[0]
    wanted = [
        values[block * 32 :][:32].sum() * (lane // 8 * 8 + 4) + 16 + 1
        for block in range(2)
        for lane in range(32)
    ]
    assert out.tolist() == wanted


def test_histogram_with_atomics(executor: Executor, arch: str) -> None:
    source = """
    k(unsigned* counts, float* total, unsigned* last, const unsigned* in, int n) {
        __shared__ unsigned part[8];
        if (threadIdx.x < 8) part[threadIdx.x] = 0;
        __syncthreads();
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            atomicAdd(&part[in[i] & 7], 1u);
            atomicAdd(total, float(in[i] & 15));
            atomicMax(last, in[i]);
        }
        __syncthreads();
        if (threadIdx.x < 8) atomicAdd(&counts[threadIdx.x], part[threadIdx.x]);
        if (threadIdx.x == 0) atomicCAS(&last[1], blockIdx.x, blockIdx.x + 1);
    }
    """
    given = (np.arange(1000, dtype=np.uint32) * 2654435761) >> np.uint32(5)
    out = launch(
        executor,
        ptx(source, arch),
        np.zeros(8, np.uint32),
        np.zeros(1, np.float32),
        np.zeros(2, np.uint32),
        given,
        np.int32(1000),
        grid=3,
        block=96,
    )
    counts, total, last, _ = out.arrays
    assert counts.tolist() == np.bincount(given & 7, minlength=8).tolist()
    assert total[0] == (given & 15).sum()
    assert last.tolist() == [given.max(), 3]


def test_integer_functions(executor: Executor, arch: str) -> None:
    source = """
    k(unsigned long long* out, const unsigned* in) {
        unsigned x = in[threadIdx.x];
        unsigned long long wide = (unsigned long long)x * 0x9E3779B97F4A7C15ull;
        long long negative = -(long long)wide;
        out += 8 * threadIdx.x;
        out[0] = __popc(x) + 100 * __clz(x) + 10000 * __ffs(x);
        out[1] = __brev(x) ^ __byte_perm(x, ~x, 0x1657);
        out[2] = __umul64hi(wide, wide + 1);
        out[3] = wide / (x | 1) + wide % (threadIdx.x + 3);
        out[4] = negative / 1000003 + negative % 77;
        out[5] = (int)x / ((int)threadIdx.x - 16 ? (int)threadIdx.x - 16 : 1) + (int)x % 13;
        out[6] = __funnelshift_l(x, ~x, threadIdx.x) + min((int)x, -5) + max(x, 77u) + abs((int)x);
        out[7] = (wide >> threadIdx.x) ^ (wide << (threadIdx.x * 2)) ^ (negative >> threadIdx.x);
    }
    """
    given = ((LANES + 1) * np.uint32(0x9E3779B1)) ^ (LANES << np.uint32(11))
    out = launch(executor, ptx(source, arch), np.zeros((32, 8), np.uint64), given).arrays[0]
    for lane, x in enumerate(given.tolist()):
        wide = x * 0x9E3779B97F4A7C15 % 2**64
        negative = -(wide - 2**64 if wide >> 63 else wide)
        signed = x - 2**32 if x >> 31 else x
        data = (x | (~x & 0xFFFFFFFF) << 32).to_bytes(8, "little")
        permuted = int.from_bytes(bytes(data[s] for s in (7, 5, 6, 1)), "little")
        by = lane - 16 or 1
        mask = 0xFFFFFFFF
        funnel = ((~x & mask) << 32 | x) << lane >> 32
        wanted = [
            x.bit_count() + 100 * (32 - x.bit_length()) + 10000 * ((x & -x).bit_length()),
            int(f"{x:032b}"[::-1], 2) ^ permuted,
            wide * ((wide + 1) % 2**64) >> 64,
            wide // (x | 1) + wide % (lane + 3),
            quotient(negative, 1000003) + negative - 77 * quotient(negative, 77),
            quotient(signed, by) + signed - 13 * quotient(signed, 13),
            (funnel + min(signed, -5) + max(x, 77) + abs(signed)) & mask,
            (wide >> lane) ^ (wide << 2 * lane) ^ (negative >> lane),
        ]
        assert out[lane].tolist() == [each % 2**64 for each in wanted]


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def test_float_functions(executor: Executor, arch: str) -> None:
    source = """
    k(float* out, double* wide, const float* in) {
        float x = in[threadIdx.x];
        out += 10 * threadIdx.x;
        out[0] = __fdiv_rn(1.0f, x) + __frcp_rn(x);
        out[1] = __fsqrt_rn(fabsf(x));
        out[2] = __fmaf_rz(x, x, 1.0f) - __fadd_rd(x, 1e-9f) * __fmul_ru(x, 3.0f);
        out[3] = fminf(x, 0.5f) + fmaxf(-x, 0.25f);
        out[4] = (float)__float2int_rn(x * 1e3f) + (float)__float2uint_rz(x * 1e6f);
        out[5] = __int2float_rz(__float_as_int(x)) + (float)(long long)(x * 1e12f);
        out[6] = __saturatef(x) + copysignf(1.0f, x);
        out[7] = isnan(x) + isinf(x) * 2 + signbit(x) * 4;
        out[8] = __expf(x) + __logf(fabsf(x)) + __sinf(x) + __cosf(x);
        out[9] = rsqrtf(fabsf(x)) + exp2f(x) + tanhf(x);
        wide[threadIdx.x] = __fma_rn((double)x, (double)x, 1e-20) / 3.0 + sqrt((double)fabsf(x));
    }
    """
    given = np.linspace(-2, 2, 32, dtype=np.float32)
    outcome = launch(
        executor, ptx(source, arch), np.zeros((32, 10), np.float32), np.zeros(32), given
    )
    out, wide, _ = outcome.arrays
    x = given.astype(np.float64)
    assert np.allclose(out[:, 0], 2 / x, rtol=1e-6)
    assert np.allclose(out[:, 1], np.sqrt(np.abs(x)), rtol=1e-7)
    assert np.allclose(out[:, 2], x * x + 1 - x * 3 * x, rtol=1e-6, atol=1e-6)
    assert np.allclose(out[:, 3], np.minimum(x, 0.5) + np.maximum(-x, 0.25))
    thousands = np.rint(given * np.float32(1e3))
    millions = np.trunc(np.maximum(given * np.float32(1e6), np.float32(0)))
    assert np.array_equal(out[:, 4], thousands + millions)
    cut = given.view(np.int32).astype(np.float64)  # toward zero, unlike astype
    cut = np.where(np.abs(np.float32(cut)) > np.abs(cut), np.nextafter(np.float32(cut), 0), cut)
    trillions = np.trunc((given * np.float32(1e12)).astype(np.float64)).astype(np.float32)
    assert np.array_equal(out[:, 5], cut.astype(np.float32) + trillions)
    assert np.allclose(out[:, 6], np.clip(x, 0, 1) + np.copysign(1, x))
    assert np.array_equal(out[:, 7], np.signbit(x) * 4)
    series = np.exp(x) + np.log(np.abs(x)) + np.sin(x) + np.cos(x)
    assert np.allclose(out[:, 8], series, rtol=1e-5, atol=1e-5)
    assert np.allclose(
        out[:, 9], 1 / np.sqrt(np.abs(x)) + np.exp2(x) + np.tanh(x), rtol=1e-5, atol=1e-5
    )
    assert np.allclose(wide, x * x / 3 + np.sqrt(np.abs(x)), rtol=1e-15)


def test_half_precision(executor: Executor, arch: str) -> None:
    source = """
    k(unsigned* out, const float* in) {
        float x = in[threadIdx.x], y = in[31 - threadIdx.x];
        unsigned a, b, sum, fused, both, back;
        float low;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(a) : "f"(x), "f"(y));
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(x), "f"(y));
        asm("add.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(a));
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(fused) : "r"(a), "r"(sum), "r"(a));
        asm("fma.rn.bf16x2 %0, %1, %1, %1;" : "=r"(both) : "r"(b));
        asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(low) : "r"(sum));
        asm("max.f16x2 %0, %1, %2;" : "=r"(back) : "r"(a), "r"(fused));
        out += 5 * threadIdx.x;
        out[0] = sum;
        out[1] = fused;
        out[2] = both;
        out[3] = __float_as_uint(low);
        out[4] = back;
    }
    """
    given = np.linspace(-3, 5, 32, dtype=np.float32)
    out = launch(executor, ptx(source, arch), np.zeros((32, 5), np.uint32), given).arrays[0]
    halves = np.stack([given[::-1], given], axis=1).astype(np.float16)
    total = halves + halves
    exact = halves.astype(np.float64) * total.astype(np.float64) + halves.astype(np.float64)
    fused = exact.astype(np.float16)
    assert np.array_equal(out[:, 0].copy().view(np.float16).reshape(32, 2), total)
    assert np.array_equal(out[:, 1].copy().view(np.float16).reshape(32, 2), fused)
    assert np.array_equal(out[:, 3].view(np.float32), total[:, 0].astype(np.float32))
    assert np.array_equal(
        out[:, 4].copy().view(np.float16).reshape(32, 2), np.maximum(halves, fused)
    )
    bf16 = (out[:, 2, None] >> np.uint32([0, 16]) << np.uint32(16)).view(np.float32)
    x = np.stack([given[::-1], given], axis=1).astype(np.float64)
    assert np.allclose(bf16, x * x + x, rtol=0.02, atol=0.02)


def test_printf(executor: Executor, arch: str) -> None:
    source = """
    k(const float* in) {
        if (threadIdx.x % 16 == 3)
            printf("block %d thread %2u: %.3f %s|%-6lld|\\n", blockIdx.x, threadIdx.x,
                   in[threadIdx.x], threadIdx.x > 9 ? "late" : "early", 1ll << threadIdx.x);
        if (threadIdx.x == 0) printf("no arguments, %%\\n");
    }
    """
    given = np.arange(32, dtype=np.float32) / 8
    outcome = launch(executor, ptx(source, arch), given, grid=2)
    lines = []
    for block in range(2):
        lines += [
            f"block {block} thread  3: 0.375 early|8     |",
            f"block {block} thread 19: 2.375 late|524288|",
            "no arguments, %",
        ]
    assert list(outcome.execution.printed) == lines


def test_local_arrays_and_switches(executor: Executor, arch: str) -> None:
    source = """
    k(int* out, const int* in, int n) {
        int stack[16], top = 0, sum = 0;
        for (int i = 0; i < n; ++i) {
            int x = in[(threadIdx.x + i) & 31];
            switch (x & 3) {
                case 0: stack[top++ & 15] = x; break;
                case 1: sum += top ? stack[--top & 15] : 1; break;
                case 2: sum -= x; break;
                default: stack[(x >> 2) & 15] = i; if (x > 90) continue;
            }
            sum ^= stack[0] = sum;
        }
        out[threadIdx.x] = sum + top;
    }
    """
    given = (np.arange(32, dtype=np.int32) * 37) % 101
    out = launch(executor, ptx(source, arch), np.zeros(32, np.int32), given, np.int32(40)).arrays[0]

    def simulate(thread: int) -> int:
        stack, top, total = [0] * 16, 0, 0
        for i in range(40):
            x = int(given[(thread + i) & 31])
            if x & 3 == 0:
                stack[top & 15] = x
                top += 1
            elif x & 3 == 1:
                if top:
                    top -= 1
                    total += stack[top & 15]
                else:
                    total += 1
            elif x & 3 == 2:
                total -= x
            else:
                stack[(x >> 2) & 15] = i
                if x > 90:
                    continue
            stack[0] = total
            total ^= total
        return total + top

    assert out.tolist() == [simulate(thread) for thread in range(32)]


def test_arguments_and_results_narrower_than_32_bits(executor: Executor, arch: str) -> None:
    # They are passed in 32 bits, and read as 8 or 16.
    source = """
    k(int* out, const int* in) {
        int value = in[threadIdx.x];
        bool low = below((signed char)value, (short)(value - 300));
        out[threadIdx.x] = pick(value, low, (unsigned short)(value * 1000));
    }
    __device__ __noinline__ bool below(signed char a, short b) { return a < b + 290; }
    __device__ __noinline__ int pick(int value, bool low, unsigned short scale) {
        return low ? value + scale : -value;
    }
    """
    kernel, first, second = (part.strip() for part in source.split("__device__"))
    text = f'__device__ {first}\n__device__ {second}\nextern "C" __global__ void {kernel}'
    values = np.arange(32, dtype=np.int32) * 9
    out = launch(
        executor,
        compile_kernel(text, "k", arch, assemble=False).ptx,
        np.zeros(32, np.int32),
        values,
    ).arrays[0]
    narrow = values.astype(np.int8).astype(np.int32)
    wanted = np.where(narrow < values - 10, values + (values * 1000 & 0xFFFF), -values)
    assert 0 < (wanted < 0).sum() < len(values) - 1
    assert out.tolist() == wanted.tolist()
