"""racecheck in shared memory: warps without a barrier between them, lanes that are not in step."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import WORDS, run

from gemmkit.emulator.sanitizer.races import Access, Races
from gemmkit.findings import Finding

EXCHANGE = """k(float* out) {
    __shared__ float As[64];
    As[threadIdx.x] = threadIdx.x;
    BARRIER
    float other = As[63 - threadIdx.x];
    SECOND
    As[threadIdx.x] = other;
    __syncthreads();
    out[threadIdx.x] = As[threadIdx.x];
}"""


def exchange(barrier: str, second: str) -> str:
    return EXCHANGE.replace("BARRIER", barrier).replace("SECOND", second)


def test_two_barriers_are_enough() -> None:
    outcome = run(exchange("__syncthreads();", "__syncthreads();"))
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == list(range(63, -1, -1))


def test_read_after_write() -> None:
    """The first warp runs to its end before the second begins, and still hides nothing."""
    source = """k(float* out) {
        __shared__ float As[64];
        As[threadIdx.x] = 0;
        __syncthreads();
        if (threadIdx.x < 32) As[threadIdx.x] = 1;
        out[threadIdx.x] = As[threadIdx.x % 32];
    }"""
    found = run(source).only
    assert (found.check, found.kind, found.array, found.offset) == (
        *("racecheck", "read after write"),
        *("As", 0),
    )
    assert found.other is not None
    assert (found.here.line, found.here.thread) == (6, (32, 0, 0))
    assert (found.other.line, found.other.thread) == (5, (0, 0, 0))
    assert found.message == (
        "read after write: thread (32, 0, 0) of block (0, 0, 0) reads byte 0 of 'As' at "
        "kernel.cu:6, which thread (0, 0, 0) writes at kernel.cu:5 with no barrier between "
        "line 5 and line 6; the barrier at line 4 comes before both"
    )


def test_write_after_read() -> None:
    found = run(exchange("__syncthreads();", "")).findings
    kinds = {each.kind: each for each in found}
    assert set(kinds) == {"write after read", "read after write"}
    late = kinds["write after read"]
    assert late.other is not None
    assert (late.here.line, late.other.line) == (7, 5)
    # The mirrored thread has read what a thread writes.
    assert late.here.thread == (32, 0, 0)
    assert late.other.thread == (31, 0, 0)


def test_no_barrier_at_first() -> None:
    outcome = run(exchange("", "__syncthreads();"))
    assert ("racecheck", "write after read") in outcome.kinds


def test_write_after_write() -> None:
    source = """k(float* out) {
        __shared__ float As[32];
        As[threadIdx.x % 32] = threadIdx.x;
        __syncthreads();
        out[threadIdx.x] = As[threadIdx.x % 32];
    }"""
    found = run(source).only
    assert (found.kind, found.here.thread) == ("write after write", (32, 0, 0))
    assert not run(source, block=(32, 1, 1)).findings


@pytest.mark.parametrize("kind", ["float", "short", "double", "float4"])
def test_adjacent_accesses_of_any_width_do_not_race(kind: str) -> None:
    source = """k(float* out) {
        __shared__ TYPE As[64];
        TYPE own = {};
        As[threadIdx.x] = own;
        own = As[threadIdx.x];
        out[threadIdx.x] = *(char*)&own;
    }"""
    assert not run(source.replace("TYPE", kind)).findings


def test_a_wide_store_races_with_a_narrow_load() -> None:
    source = """k(float* out) {
        __shared__ float4 As[64];
        As[threadIdx.x] = float4{1, 2, 3, 4};
        __syncthreads();
        if (threadIdx.x < 32) As[threadIdx.x] = float4{};
        else out[threadIdx.x] = ((float*)As)[threadIdx.x];
    }"""
    found = run(source).only
    assert (found.kind, found.offset) == ("read after write", 128)
    assert found.other is not None
    assert found.other.thread == (8, 0, 0)


def test_lanes_out_of_step() -> None:
    source = """k(float* out) {
        __shared__ float As[64];
        As[threadIdx.x] = 1;
        SYNC
        out[threadIdx.x] = As[threadIdx.x ^ 1];
    }"""
    found = run(source.replace("SYNC", "")).only
    assert (found.kind, found.count) == ("read after write", 2)
    assert (found.here.thread, found.other and found.other.thread) == ((0, 0, 0), (1, 0, 0))
    assert "with no __syncwarp() or barrier between" in found.message
    for sync in ("__syncwarp();", "__shfl_sync(~0u, 1, 0);", "__ballot_sync(~0u, 1);"):
        assert not run(source.replace("SYNC", sync)).findings, sync


def test_lane_writes_what_another_has_read() -> None:
    source = """k(float* out) {
        __shared__ float As[32];
        As[threadIdx.x] = threadIdx.x;
        __syncwarp();
        float next = As[(threadIdx.x + 1) % 32];
        As[threadIdx.x] = next;
        out[threadIdx.x] = next;
    }"""
    found = run(source, block=(32, 1, 1)).only
    assert (found.kind, found.here.line) == ("write after read", 6)


def test_a_lane_may_use_its_own_again() -> None:
    source = """k(float* out) {
        __shared__ float sum[64];
        sum[threadIdx.x] = 0;
        for (int i = 0; i < 100; ++i) {
            sum[threadIdx.x] += i;
            asm volatile("" ::: "memory");
        }
        out[threadIdx.x] = sum[threadIdx.x];
    }"""
    outcome = run(source)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[0] == 4950


@pytest.mark.parametrize("value", ["threadIdx.x", "threadIdx.x / 2"])
def test_lanes_store_to_one_address(value: str) -> None:
    source = f"""k(float* out) {{
        __shared__ float As[32];
        As[threadIdx.x / 2] = {value};
        __syncthreads();
        out[threadIdx.x] = As[threadIdx.x / 2];
    }}"""
    outcome = run(source)
    if "2" in value:
        assert not outcome.findings
        return
    assert (outcome.only.kind, outcome.only.count) == ("write after write", 2)
    assert "to which thread (1, 0, 0) stores another value at the same time" in outcome.only.message


HISTOGRAM = """k(unsigned* out) {
    __shared__ unsigned counts[8];
    if (threadIdx.x < 8) counts[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&counts[threadIdx.x % 8], 1u);
    BARRIER
    out[threadIdx.x] = counts[threadIdx.x % 8];
}"""


def test_atomics_do_not_race_with_each_other() -> None:
    outcome = run(HISTOGRAM.replace("BARRIER", "__syncthreads();"))
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.uint32).tolist() == [8] * 64


def test_atomics_race_with_plain_reads() -> None:
    found = run(HISTOGRAM.replace("BARRIER", "__syncwarp();")).findings
    assert {each.kind for each in found} == {"read after write", "write after read"}
    assert {each.here.line for each in found} == {5, 7}


def test_flags_with_fences_are_an_order_too() -> None:
    source = """k(float* out) {
        __shared__ float value;
        __shared__ volatile int flag;
        if (threadIdx.x == 0) flag = 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            value = 3;
            __threadfence_block();
            flag = 1;
        }
        if (threadIdx.x == 32) {
            while (flag == 0) {}
            __threadfence_block();
            out[0] = value;
        }
    }"""
    outcome = run(source)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[0] == 3


def test_counts_do_not_depend_on_the_number_of_host_threads() -> None:
    arguments = {"out": np.zeros(64 * 12, np.float32)}
    source = exchange("__syncthreads();", "")
    source = source.replace("out[threadIdx", "out[blockIdx.x * 64 + threadIdx")
    one, two = (run(source, arguments, grid=(12, 1, 1), threads=n) for n in (1, 2))
    assert one.findings == two.findings
    assert [each.count for each in one.findings] == [12, 12]
    assert {each.block for each in one.findings} == {(0, 0, 0)}


def test_generic_addresses() -> None:
    source = """k(float* out, int which) {
        __shared__ float first[64], second[64];
        first[threadIdx.x] = second[threadIdx.x] = 1;
        __syncthreads();
        float* chosen = which ? first : second;
        float* any = which < 2 ? chosen : out;
        any[threadIdx.x] = 2;
        out[threadIdx.x] = any[63 - threadIdx.x];
    }"""
    found = run(source, {"out": WORDS, "which": np.int32(1)}).findings
    assert {(each.kind, each.array) for each in found} == {
        ("read after write", "first"),
        ("write after read", "first"),
    }


def test_blocks_that_race_alike_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some of them are explained, and the blocks at the edges of the grid by themselves."""
    explained: list[object] = []
    explain = Races.between_warps

    def count(self: Races, access: Access) -> Finding | None:
        explained.append(access)
        return explain(self, access)

    monkeypatch.setattr(Races, "between_warps", count)
    source = """k(float* out) {
        __shared__ float both[64];
        both[threadIdx.x] = threadIdx.x;
        float sum = both[63 - threadIdx.x];
        if (blockIdx.x == 39) sum += both[(threadIdx.x + 32) % 64];
        out[threadIdx.x] = sum;
    }"""
    found = run(source, grid=(40, 1, 1)).findings
    reads = {each.here.line: each for each in found if each.kind == "read after write"}
    assert reads.keys() == {4, 5}
    assert reads[4].count == 40
    assert reads[5].block == (39, 0, 0)
    assert len(explained) < 20
