"""The base offset of matrix descriptors: which elements a wgmma reads from a tile of 128-byte
swizzle that begins within the repeating pattern of 1024 bytes, for each base offset.

Each element of shared memory holds its own number, and A is a unit matrix, so that the product
holds the numbers of the elements of B that were read. On a GPU, `-m gpu -s` prints them where the
emulator expects others.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from gpu_executor import GPU
from launching import ENGINE, Executor, launch
from numpy.typing import NDArray

from gemmkit.jit.compiler import compile_kernel

OFFSETS, BASES, ROWS, DEPTH = range(0, 1024, 128), range(8), 8, 16
# Numbers up to 2048 are exact in half precision.
SOURCE = r"""
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(128) k(float *out) {
    __shared__ __align__(1024) __half tile[1024];
    const int t = threadIdx.x, lane = t % 32, column = lane % 4 * 2;
    for (int i = t; i < 1024; i += 128) tile[i] = __int2half_rn(i);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    // Rows lane / 4 and 8 more of a unit matrix of 16 rows; the other warps have zeros.
    unsigned a[4] = {0, 0, 0, 0};
    if (t < 32 && lane / 4 / 2 * 2 == column)
        a[0] = a[3] = lane / 4 % 2 ? 0x3C000000u : 0x00003C00u;
    const unsigned start = __cvta_generic_to_shared(tile);
    for (int number = 0; number < 64; ++number) {
        const unsigned at = start + number / 8 * 128;
        const unsigned long long b = (at & 0x3FFFF) >> 4 | 1ull << 16 | 64ull << 32 |
                                     (unsigned long long)(number % 8) << 49 | 1ull << 62;
        float d[4] = {0, 0, 0, 0};
        asm volatile("wgmma.fence.sync.aligned;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     :: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
        float *to = out + number * 128 + lane / 4 * 8 + column;
        if (t < 32) { to[0] = d[0]; to[1] = d[1]; to[64] = d[2]; to[65] = d[3]; }
    }
}
"""


@cache
def ptx() -> str:
    return compile_kernel(SOURCE, "k", "sm_90a", assemble=False).ptx


def read_by(executor: Executor) -> NDArray[np.int64]:
    """By offset and base offset, the elements read as (k, row of B)."""
    out = np.zeros(64 * DEPTH * ROWS, np.float32)
    found = launch(executor, ptx(), out, block=128).arrays[0]
    return found.astype(np.int64).reshape(len(OFFSETS), len(BASES), DEPTH, ROWS)


def expected(offset: int, base: int) -> NDArray[np.int64]:
    """What the emulator takes for right: the pattern's line is that of the address, less `base`."""
    k, row = np.arange(DEPTH)[:, None], np.arange(ROWS)
    place = offset + 128 * row + 2 * k
    line = (place // 128 - base) % 8
    found: NDArray[np.int64] = (place ^ 16 * line) // 2
    return found


def test_the_emulator_reads_by_lines_less_the_base() -> None:
    found = read_by(ENGINE)
    for number, offset in enumerate(OFFSETS):
        for base in BASES:
            assert found[number, base].tolist() == expected(offset, base).tolist(), (offset, base)


@pytest.mark.gpu
def test_a_gpu_reads_the_same() -> None:
    found, wrong = read_by(GPU), []
    for number, offset in enumerate(OFFSETS):
        for base in BASES:
            here = found[number, base]
            if (here != expected(offset, base)).any():
                wrong.append((offset, base))
                # The chunk of each row from which its first eight elements came.
                print(f"offset {offset}, base {base}: first elements {here[0].tolist()}")
    assert not wrong
