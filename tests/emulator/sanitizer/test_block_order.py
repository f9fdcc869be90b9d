"""racecheck in kernels whose blocks synchronize with each other: fences, atomics, flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sanitizing import Outcome, run

from gemmkit.emulator.sanitizer.block_order import BlockOrder

TILES, PARTS, THREADS = 3, 4, 64
HOW = {"grid": (TILES, PARTS, 1), "block": (THREADS, 1, 1), "unwritten": ("out", "workspace")}

# The blocks of a tile store partial sums in the workspace; the last one adds them up.
LAST_ARRIVER = """k(const float* x, float* out, float* workspace, unsigned* semaphores) {
    __shared__ bool last;
    const int parts = gridDim.y, width = blockDim.x, at = threadIdx.x;
    float* slots = workspace + blockIdx.x * parts * width;
    slots[blockIdx.y * width + at] = x[(blockIdx.x * parts + blockIdx.y) * width + at];
    __threadfence();  // before
    __syncthreads();  // all parts
    if (at == 0) {
        last = atomicInc(&semaphores[blockIdx.x], parts - 1) == parts - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();  // after
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += slots[part * width + at];
    out[blockIdx.x * width + at] = sum;
}"""
_BEFORE, _AFTER = "__threadfence();  // before", "__threadfence();  // after"
_PART = "slots[blockIdx.y * width + at] ="
_COUNT = "atomicInc(&semaphores[blockIdx.x], parts - 1)"


def launch(source: str, **how: object) -> Outcome:
    arrays = {
        "x": np.arange(TILES * PARTS * THREADS, dtype=np.float32),
        "out": np.zeros(TILES * THREADS, np.float32),
        "workspace": np.zeros(TILES * PARTS * THREADS, np.float32),
        "semaphores": np.zeros(TILES, np.int32),
    }
    return run(source, arrays, **{**HOW, **how})  # type: ignore[arg-type]


def changed(*changes: tuple[str, str]) -> str:
    source = LAST_ARRIVER
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_last_arriver(threads: int, sanitize: bool) -> None:
    outcome = launch(LAST_ARRIVER, threads=threads, sanitize=sanitize)
    x = np.arange(TILES * PARTS * THREADS, dtype=np.float32).reshape(TILES, PARTS, THREADS)
    assert (outcome.arrays["out"].view(np.float32).reshape(TILES, THREADS) == x.sum(1)).all()
    assert not outcome.findings
    assert not outcome.arrays["semaphores"].any()


def test_counts_do_not_depend_on_the_number_of_host_threads() -> None:
    one, two = (launch(LAST_ARRIVER, threads=n, sanitize=False).execution.tally for n in (1, 2))
    assert (one.executed == two.executed).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([(_BEFORE, "")], "the other is not followed by a __threadfence()"),
        ([("__syncthreads();  // all parts", "")], "with a barrier before the atomic"),
        ([(_AFTER, "")], "no __threadfence() comes between this and the atomic"),
        ([(_BEFORE, ""), (_AFTER, "")], "blocks run in any order"),
        ([(_BEFORE, "__threadfence_block();")], "the other is not followed by a __threadfence()"),
        (
            [(_COUNT, "atomicInc_block(&semaphores[blockIdx.x], parts - 1)")],
            "the other is not followed",
        ),
        (
            [(_PART, f"if (blockIdx.y > 1 && slots[at] < 0) return; {_PART}")],
            "no atomic that signals the other",
        ),
    ],
)
def test_an_order_with_a_gap(changes: list[tuple[str, str]], words: str) -> None:
    found = [each for each in launch(changed(*changes)).findings if each.check == "racecheck"]
    assert words in found[0].message
    # With a counter in block scope, the blocks also race for the counter itself.
    of_parts = [each for each in found if "(block scope)" not in each.message]
    assert {each.kind for each in of_parts} <= {"read after write", "write after read"}
    assert {each.array for each in of_parts} == {"workspace"}


def test_a_part_that_another_block_writes_too() -> None:
    found = launch(changed((_PART, "slots[at] ="))).findings
    assert {each.check for each in found} == {"initcheck", "racecheck"}
    assert "write after write" in {each.kind for each in found}


def test_parts_that_are_read_before_all_have_arrived() -> None:
    found = launch(changed(("if (!last) return;", ""))).findings
    assert {each.check for each in found} == {"initcheck", "racecheck"}
    assert {each.array for each in found} == {"workspace", "out"}


@pytest.mark.parametrize(
    "changes",
    [
        # One thread fences for all, before and after.
        [
            (_BEFORE, ""),
            (_AFTER, ""),
            ("if (at == 0) {", "if (at == 0) { __threadfence();"),
            ("== parts - 1;", "== parts - 1; __threadfence();"),
        ],
        # Reads that bypass the L1, and strong reads.
        [(_AFTER, ""), ("slots[part * width + at];", "__ldcg(&slots[part * width + at]);")],
        [(_AFTER, ""), ("+= slots[", "+= ((volatile float*)slots)[")],
        # The atomic is a fence itself.
        [
            (_BEFORE, ""),
            (_AFTER, ""),
            (
                f"last = {_COUNT} == parts - 1;",
                """unsigned old;
                asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                    : "=r"(old) : "l"(&semaphores[blockIdx.x]), "r"(parts - 1) : "memory");
                last = old == parts - 1;""",
            ),
        ],
    ],
)  # fmt: skip
def test_other_ways_of_saying_it(changes: list[tuple[str, str]]) -> None:
    outcome = launch(changed(*changes))
    assert not outcome.findings
    assert outcome.arrays["out"].any()


CHAIN = """k(float* out) {
    if (threadIdx.x > 0) return;
    volatile int* flags = (volatile int*)(out + 32);
    const int block = blockIdx.x;
    if (block > 0) while (flags[block - 1] == 0);
    __threadfence();
    out[block] = block < 2 ? block + 1 : out[block - 2] + out[block - 1];
    __threadfence();
    flags[block] = 1;
}"""


def test_what_a_block_knows_of_others_is_passed_on() -> None:
    """Each block waits for the previous one, and reads what the one before that wrote."""
    outcome = run(CHAIN, grid=(8, 1, 1), block=(32, 1, 1))
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[:8].tolist() == [1, 2, 3, 5, 8, 13, 21, 34]
    waiting = "while (flags[block - 1] == 0);"
    assert waiting in CHAIN
    found = run(CHAIN.replace(waiting, ""), grid=(8, 1, 1), block=(32, 1, 1)).findings
    assert {each.kind for each in found} == {"read after write"}


def test_a_lock() -> None:
    source = """k(float* out) {
        if (threadIdx.x > 0) return;
        int* lock = (int*)(out + 32);
        while (atomicCAS(lock, 0, 1) != 0);
        __threadfence();
        out[0] += blockIdx.x;
        __threadfence();
        atomicExch(lock, 0);
    }"""
    outcome = run(source, grid=(5, 1, 1), block=(32, 1, 1))
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[0] == 10
    found = run(source.replace("atomicExch(lock, 0)", "*lock = 0"), grid=(5, 1, 1)).findings
    assert {each.kind for each in found} == {"read after write", "write after write"}


@pytest.mark.parametrize("fence", ["", "__threadfence();"])
@pytest.mark.parametrize("wait", ["atomicAdd(out_, 0)", "atomicCAS(out_, 99, 1)", "*seen"])
@pytest.mark.sample(5)
def test_waiting_by_atomics_takes_no_memory(fence: str, wait: str, monkeypatch) -> None:
    """Each iteration of a waiting loop is a release; only the last one is kept."""
    kept: list[BlockOrder] = []
    made = BlockOrder.__init__

    def keep(self: BlockOrder, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        kept.append(self)

    monkeypatch.setattr(BlockOrder, "__init__", keep)
    source = f"""k(float* out) {{
        int* out_ = (int*)out;
        volatile int* seen = out_;
        __threadfence();
        if (threadIdx.x == 32) for (int i = 0; i < 2000; ++i) {{ atomicAdd(out_ + 1, 1); {fence} }}
        if (threadIdx.x == 0) for (int i = 0; i < 2000; ++i) {{
            if ({wait} == 77) break;
            {fence}
        }}
        if (threadIdx.x == 0) atomicExch(out_ + 2, 1);
    }}"""
    assert not run(source, grid=(2, 1, 1)).findings
    assert kept
    assert max(len(at.releases) for each in kept for at in each._locations.values()) < 200


@pytest.mark.parametrize("reset", [False, True])
def test_flags_left_set_in_a_variable(reset: bool) -> None:
    source = """k(float* out) {
        static int flags[3];
        if (blockIdx.x == 0) {
            out[0] = 1;
            __threadfence();
            atomicExch(flags + 2, 1);
        } else {
            while (atomicAdd(flags + 2, 0) == 0);
            __threadfence();
            out[1] = out[0];
            RESET
        }
    }"""
    source = source.replace("RESET", "atomicExch(flags + 2, 0);" if reset else "")
    outcome = run(source, grid=(2, 1, 1), block=(1, 1, 1))
    if reset:
        assert not outcome.findings
        return
    assert outcome.kinds == {("synccheck", "flag left set")}
    assert (outcome.only.offset, outcome.only.here.line) == (8, 8)
    assert ", and a second launch goes wrong (racecheck: " in outcome.only.message
    assert "--constant flags=0" in outcome.only.message


def test_flags_left_set_by_a_launch_that_fails() -> None:
    """A second launch would show nothing."""
    source = """k(float* out) {
        static int flags[3];
        if (blockIdx.x == 0) {
            out[0] = 1;
            __threadfence();
            atomicExch(flags, 1);
        } else {
            while (atomicAdd(flags, 0) == 0);
            __threadfence();
            out[1] = out[0];
            __trap();
        }
    }"""
    outcome = run(source, grid=(2, 1, 1), block=(1, 1, 1))
    assert len(outcome.findings) == 2
    (left,) = (each for each in outcome.findings if each.kind == "flag left set")
    assert ", and the next launch begins with that; " in left.message


WAITS_FOR_LATER = """k(float* out) {
    static int flag;
    const int blocks = gridDim.x;
    if (blockIdx.x + 1 < blocks) {
        while (atomicAdd(&flag, 0) != blocks - 1 - blockIdx.x);
        __threadfence();
    }
    out[blockIdx.x] = 1 + (blockIdx.x + 1 < blocks ? out[blockIdx.x + 1] : 0);
    __threadfence();
    atomicExch(&flag, blockIdx.x ? blocks - blockIdx.x : 0);
}"""


@pytest.mark.parametrize("sanitize", [False, True])
def test_blocks_that_wait_for_later_ones(sanitize: bool) -> None:
    outcome = run(WAITS_FOR_LATER, grid=(3, 1, 1), block=(1, 1, 1), at_once=4, sanitize=sanitize)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[:3].tolist() == [3, 2, 1]


def test_blocks_that_wait_for_some_that_do_not_run() -> None:
    finding = run(WAITS_FOR_LATER, grid=(3, 1, 1), block=(1, 1, 1), max_steps=100_000).only
    assert finding.kind == "endless"
    assert "blocks run one after the other, and none waits for a later one" in finding.message
    found = run(WAITS_FOR_LATER, grid=(3, 1, 1), block=(1, 1, 1), at_once=2, max_steps=100_000)
    assert "at most 2 blocks run at a time, one per SM" in found.only.message
