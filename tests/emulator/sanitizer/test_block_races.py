"""racecheck in global memory: blocks that access one address."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

OUT = {"out": np.zeros(96, np.float32)}
HOW = {"grid": (3, 1, 1), "block": (32, 1, 1)}


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_store_to_one_address(threads: int) -> None:
    source = "k(float* out) { out[threadIdx.x] = blockIdx.x; }"
    found = run(source, OUT, **HOW, threads=threads).only
    assert (found.check, found.kind, found.count) == ("racecheck", "write after write", 32)
    assert (found.array, found.offset, found.block) == ("out", 0, (2, 0, 0))
    assert found.message == (
        "write after write: thread (0, 0, 0) of block (2, 0, 0) writes byte 0 of 'out' at "
        "kernel.cu:1, which thread (0, 0, 0) of block (0, 0, 0) writes at kernel.cu:1; blocks run "
        "in any order"
    )


def test_blocks_with_addresses_of_their_own() -> None:
    source = "k(float* out) { out[blockIdx.x * 32 + threadIdx.x] += blockIdx.x; }"
    outcome = run(source, OUT, **HOW)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == [0.0] * 32 + [1.0] * 32 + [2.0] * 32


@pytest.mark.parametrize(("reach", "kind"), [(32, "write after read"), (-32, "read after write")])
def test_a_block_reads_what_another_stores(reach: int, kind: str) -> None:
    source = """k(float* out, int reach) {
        int at = blockIdx.x * 32 + threadIdx.x;
        float other = at + reach >= 0 && at + reach < 96 ? out[at + reach] : 0;
        out[at] = other + 1;
    }"""
    found = run(source, {**OUT, "reach": np.int32(reach)}, **HOW).only
    assert (found.check, found.kind, found.count) == ("racecheck", kind, 64)
    assert found.other is not None
    assert {found.here.line, found.other.line} == {3, 4}
    assert not run(source, {**OUT, "reach": np.int32(0)}, **HOW).findings


def test_results_of_a_launch_that_is_begun_anew() -> None:
    """A region that is loaded and stored is recorded from the start; the first pass is undone."""
    source = """k(float* out) {
        out[blockIdx.x * 32 + threadIdx.x] += 1;
        if (threadIdx.x == 0) printf("block %d\\n", blockIdx.x);
    }"""
    plain, watched = (run(source, OUT, **HOW, sanitize=each) for each in (False, True))
    assert watched.arrays["out"].view(np.float32).tolist() == [1.0] * 96
    assert watched.execution.printed == plain.execution.printed
    assert len(watched.execution.printed) == 3
    assert (watched.execution.tally.executed == plain.execution.tally.executed).all()


@pytest.mark.parametrize("access", ["atomicAdd(out, 1.0f);", "*(volatile float*)out = 1;"])
def test_strong_accesses_do_not_race(access: str) -> None:
    assert not run(f"k(float* out) {{ {access} }}", OUT, **HOW).findings


def test_a_fence_alone_makes_no_order() -> None:
    found = run("k(float* out) { __threadfence(); out[0] = 1; }", OUT, **HOW).only
    assert (found.check, found.kind) == ("racecheck", "write after write")


def test_adjacent_narrow_accesses() -> None:
    source = """k(unsigned char* out) {
        out[threadIdx.x * 3 + blockIdx.x] = 1;
    }"""
    outcome = run(source, {"out": np.zeros(96, np.uint8)}, **HOW)
    assert not outcome.findings
    assert outcome.arrays["out"].tolist() == [1] * 96
