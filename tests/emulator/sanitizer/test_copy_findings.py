"""cp.async: nothing may access a copy's target before the copy was waited for."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

# Two groups, one per stage; then a wait, and a read of a stage at an index.
SOURCE = """k(float* out, const float* in) {
    __shared__ float As[2][64];
    int t = threadIdx.x;
    unsigned first = __cvta_generic_to_shared(&As[0][t]);
    unsigned second = __cvta_generic_to_shared(&As[1][t]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(first), "l"(in + t) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(second), "l"(in + t) : "memory");
    COMMIT
    WAIT
    out[t] = As[STAGE][INDEX];
}"""
COMMIT = 'asm volatile("cp.async.commit_group;" ::: "memory");'
WAIT = 'asm volatile("cp.async.wait_group {};" ::: "memory");'
WAIT_ALL = 'asm volatile("cp.async.wait_all;" ::: "memory");'
BARRIER = "__syncthreads();"
ARGUMENTS = {"out": np.zeros(64, np.float32), "in": np.arange(64, dtype=np.float32)}


def source(wait: str, stage: int, index: str = "63 - t", commit: str = COMMIT) -> str:
    text = SOURCE.replace("COMMIT", commit).replace("WAIT", wait)
    return text.replace("STAGE", str(stage)).replace("INDEX", index)


@pytest.mark.parametrize(
    ("wait", "stage"),
    [
        (WAIT.format(0) + BARRIER, 1),
        (WAIT.format(1) + BARRIER, 0),
        (WAIT_ALL + BARRIER, 1),
    ],
)
def test_waited_for(wait: str, stage: int) -> None:
    outcome = run(source(wait, stage), ARGUMENTS)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize(
    ("wait", "stage"),
    [
        (WAIT.format(1) + BARRIER, 1),
        (WAIT.format(2) + BARRIER, 0),
        (BARRIER, 0),
    ],
)
def test_not_waited_for(wait: str, stage: int) -> None:
    outcome = run(source(wait, stage), ARGUMENTS)
    found = outcome.only
    assert (found.check, found.kind, found.count) == ("racecheck", "read before wait", 2)
    assert (found.array, found.offset) == ("As", 256 * stage + 252)
    assert found.other is not None
    assert (found.here.line, found.other.line) == (11, 8 if stage else 6)
    assert (found.here.thread, found.other.thread) == ((0, 0, 0), (63, 0, 0))
    # The copies are in flight: the previous contents are read.
    assert outcome.arrays["out"].view(np.float32).tolist() == [0.0] * 64


def test_a_group_that_is_never_closed() -> None:
    assert run(source(WAIT.format(0) + BARRIER, 1, commit=""), ARGUMENTS).kinds == {
        ("racecheck", "read before wait")
    }
    assert not run(source(WAIT_ALL + BARRIER, 1, commit=""), ARGUMENTS).findings


def test_no_barrier_after_the_wait() -> None:
    found = run(source(WAIT.format(0), 1), ARGUMENTS).findings
    races = {each.kind: each for each in found if each.check == "racecheck"}
    assert set(races) == {"read after write", "write after read"}
    late = races["read after write"]
    assert late.other is not None
    assert (late.here.line, late.other.line) == (11, 8)
    assert (late.here.thread, late.other.thread) == ((32, 0, 0), (31, 0, 0))


def test_what_a_thread_has_copied_itself_needs_no_barrier() -> None:
    assert not run(source(WAIT.format(0), 1, "t"), ARGUMENTS).findings


def test_what_another_lane_has_copied_needs_one() -> None:
    found = run(source(WAIT.format(0), 1, "t ^ 1"), ARGUMENTS).only
    assert (found.kind, found.count) == ("read after write", 2)
    assert not run(source(WAIT.format(0) + "__syncwarp();", 1, "t ^ 1"), ARGUMENTS).findings


def test_copies_into_what_is_still_read() -> None:
    text = """k(float* out, const float* in) {
        __shared__ float As[64];
        int t = threadIdx.x;
        As[t] = t;
        __syncthreads();
        float other = As[63 - t];
        BARRIER
        unsigned to = __cvta_generic_to_shared(&As[t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(in + t) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        out[t] = other + As[t];
    }"""
    found = run(text.replace("BARRIER", ""), ARGUMENTS).findings
    assert ("write after read", 9) in {(each.kind, each.here.line) for each in found}
    assert not run(text.replace("BARRIER", BARRIER), ARGUMENTS).findings


def test_lanes_apart_close_groups_of_their_own() -> None:
    """Odd lanes commit one more group, so the same count includes their first group too."""
    text = """k(float* out, const float* in) {
        __shared__ float As[32];
        int t = threadIdx.x;
        As[t] = -1;
        unsigned to = __cvta_generic_to_shared(&As[t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(in + t) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (t & 1) asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        if (t & 1) out[t] = As[t];
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        if (!(t & 1)) out[t] = As[t];
    }"""
    outcome = run(text, ARGUMENTS, block=(32, 1, 1))
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[:32].tolist() == list(range(32))
    early = run(text.replace("if (t & 1) out", "if (!(t & 1)) out"), ARGUMENTS, block=(32, 1, 1))
    assert early.kinds == {("racecheck", "read before wait")}


def test_zero_filled_bytes_count_as_written() -> None:
    text = """k(float* out, const float* in, int n) {
        __shared__ float As[64];
        int t = threadIdx.x;
        unsigned to = __cvta_generic_to_shared(&As[t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
            :: "r"(to), "l"(in + t), "r"(t < n ? 4 : 0) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        out[t] = As[63 - t];
    }"""
    short = {**ARGUMENTS, "in": ARGUMENTS["in"][:10], "n": np.int32(10)}
    outcome = run(text, short)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == [0.0] * 54 + list(range(9, -1, -1))
    found = run(text, {**short, "n": np.int32(11)}).findings
    outside, missing = sorted(found, key=lambda each: each.check, reverse=True)
    assert (missing.kind, missing.array, missing.offset) == ("uninitialized", "As", 40)
    assert (outside.array, outside.offset, outside.here.thread) == ("in", 40, (10, 0, 0))


def test_an_ignored_source_may_lie_anywhere() -> None:
    text = """k(float* out, const float* in, int n) {
        __shared__ float As[64];
        int t = threadIdx.x;
        unsigned to = __cvta_generic_to_shared(&As[t]);
        asm volatile("{.reg .pred p; setp.ge.s32 p, %2, %3;"
            "cp.async.ca.shared.global [%0], [%1], 4, p;}"
            :: "r"(to), "l"(in + t), "r"(t), "r"(n) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        out[t] = As[63 - t];
    }"""
    short = {**ARGUMENTS, "in": ARGUMENTS["in"][:10], "n": np.int32(10)}
    outcome = run(text, short)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == [0.0] * 54 + list(range(9, -1, -1))
    found = run(text, {**short, "n": np.int32(11)}).findings
    outside = min(found, key=lambda each: each.check != "memcheck")
    assert (outside.array, outside.offset, outside.here.thread) == ("in", 40, (10, 0, 0))


def test_more_copies_than_the_queue_holds() -> None:
    text = """k(float* out, const float* in) {
        __shared__ float As[200];
        for (int i = threadIdx.x; i < 200 * 32; i += 32)
            if (i / 32 % 32 == threadIdx.x) {
                unsigned to = __cvta_generic_to_shared(&As[i / 32]);
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                    :: "r"(to), "l"(in + i / 32 % 64) : "memory");
            }
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        out[threadIdx.x] = As[threadIdx.x + 168];
    }"""
    outcome = run(text, ARGUMENTS, block=(32, 1, 1))
    assert not outcome.findings
    wanted = [float((lane + 168) % 64) for lane in range(32)]
    assert outcome.arrays["out"].view(np.float32)[:32].tolist() == wanted


@pytest.mark.parametrize("size", ["", ", %2"])
def test_copies_from_memory_never_written(size: str) -> None:
    text = f"""k(float* out, const float* in, int bytes) {{
        __shared__ float As[64];
        int t = threadIdx.x;
        unsigned to = __cvta_generic_to_shared(&As[t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4{size};"
            :: "r"(to), "l"(in + t), "r"(bytes) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        out[t] = As[t];
    }}"""
    arguments = {**ARGUMENTS, "bytes": np.int32(4)}
    found = run(text, arguments, unwritten=["in", "out"]).only
    assert (found.check, found.kind, found.array) == ("initcheck", "uninitialized", "in")
    if size:
        nothing = {**ARGUMENTS, "bytes": np.int32(0)}
        assert not run(text, nothing, unwritten=["in", "out"]).findings


STREAMED = """k(float* out, const float* in, int shift) {
    __shared__ float4 tile[64];
    unsigned long long policy;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(in - 5000));
    asm volatile("prefetch.global.L1 [%0];" ::"l"(out + 1000003));
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                 ::"r"((unsigned)__cvta_generic_to_shared(tile + threadIdx.x)),
                 "l"(in + 4 * threadIdx.x + shift), "l"(policy));
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;"
                 ::"l"(out + threadIdx.x), "f"(tile[threadIdx.x].y), "l"(policy) : "memory");
}"""


def streamed(shift: int, **options: object) -> tuple[set[tuple[str, str]], list[float]]:
    given = np.arange(256, dtype=np.float32)
    arguments = {"out": np.zeros(64, np.float32), "in": given, "shift": np.int32(shift)}
    outcome = run(STREAMED, arguments, **options)
    return outcome.kinds, outcome.arrays["out"].view(np.float32).tolist()


def test_the_first_copy_from_memory_never_written_is_found() -> None:
    """Each instruction's first copy takes the slow path."""
    text = SOURCE.replace("COMMIT", COMMIT).replace("WAIT", WAIT_ALL)
    text = text.replace("STAGE", "0").replace("INDEX", "t")
    found = run(text, ARGUMENTS, block=(32, 1, 1), unwritten=["in"]).findings
    assert {(each.check, each.kind) for each in found} == {("initcheck", "uninitialized")}
    assert {(each.array, each.offset) for each in found} == {("in", 0)}


def test_sanitizers_ignore_prefetches_and_watch_hinted_accesses() -> None:
    assert streamed(0) == (set(), [4.0 * lane + 1 for lane in range(64)])
    assert ("memcheck", "out of bounds") in streamed(4)[0]
    assert {check for check, _ in streamed(0, unwritten=("in",))[0]} == {"initcheck"}
