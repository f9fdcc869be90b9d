"""memcheck and initcheck: accesses that are not allowed, and reads of memory never written."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import WORDS, run

PAIR = {"out": WORDS, "in": WORDS + 1}


def test_store_past_the_end_is_left_out() -> None:
    source = """k(float* out) {
        out[threadIdx.x + 1] = 1;
    }"""
    outcome = run(source)
    found = outcome.only
    assert (found.check, found.kind, found.count) == ("memcheck", "out of bounds", 1)
    assert (found.array, found.offset) == ("out", 256)
    assert (found.here.line, found.here.thread, found.block) == (2, (63, 0, 0), (0, 0, 0))
    assert found.here.instruction.startswith("st.global")
    assert found.message == (
        "out of bounds: store of 4 bytes 0 bytes past the end of 'out' (256 bytes), by thread "
        "(63, 0, 0) of block (0, 0, 0) at kernel.cu:2"
    )
    assert outcome.arrays["out"].view(np.float32).tolist() == [0.0] + [1.0] * 63


def test_load_before_the_start_reads_zero() -> None:
    source = """k(float* out, const float* in) {
        out[threadIdx.x] = in[int(threadIdx.x) - 2];
    }"""
    outcome = run(source, PAIR)
    assert (outcome.only.array, outcome.only.offset, outcome.only.count) == ("in", -8, 2)
    assert "8 bytes before 'in' (256 bytes)" in outcome.only.message
    assert outcome.arrays["out"].view(np.float32).tolist() == [0.0] * 2 + [1.0] * 62


def test_misaligned_vector() -> None:
    source = """k(float* out, int shift) {
        *(float2*)(out + 2 * (threadIdx.x % 8) + shift) = float2{1, 2};
    }"""
    found = run(source, {"out": WORDS, "shift": np.int32(1)}, block=(8, 1, 1)).only
    assert (found.check, found.kind, found.count, found.offset) == ("memcheck", "misaligned", 8, 4)
    assert not run(source, {"out": WORDS, "shift": np.int32(2)}, block=(8, 1, 1)).findings


def test_shared_array_with_its_name() -> None:
    source = """k(float* out, int shift) {
        __shared__ float first[32], second[32];
        first[threadIdx.x] = second[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = first[threadIdx.x + shift] + second[threadIdx.x + shift];
    }"""
    arguments = {"out": WORDS, "shift": np.int32(1)}
    first, second = run(source, arguments, block=(32, 1, 1)).findings
    assert {(each.check, each.kind) for each in (first, second)} == {("memcheck", "out of bounds")}
    assert (first.array, first.offset, second.array) == ("first", 128, "second")
    assert (
        "0 bytes past the end of 'first' (128 bytes of shared memory), in 'second', by thread "
        "(31, 0, 0) of block (0, 0, 0)"
    ) in first.message
    assert "past the end of 'second' (128 bytes of shared memory), by" in second.message
    assert not run(source, {"out": WORDS, "shift": np.int32(0)}, block=(32, 1, 1)).findings


def test_dynamic_shared_memory_ends_where_the_launch_says() -> None:
    source = """k(float* out) {
        extern __shared__ float tile[];
        tile[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = tile[63 - threadIdx.x];
    }"""
    assert not run(source, shared_bytes=256).findings
    store, load = run(source, shared_bytes=252).findings
    assert (store.here.line, load.here.line, store.offset) == (3, 5, 252)
    assert (store.here.thread, load.here.thread) == ((63, 0, 0), (0, 0, 0))
    forgotten = run(source, shared_bytes=0).findings[0].message
    assert "'tile' (0 bytes of dynamic shared memory, which --shared sets)" in forgotten


def test_local_memory() -> None:
    source = """k(float* out, const int* in) {
        float own[8];
        for (int i = 0; i < 8; ++i) own[i] = i;
        out[threadIdx.x] = own[in[threadIdx.x]];
    }"""
    inside = np.arange(64, dtype=np.int32) % 8
    assert not run(source, {"out": WORDS, "in": inside}).findings
    found = run(source, {"out": WORDS, "in": inside + 1}).only
    assert (found.check, found.kind, found.array) == ("memcheck", "out of bounds", "")
    assert "at byte 32 of 32 bytes of local memory, by thread (7, 0, 0)" in found.message


def test_atomics_out_of_bounds_of_either_width() -> None:
    source = """k(unsigned* out, int n) {
        atomicAdd(out + (threadIdx.x == 5 ? n : 0), 1u);
    }"""
    outcome = run(source, {"out": np.zeros(4, np.uint32), "n": np.int32(4)}, block=(32, 1, 1))
    assert (outcome.only.kind, outcome.only.offset) == ("out of bounds", 16)
    assert outcome.arrays["out"].view(np.uint32)[0] == 31
    halves = """k(unsigned short* out, int n) {
        asm volatile("{ .reg .b16 h; mov.b16 h, 0; red.global.add.noftz.f16 [%0], h; }"
            :: "l"(out + (threadIdx.x == 5 ? n : 0)));
    }"""
    found = run(halves, {"out": np.zeros(4, np.uint16), "n": np.int32(4)}, block=(32, 1, 1)).only
    assert (found.kind, found.offset) == ("out of bounds", 8)


def test_trap_ends_its_block_only() -> None:
    source = """k(float* out) {
        if (blockIdx.x == 1) __trap();
        out[blockIdx.x] = 1;
    }"""
    outcome = run(source, grid=(3, 1, 1), block=(1, 1, 1))
    assert (outcome.only.check, outcome.only.kind, outcome.only.block) == (
        *("memcheck", "trap"),
        (1, 0, 0),
    )
    assert outcome.arrays["out"].view(np.float32)[:3].tolist() == [1, 0, 1]


@pytest.mark.parametrize("written", [60, 64])
def test_shared_memory_never_written(written: int) -> None:
    source = """k(float* out, int n) {
        __shared__ float As[64];
        if (threadIdx.x < n) As[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = As[threadIdx.x];
    }"""
    outcome = run(source, {"out": WORDS, "n": np.int32(written)})
    if written == 64:
        assert not outcome.findings
        return
    found = outcome.only
    assert (found.check, found.kind, found.array) == ("initcheck", "uninitialized", "As")
    assert (found.offset, found.here.thread, found.here.line) == (240, (60, 0, 0), 5)


def test_shared_memory_is_new_in_each_block() -> None:
    source = """k(float* out) {
        __shared__ float As[32];
        if (blockIdx.x == 0) As[threadIdx.x] = 1;
        __syncthreads();
        out[blockIdx.x * 32 + threadIdx.x] = As[threadIdx.x];
    }"""
    assert run(source, grid=(2, 1, 1), block=(32, 1, 1)).only.block == (1, 0, 0)


def test_part_of_a_vector_never_written() -> None:
    source = """k(float* out) {
        __shared__ float4 As[32];
        float* words = (float*)&As[threadIdx.x];
        words[0] = words[1] = words[2] = 1;
        float4 all = As[threadIdx.x];
        out[threadIdx.x] = all.x + all.w;
    }"""
    assert run(source, block=(32, 1, 1)).only.offset == 12


def test_atomic_on_shared_memory_never_written() -> None:
    source = """k(unsigned* out) {
        __shared__ unsigned counts[2];
        if (threadIdx.x == 0) counts[0] = 0;
        __syncthreads();
        atomicAdd(&counts[threadIdx.x & 1], 1u);
        __syncthreads();
        out[threadIdx.x] = counts[threadIdx.x & 1];
    }"""
    found = run(source).only
    assert (found.kind, found.offset, found.here.line) == ("uninitialized", 4, 5)


def test_device_memory_never_written() -> None:
    source = """k(float* out, const float* in) {
        out[threadIdx.x] = in[threadIdx.x];
    }"""
    assert not run(source, PAIR, unwritten=["out"]).findings
    found = run(source, PAIR, unwritten=["in"]).only
    assert (found.check, found.kind, found.count) == ("initcheck", "uninitialized", 2)
    assert (found.array, found.offset, found.here.thread) == ("in", 0, (0, 0, 0))


def test_device_memory_that_the_kernel_writes_first() -> None:
    source = """k(float* out) {
        if (threadIdx.x % 32 < 16) out[threadIdx.x] = 1;
        __syncthreads();
        float x = out[threadIdx.x / 32 * 32 + threadIdx.x % 16];
        __syncwarp();
        out[threadIdx.x] = x;
        atomicAdd(out + threadIdx.x, 1.0f);
    }"""
    outcome = run(source, unwritten=["out"])
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == [2.0] * 64


def test_atomic_on_device_memory_never_written() -> None:
    source = "k(float* out) { atomicAdd(out, 1.0f); }"
    assert run(source, unwritten=["out"]).only.kind == "uninitialized"
    assert not run(source).findings
