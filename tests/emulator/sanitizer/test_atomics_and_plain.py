"""racecheck between blocks: atomics of one block and plain accesses of another to one address."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

HOW = {"grid": (4, 1, 1), "block": (32, 1, 1)}


def launch(body: str, **how: object):
    """A kernel in which one thread of each block works on `count`, `flag` and `sum`."""
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
    return run(source, arrays, **{**HOW, **how})


RACES = {
    "plain load of what others still add to": (
        "atomicAdd(count, 1); if (count[0] > 9) sum[block] = 1;",
        "write after read",
        "count",
    ),
    "plain load with no atomic of its own": (
        "if (block == last) sum[block] = count[0]; else atomicAdd(count, 1);",
        "read after write",
        "count",
    ),
    "plain load before the atomics": (
        "if (block == 0) sum[block] = count[0]; else atomicAdd(count, 1);",
        "write after read",
        "count",
    ),
    "plain store before the atomics": (
        "if (block == 0) count[0] = 5; else atomicAdd(count, 1);",
        "write after write",
        "count",
    ),
    "plain store after the atomics": (
        "if (block == last) count[0] = 5; else atomicAdd(count, 1);",
        "write after write",
        "count",
    ),
    "cleared by one, added to by all, with no order": (
        "if (block == 0) sum[0] = 0; atomicAdd(sum, 1.0f);",
        "write after write",
        "sum",
    ),
    "a lock that is left by a plain store": (
        "while (atomicCAS(flag, 0, 1) != 0); count[block] = 1; *flag = 0;",
        "write after write",
        "flag",
    ),
    "a fence that orders nothing": (
        "if (block == 0) { count[0] = 5; __threadfence(); } else { __threadfence(); "
        "atomicAdd(count, 1); }",
        "write after write",
        "count",
    ),
    "results read before all have been added": (
        "atomicAdd(sum, 1.0f); if (atomicAdd(count, 1) == 2) flag[1] = sum[0];",
        "write after read",
        "sum",
    ),
    "strong stores": (
        "if (block == 0) *(volatile int*)flag = 1; else if (flag[0]) count[block] = 1;",
        "read after write",
        "flag",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
@pytest.mark.parametrize("threads", [1, 2])
def test_races(name: str, threads: int) -> None:
    body, kind, array = RACES[name]
    if name == "strong stores":
        body += " atomicAdd(count + 7, 1);"
    found = launch(body, threads=threads).findings
    assert kind in {each.kind for each in found if each.array == array}, found
    assert {each.check for each in found} == {"racecheck"}


SOUND = {
    "last block resets the counter": (
        "__threadfence(); if (atomicAdd(count, 1) == last) { count[0] = 0; sum[0] = 1; }"
    ),
    "the same without a fence": "if (atomicInc(count_, last) == last) flag[0] = 1;",
    "reset by a plain store, no fence": "if (atomicAdd(count, 1) == last) count[0] = 0;",
    "sums added to, then read by the last": (
        "atomicAdd(sum, 1.0f); __threadfence(); "
        "if (atomicAdd(count, 1) == last) { __threadfence(); flag[0] = sum[0]; sum[0] = 0; }"
    ),
    "cleared first, and the others told": (
        "if (block == 0) { sum[0] = 0; __threadfence(); atomicExch(flag, 1); } "
        "else { while (atomicAdd(flag, 0) == 0); __threadfence(); } atomicAdd(sum, 1.0f);"
    ),
    "the same, seen by volatile loads": (
        "volatile int* seen = flag; if (block == 0) { sum[0] = 0; __threadfence(); *seen = 1; } "
        "else { while (*seen == 0); __threadfence(); } atomicAdd(sum, 1.0f);"
    ),
    "a flag that is seen, then cleared": (
        "volatile int* seen = flag; if (block == 0) atomicExch(flag, 1); "
        "else if (block == last) { while (*seen == 0); flag[0] = 0; }"
    ),
    "a semaphore that is passed on": (
        "while (atomicAdd(flag, 0) != block); __threadfence(); count[0] += block; "
        "__threadfence(); if (block == last) flag[0] = 0; else atomicAdd(flag, 1);"
    ),
    "neighbors": "atomicAdd(count + 2 * (block & 1), 1); sum[block] = 1; count[1 + 2 * (block & 1)"
    " + 4 * (block > 1)] = block;",
    "a place of each block's own": "count[block] = 1; atomicAdd(count + block, 1); "
    "sum[block] = count[block];",
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound(name: str) -> None:
    assert not launch(SOUND[name].replace("count_", "(unsigned*)count")).findings


def test_the_message_names_both() -> None:
    found = launch(RACES["plain store after the atomics"][0]).only
    assert "thread (0, 0, 0) of block (3, 0, 0) writes byte 0 of 'count'" in found.message
    assert "of block (2, 0, 0)" in found.message
    assert found.message.endswith("blocks run in any order")


# As in the CUDA programming guide: the first load is plain, and may be stale.
CAS_LOOP = """k(double* out, float* done) {
    PLACE
    unsigned long long* at = (unsigned long long*)total;
    unsigned long long old = *at, assumed;
    do {
        assumed = old;
        old = atomicCAS(at, assumed, __double_as_longlong(1.0 + __longlong_as_double(assumed)));
    } while (assumed != old);
    __syncthreads();
    if (blockIdx.x == 0) done[threadIdx.x] = SEEN;
}"""


@pytest.mark.parametrize("grid", [1, 4])
@pytest.mark.parametrize("threads", [1, 20, 64])
def test_a_loop_of_compare_and_swap(grid: int, threads: int) -> None:
    arrays = {"out": np.zeros(2, np.float64), "done": np.zeros(64, np.float32)}
    how = {"grid": (grid, 1, 1), "block": (threads, 1, 1)}
    source = CAS_LOOP.replace("PLACE", "double* total = out;").replace("SEEN", "1")
    outcome = run(source, arrays, **how)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float64)[0] == grid * threads
    place = "__shared__ double total[1]; if (threadIdx.x == 0) *total = 0; __syncthreads();"
    outcome = run(CAS_LOOP.replace("PLACE", place).replace("SEEN", "*total"), arrays, **how)
    assert not outcome.findings
    assert outcome.arrays["done"].view(np.float32)[0] == threads


def test_a_plain_store_among_compare_and_swaps() -> None:
    arrays = {"out": np.zeros(2, np.float64), "done": np.zeros(64, np.float32)}
    source = CAS_LOOP.replace("PLACE", "double* total = out; if (blockIdx.x == 2) *out = 3;")
    found = run(source.replace("SEEN", "1"), arrays, **HOW).findings
    assert "write after write" in {each.kind for each in found}
