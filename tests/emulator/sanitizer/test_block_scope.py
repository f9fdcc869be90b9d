"""racecheck between blocks: atomics that are atomic among the threads of one block only."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import Outcome, run

# Makes racecheck track the blocks one after the other, as atomics of device scope do too.
FENCE = "__threadfence(); "


def launch(body: str, **how: object) -> Outcome:
    """A kernel in which one thread of each of four blocks works."""
    source = f"""k(int* count, int* flag, float* sum) {{
        if (threadIdx.x > 0) return;
        const int block = blockIdx.x, last = gridDim.x - 1;
        {body}
    }}"""
    arrays = {
        "count": np.zeros(8, np.int32),
        "flag": np.zeros(8, np.int32),
        "sum": np.zeros(8, np.float32),
    }
    return run(source, arrays, grid=(4, 1, 1), block=(32, 1, 1), **how)


RED = 'asm volatile("red.relaxed.cta.global.add.s32 [%0], 1;" :: "l"(count) : "memory");'
RACES = {
    "sums": "atomicAdd_block(sum, 1.0f);",
    "a result that is used": "if (atomicAdd_block(count, 1) == 9) flag[1] = 1;",
    "red": RED,
    "exchange": "atomicExch_block(count, block);",
    "compare-and-swap": "if (atomicCAS_block(count, 0, 1) == 7) flag[1] = 1;",
    "device scope after block scope": "if (block == last) atomicAdd(count, 1); "
    "else if (block == 0) atomicAdd_block(count, 1);",
    "block scope after device scope": "if (block == 0) atomicAdd(count, 1); "
    "else if (block == last) atomicAdd_block(count, 1);",
    "system scope": "if (block == 0) atomicAdd_system(count, 1); else atomicAdd_block(count, 1);",
    "both in each block": "atomicAdd(count, 1); atomicAdd_block(count, 1);",
    "a signal without a fence": "if (block == 0) { atomicAdd_block(count, 1); atomicExch(flag, 1); "
    "} else if (block == last) { while (atomicAdd(flag, 0) == 0); atomicAdd_block(count, 1); }",
}  # fmt: skip


@pytest.mark.parametrize("before", ["", FENCE])
@pytest.mark.parametrize("name", RACES)
@pytest.mark.sample
def test_races_of_atomics(name: str, before: str) -> None:
    found = launch(before + RACES[name]).findings
    assert {(each.check, each.kind) for each in found} == {("racecheck", "write after write")}
    for each in found:
        assert "(block scope)" in each.message
        assert "atomic only among the threads of its own block" in each.message


@pytest.mark.parametrize("before", ["", FENCE])
@pytest.mark.parametrize(
    ("plain", "kind"),
    [("count[0] = 5;", "write after write"), ("sum[1] = count[0];", "write after read")],
)
def test_plain_accesses_of_another_block(plain: str, kind: str, before: str) -> None:
    found = launch(f"{before}if (block == 0) {plain} else if (block == 1) {RED}").only
    assert (found.check, found.kind) == ("racecheck", kind)
    assert "atomic only" not in found.message


def test_the_message_names_both_scopes_and_lines() -> None:
    body = "if (block == 0)\natomicAdd(count, 1);\nif (block == last)\natomicAdd_block(count, 1);"
    found = launch(body).only
    assert found.other is not None
    assert found.here is not None
    assert found.here.line == found.other.line + 2
    assert f"{found.here} (block scope)" in found.message
    assert f"{found.other} (device scope)" in found.message


SOUND = {
    "device scope": "atomicAdd(count, 1); atomicExch(flag, 1); atomicAdd(sum, 1.0f);",
    "a place of each block's own": "atomicAdd_block(count + block, 1); count[block] += 1;",
    "two scopes at a place of each block's own": "atomicAdd_block(count + block, 1); "
    "atomicAdd(count + block, 1); atomicAdd_block(count + block, 1);",
    "one block": "if (block == 2) { atomicAdd_block(count, 1); atomicAdd_block(count, 1); }",
    "ordered by fences and a flag": "if (block == 0) { atomicAdd_block(count, 1); __threadfence(); "
    "atomicExch(flag, 1); } else if (block == last) { while (atomicAdd(flag, 0) == 0); "
    "__threadfence(); atomicAdd_block(count, 1); }",
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound(name: str) -> None:
    assert not launch(SOUND[name]).findings


def test_threads_of_one_block() -> None:
    source = "k(float* out) { atomicAdd_block(out + blockIdx.x, 1.0f); }"
    outcome = run(source, grid=(4, 1, 1))
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[:4].tolist() == [64] * 4


def test_shared_memory_is_each_blocks_own() -> None:
    source = """k(float* out) {
        __shared__ float sum[1];
        if (threadIdx.x == 0) sum[0] = 0;
        __syncthreads();
        atomicAdd_block(sum, 1.0f);
    }"""
    assert not run(source, grid=(4, 1, 1)).findings
