"""racecheck if barriers synchronize a part of a block: which warps are ordered, through which."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

ARRIVE = 'asm volatile("bar.arrive {}, {};" ::: "memory");'
SYNC = 'asm volatile("bar.sync {}, {};" ::: "memory");'

PIPELINE = """k(float* out) {
    __shared__ float As[2][32];
    int t = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        As[0][t] = 1;
        ARRIVE_1
        As[1][t] = 2;
        ARRIVE_2
    } else {
        SYNC_1
        float first = As[0][31 - t];
        SYNC_2
        out[t] = first + As[1][31 - t];
    }
}"""


def pipeline(*left_out: str) -> str:
    text = PIPELINE
    for number in (1, 2):
        for name, what in (("ARRIVE", ARRIVE), ("SYNC", SYNC)):
            call = f"{name}_{number}"
            text = text.replace(call, "" if call in left_out else what.format(number, 64))
    return text


def test_producer_and_consumer() -> None:
    outcome = run(pipeline())
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[:32].tolist() == [3.0] * 32


def test_what_is_written_after_the_arrival_is_not_known() -> None:
    found = run(pipeline("SYNC_2", "ARRIVE_2")).only
    assert (found.check, found.kind, found.offset) == ("racecheck", "read after write", 252)
    assert found.other is not None
    assert (found.here.line, found.other.line) == (13, 7)
    assert (found.here.thread, found.other.thread) == ((32, 0, 0), (31, 0, 0))


def test_consumer_that_nobody_wakes() -> None:
    found = run(pipeline("ARRIVE_2"))
    assert found.kinds == {("synccheck", "deadlock")}
    assert "for barrier 2 (32 of 64 threads)" in found.only.message


@pytest.mark.parametrize("first", ["bar.sync 1, 64;", "bar.sync 0;"])
def test_different_counts_at_one_barrier(first: str) -> None:
    """Without a count all threads of the block are meant, here 96."""
    number = first[9]
    source = """k(float* out) {
        if (threadIdx.x < 32) asm volatile("FIRST" ::: "memory");
        else asm volatile("bar.sync NUMBER, 96;" ::: "memory");
        if (threadIdx.x == 0) out[0] = 1;
    }"""
    source = source.replace("FIRST", first).replace("NUMBER", number)
    found = run(source, block=(96, 1, 1)).findings
    if number == "0":
        assert not found
        return
    (differs,) = (each for each in found if each.kind == "different thread counts")
    assert "gives a count of 96 threads at a barrier for which other warps" in differs.message
    assert "which have arrived, give 64" in differs.message


# Warp 0 writes, warps 0 and 1 synchronize, warps 1 and 2 synchronize, warp 2 reads.
CHAIN = """k(float* out) {
    __shared__ float As[32];
    int t = threadIdx.x & 31, warp = threadIdx.x / 32;
    if (warp == 0) {
        As[t] = t;
        FIRST
    } else if (warp == 1) {
        FIRST
        SECOND
    } else {
        SECOND
        out[t] = As[31 - t];
    }
}"""


@pytest.mark.parametrize("linked", [True, False])
def test_order_through_a_third_warp(linked: bool) -> None:
    text = CHAIN if linked else CHAIN.replace("FIRST\n        SECOND", "SECOND\n        FIRST")
    text = text.replace("FIRST", SYNC.format(1, 64)).replace("SECOND", SYNC.format(2, 64))
    outcome = run(text, block=(96, 1, 1))
    if linked:
        assert not outcome.findings
        return
    # Warp 1 synchronizes with the reader before the writer: the reader is not ordered after the
    # write.
    assert outcome.only.kind == "read after write"
    assert outcome.only.here.thread is not None
    assert outcome.only.here.thread[0] // 32 == 2


def test_halves_of_a_block_with_tiles_of_their_own() -> None:
    text = """k(float* out) {
        __shared__ float As[128];
        int half = threadIdx.x / 64;
        As[threadIdx.x] = threadIdx.x;
        asm volatile("bar.sync %0, 64;" :: "r"(half + 1) : "memory");
        float other = As[half * 64 + 63 - threadIdx.x % 64];
        asm volatile("bar.sync %0, 64;" :: "r"(half + 1) : "memory");
        As[threadIdx.x] = other;
        __syncthreads();
        out[threadIdx.x] = As[127 - threadIdx.x];
    }"""
    arguments = {"out": np.zeros(128, np.float32)}
    outcome = run(text, arguments, block=(128, 1, 1))
    assert not outcome.findings
    wanted = [64 + n for n in range(64)] + list(range(64))
    assert outcome.arrays["out"].view(np.float32).tolist() == wanted
    # A half that reads the other's tile without a common barrier.
    crossed = text.replace("As[half * 64 + 63", "As[64 - half * 64 + 63")
    kinds = {each.kind for each in run(crossed, arguments, block=(128, 1, 1)).findings}
    assert "read after write" in kinds or "write after read" in kinds


def test_copies_of_a_producer_warp() -> None:
    text = """k(float* out, const float* in) {
        __shared__ float As[32];
        int t = threadIdx.x & 31;
        if (threadIdx.x < 32) {
            unsigned to = __cvta_generic_to_shared(&As[t]);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                :: "r"(to), "l"(in + t) : "memory");
            asm volatile("cp.async.wait_all;" ::: "memory");
            BEFORE
        } else {
            SYNC
            out[t] = As[31 - t];
        }
    }"""
    arguments = {"out": np.zeros(32, np.float32), "in": np.arange(32, dtype=np.float32)}
    ordered = text.replace("BEFORE", ARRIVE.format(1, 64)).replace("SYNC", SYNC.format(1, 64))
    outcome = run(ordered, arguments)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == list(range(31, -1, -1))
    late = text.replace("BEFORE", "").replace("SYNC", SYNC.format(1, 32))
    found = run(late, arguments).only
    assert (found.kind, found.here.line) == ("read after write", 12)
    assert found.other is not None
    assert (found.other.line, found.other.thread) == (6, (31, 0, 0))


REDUCED = """k(float* out) {
    __shared__ float As[64];
    int t = threadIdx.x;
    As[t] = t;
    int some = REDUCE(t > 60);
    out[t] = As[63 - t] + some;
}"""


@pytest.mark.parametrize(
    ("name", "gives"),
    [("__syncthreads_count", 3), ("__syncthreads_or", 1), ("__syncthreads_and", 0)],
)
def test_reductions_are_barriers(name: str, gives: int) -> None:
    outcome = run(REDUCED.replace("REDUCE", name))
    assert not outcome.findings
    out = outcome.arrays["out"].view(np.float32)[:64]
    assert out.tolist() == [63 - t + gives for t in range(64)]


def test_reduction_that_a_part_of_a_warp_comes_to() -> None:
    text = REDUCED.replace(
        "int some = REDUCE(t > 60);",
        "int some = 0; if (t % 2 || out[t] > 9) {\nsome = __syncthreads_or(t > 9);\n}",
    )
    assert ("synccheck", "divergent barrier") in run(text).kinds


@pytest.mark.parametrize("seed", range(4))
def test_two_groups_that_share_a_barrier(seed: int) -> None:
    text = """k(float* out) {
        __shared__ float As[128];
        int t = threadIdx.x;
        As[t] = t;
        asm volatile("bar.sync NUMBER, 64;" ::: "memory");
        out[t] = As[t ^ 32];
    }"""
    arguments = {"out": np.zeros(128, np.float32)}
    shared = text.replace("NUMBER", "1")
    found = run(shared, arguments, block=(128, 1, 1), warp_seed=seed).findings
    (finding,) = (each for each in found if each.kind == "barrier shared")
    assert "arrive at barrier 1 (thread (" in finding.message
    apart = text.replace("NUMBER", "%0").replace('" ::: "', '" :: "r"(1 + t / 64) : "')
    assert not run(apart, arguments, block=(128, 1, 1), warp_seed=seed).findings


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ordered", [True, False])
def test_groups_that_use_a_barrier_in_turn(seed: int, ordered: bool) -> None:
    text = f"""k(float* out) {{
        int group = threadIdx.x / 64;
        {SYNC.format(1, 64)}
        if (group == 0) {{ IN_TURN_0 }}
        else {{ IN_TURN_1 {SYNC.format(1, 64)} }}
    }}"""
    text = text.replace(SYNC.format(1, 64), f"if (group == 0) {SYNC.format(1, 64)}", 1)
    turns = ARRIVE.format(2, 128), SYNC.format(2, 128)
    for index, what in enumerate(turns):
        text = text.replace(f"IN_TURN_{index}", what if ordered else "")
    found = run(text, {"out": np.zeros(1, np.float32)}, block=(128, 1, 1), warp_seed=seed).kinds
    assert found == (set() if ordered else {("synccheck", "barrier shared")})
