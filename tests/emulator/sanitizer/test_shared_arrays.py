"""memcheck between the arrays of shared memory: an access stays within its own array."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import WORDS, run

TWO_ARRAYS = """k(float* out, int reach) {
    __shared__ float As[64];
    __shared__ float Bs[64];
    As[threadIdx.x] = 1;
    Bs[threadIdx.x] = 2;
    __syncthreads();
    out[threadIdx.x] = As[int(threadIdx.x) + reach] + Bs[threadIdx.x];
}"""


@pytest.mark.parametrize(
    ("reach", "count", "offset", "place"),
    [
        (1, 1, 256, "0 bytes past the end of 'As' (256 bytes of shared memory), in 'Bs'"),
        (64, 64, 256, "0 bytes past the end of 'As' (256 bytes of shared memory), in 'Bs'"),
        (-3, 3, -12, "12 bytes before 'As' (256 bytes of shared memory), by"),
    ],
)
def test_an_array_overruns_into_the_next(reach: int, count: int, offset: int, place: str) -> None:
    found = run(TWO_ARRAYS, {"out": WORDS, "reach": np.int32(reach)}).only
    assert (found.check, found.kind, found.array) == ("memcheck", "out of bounds", "As")
    assert (found.count, found.offset, found.here.line) == (count, offset, 7)
    assert place in found.message


def test_arrays_within_their_bounds() -> None:
    outcome = run(TWO_ARRAYS, {"out": WORDS, "reach": np.int32(0)})
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == [3.0] * 64


@pytest.mark.parametrize(("reach", "found"), [(0, 0), (1, 3)])
def test_every_way_to_write(reach: int, found: int) -> None:
    """A vector store, an atomic, and a cp.async to an address that is split by hand."""
    source = """k(float* out, int reach) {
        __shared__ __align__(16) float As[64], Bs[64], Cs[64], last[64];
        unsigned to = __cvta_generic_to_shared(As + threadIdx.x + reach);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;"
            :: "r"(to), "l"(out + threadIdx.x) : "memory");
        if (threadIdx.x < 16)
            *reinterpret_cast<float4*>(Bs + 4 * (threadIdx.x + reach)) = float4{1, 2, 3, 4};
        Cs[threadIdx.x] = last[threadIdx.x] = 0;
        __syncthreads();
        atomicAdd(&Cs[threadIdx.x + reach], 1.0f);
        __syncthreads();
        if (threadIdx.x >= reach && threadIdx.x >= 4 * reach)
            out[threadIdx.x] = As[threadIdx.x] + Bs[threadIdx.x] + Cs[threadIdx.x]
                + last[threadIdx.x];
    }"""
    outcome = run(source, {"out": WORDS, "reach": np.int32(reach)})
    assert len(outcome.findings) == found
    assert {each.check for each in outcome.findings} <= {"memcheck"}
    assert {each.array for each in outcome.findings} <= {"As", "Bs", "Cs"}


def test_an_access_across_the_end() -> None:
    source = """k(float2* out, int words) {
        __shared__ __align__(8) float As[63];
        __shared__ __align__(8) float Bs[64];
        Bs[threadIdx.x] = 1;
        if (threadIdx.x < 63) As[threadIdx.x] = 1;
        __syncthreads();
        if (2 * threadIdx.x < words)
            out[threadIdx.x] = reinterpret_cast<float2*>(As)[threadIdx.x];
        out[32 + threadIdx.x].x = Bs[threadIdx.x];
    }"""
    arguments = {"out": np.zeros(256, np.float32), "words": np.int32(64)}
    found = run(source, arguments).only
    assert (found.array, found.offset, found.count) == ("As", 248, 1)
    assert "at byte 248 and past the end of 'As' (252 bytes" in found.message
    assert not run(source, {**arguments, "words": np.int32(62)}).findings


def test_dynamic_and_static_arrays() -> None:
    source = """k(float* out, int reach) {
        __shared__ float As[64];
        extern __shared__ float tiles[];
        As[threadIdx.x] = tiles[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = As[threadIdx.x + reach] + tiles[int(threadIdx.x) - reach];
    }"""
    arguments = {"out": WORDS, "reach": np.int32(0)}
    assert not run(source, arguments, shared_bytes=256).findings
    outcome = run(source, {**arguments, "reach": np.int32(1)}, shared_bytes=256)
    assert {(each.array, each.offset) for each in outcome.findings} == {("As", 256), ("tiles", -4)}


@pytest.mark.parametrize("way", range(4))
def test_pointers_that_are_free_to_move(way: int) -> None:
    """One dynamic array in parts, an array under another type, a pointer to either of two arrays,
    one from a table, one that is incremented, one that may be to another space, swizzled indices.
    """
    source = """k(float* out, int way) {
        __shared__ __align__(1024) float As[64];
        __shared__ __align__(1024) float Bs[64];
        extern __shared__ float whole[];
        float *low = whole, *high = whole + 64;
        low[threadIdx.x] = high[threadIdx.x] = As[threadIdx.x] = Bs[threadIdx.x ^ 4] = 1;
        __syncthreads();
        const float* table[2] = {As, Bs};
        const float *either = way & 1 ? As : Bs, *any = way & 2 ? out + 64 : Bs, *walking = As;
        float sum = low[threadIdx.x + 64] + high[int(threadIdx.x) - 64];
        for (int i = 0; i < 64; ++i) sum += *walking++;
        for (int i = 0; i < 64; ++i) sum += *--walking;
        sum += reinterpret_cast<const float4*>(As)[threadIdx.x / 4].y;
        unsigned swizzled = unsigned(__cvta_generic_to_shared(Bs + threadIdx.x)) ^ way << 4;
        float x;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(swizzled));
        out[threadIdx.x] = sum + x + either[threadIdx.x] + any[threadIdx.x]
            + table[way & 1][threadIdx.x];
    }"""
    arguments = {"out": np.ones(128, np.float32), "way": np.int32(way)}
    outcome = run(source, arguments, shared_bytes=512)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[:64].tolist() == [135.0] * 64
