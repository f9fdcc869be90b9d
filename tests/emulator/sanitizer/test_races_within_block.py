"""racecheck in global memory: threads of one block that access one address."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

# The harness's arrays; a launch has two warps unless a test says otherwise.
ARRAYS = {"out": np.zeros(128, np.float32), "tmp": np.zeros(128, np.float32)}

EXCHANGE = """k(float* out, float* tmp) {
    tmp[threadIdx.x] = threadIdx.x;
    BETWEEN
    out[threadIdx.x] = tmp[threadIdx.x ^ 32];
}"""


def test_a_warp_reads_what_another_writes() -> None:
    found = run(EXCHANGE.replace("BETWEEN", ""), ARRAYS).findings
    assert {(each.check, each.kind) for each in found} == {
        ("racecheck", "read after write"),
        ("racecheck", "write after read"),
    }
    read = next(each for each in found if each.kind == "read after write")
    assert (read.array, read.offset, read.count) == ("tmp", 0, 32)
    assert read.other is not None
    assert (read.here.line, read.other.line) == (4, 2)
    assert (read.here.thread, read.other.thread) == ((32, 0, 0), (0, 0, 0))


def test_a_barrier_orders_warps() -> None:
    outcome = run(EXCHANGE.replace("BETWEEN", "__syncthreads();"), ARRAYS)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[:2].tolist() == [32, 33]


def test_a_warps_own_barrier_orders_its_lanes_only() -> None:
    assert run(EXCHANGE.replace("BETWEEN", "__syncwarp();"), ARRAYS).findings
    lanes = EXCHANGE.replace("^ 32", "^ 1")
    assert not run(lanes.replace("BETWEEN", "__syncwarp();"), ARRAYS).findings
    found = run(lanes.replace("BETWEEN", ""), ARRAYS).only
    assert (found.kind, found.count) == ("read after write", 64)
    assert "no __syncwarp() or barrier between" in found.message


@pytest.mark.parametrize("threads", [64, 128])
def test_a_barrier_for_a_part_of_the_block(threads: int) -> None:
    """Four warps: the first two share a barrier, the others have none or their own."""
    barrier = """if (threadIdx.x < THREADS)
        asm volatile("bar.sync %0, 64;" :: "r"(1 + threadIdx.x / 64) : "memory");"""
    source = EXCHANGE.replace("BETWEEN", barrier.replace("THREADS", str(threads)))
    outcome = run(source, ARRAYS, block=(128, 1, 1))
    assert {each.here.thread[0] >= 64 for each in outcome.findings if each.here.thread} <= {True}
    assert bool(outcome.findings) == (threads == 64)


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("tmp[threadIdx.x % 32] = threadIdx.x / 32;", 32),
        ("tmp[threadIdx.x / 2] = threadIdx.x;", 32),
        ("((float4*)tmp)[threadIdx.x % 32] = float4{0, 0, float(threadIdx.x / 32), 0};", 32),
        ("((double*)tmp)[threadIdx.x % 32] = threadIdx.x / 32;", 32),
        ("((char*)tmp)[threadIdx.x % 32] = threadIdx.x / 32;", 32),
        # Storing the same value is harmless.
        ("tmp[threadIdx.x % 32] = 7;", 0),
        ("tmp[0] = out[0];", 0),
        ("tmp[threadIdx.x] = threadIdx.x;", 0),
        ("((float2*)tmp)[threadIdx.x % 32] = float2{1, 2};", 0),
    ],
)
def test_threads_write_one_address(statement: str, count: int) -> None:
    outcome = run(f"k(float* out, float* tmp) {{ {statement} }}", ARRAYS)
    assert sum(each.count for each in outcome.findings) == count
    assert outcome.kinds <= {("racecheck", "write after write")}


def test_an_earlier_reader_is_not_forgotten() -> None:
    """Warp 0 reads an address, then warp 1 does, and writes it next."""
    source = """k(float* out, float* tmp) {
        float x = tmp[0];
        __syncwarp();
        if (threadIdx.x == 32) tmp[0] = x + 1;
    }"""
    found = run(source, ARRAYS).only
    assert (found.kind, found.here.line) == ("write after read", 4)
    assert found.other is not None
    assert found.other.thread == (31, 0, 0)
    assert not run(source.replace("__syncwarp", "__syncthreads"), ARRAYS).findings


def test_partial_sums_of_warps() -> None:
    source = """k(float* out, float* tmp) {
        if (threadIdx.x % 32 == 0) tmp[threadIdx.x / 32] = threadIdx.x;
        BETWEEN
        if (threadIdx.x == 0) out[0] = tmp[0] + tmp[1] + tmp[2] + tmp[3];
        BETWEEN
    }"""
    sound = source.replace("BETWEEN", "__syncthreads();")
    loop = "for (int turn = 0; turn < 2; ++turn) {"
    for turns in (sound, sound.replace("{", "{" + loop, 1) + "}"):
        assert not run(turns, ARRAYS, block=(128, 1, 1)).findings
    # Warp 0 runs first, and its sum is wrong: the others write what it has already read.
    racy = run(source.replace("BETWEEN", ""), ARRAYS, block=(128, 1, 1))
    assert racy.kinds == {("racecheck", "write after read")}
    once = sound.replace("__syncthreads();", "", 2).replace("    }", "__syncthreads(); }", 1)
    assert run(once, ARRAYS, block=(128, 1, 1)).findings


FLAG = """k(float* out, float* tmp) {
    volatile float* flag = out + 64;
    if (threadIdx.x == FROM) { tmp[0] = 5; RELEASE *flag = 1; }
    if (threadIdx.x == TO) { while (*flag == 0) {} ACQUIRE out[0] = tmp[0]; }
}"""


@pytest.mark.parametrize("fence", ["__threadfence();", "__threadfence_block();"])
@pytest.mark.parametrize(("writer", "reader"), [("0", "32"), ("32", "0")])
def test_a_flag_in_global_memory(fence: str, writer: str, reader: str) -> None:
    source = FLAG.replace("FROM", writer).replace("TO", reader)
    sound = run(source.replace("RELEASE", fence).replace("ACQUIRE", fence), ARRAYS)
    assert not sound.findings
    assert sound.arrays["out"].view(np.float32)[0] == 5
    for release, acquire in ((fence, ""), ("", fence), ("", "")):
        found = run(source.replace("RELEASE", release).replace("ACQUIRE", acquire), ARRAYS).only
        assert (found.kind, found.array, found.here.line) == ("read after write", "tmp", 4)


def test_a_flag_in_shared_memory() -> None:
    source = """k(float* out, float* tmp) {
        __shared__ volatile int flag;
        if (threadIdx.x == 0) flag = 0;
        __syncthreads();
        if (threadIdx.x == 32) { tmp[0] = 5; FENCE flag = 1; }
        if (threadIdx.x == 0) { while (flag == 0) {} FENCE out[0] = tmp[0]; }
    }"""
    assert not run(source.replace("FENCE", "__threadfence_block();"), ARRAYS).findings
    found = run(source.replace("FENCE", ""), ARRAYS).only
    assert (found.kind, found.array) == ("read after write", "tmp")


def test_a_flag_that_is_no_volatile() -> None:
    source = FLAG.replace("FROM", "0").replace("TO", "32").replace("*flag == 0", "false")
    source = source.replace("volatile ", "").replace("= tmp[0]", "= *flag")
    found = run(source.replace("RELEASE", "").replace("ACQUIRE", ""), ARRAYS).only
    assert (found.kind, found.array, found.offset) == ("read after write", "out", 256)


@pytest.mark.parametrize(("fence", "sound"), [("__threadfence();", True), ("", False)])
def test_the_last_warp_to_count_itself_adds_up(fence: str, sound: bool) -> None:
    """A fix-up within a block, as split-K has it between blocks."""
    source = """k(float* out, float* tmp) {
        tmp[threadIdx.x] = threadIdx.x;
        FENCE
        __syncwarp();
        unsigned before = 0;
        if (threadIdx.x % 32 == 0) before = atomicInc((unsigned*)out + 64, 3);
        before = __shfl_sync(~0u, before, 0);
        FENCE
        if (before == 3) out[threadIdx.x % 32] = tmp[threadIdx.x % 32] + tmp[threadIdx.x % 32 + 96];
    }"""
    for seed in (0, 3, 4):
        outcome = run(source.replace("FENCE", fence), ARRAYS, block=(128, 1, 1), warp_seed=seed)
        assert (
            not outcome.findings if sound else outcome.kinds == {("racecheck", "read after write")}
        )


@pytest.mark.parametrize(
    ("statements", "kinds"),
    [
        ("atomicAdd(tmp, 1.0f);", set()),
        ("atomicAdd(tmp, 1.0f); __syncthreads(); out[threadIdx.x] = tmp[0];", set()),
        ("atomicAdd(tmp, 1.0f); out[threadIdx.x] = *(volatile float*)tmp;", set()),
        (
            "if (threadIdx.x == 0) tmp[0] = 3; atomicAdd(tmp, 1.0f);",
            {("racecheck", "write after write")},
        ),
        (
            "atomicAdd(tmp, 1.0f); out[threadIdx.x] = tmp[0];",
            {("racecheck", "read after write"), ("racecheck", "write after read")},
        ),
    ],
)
def test_atomics_race_with_plain_accesses_only(
    statements: str, kinds: set[tuple[str, str]]
) -> None:
    assert run(f"k(float* out, float* tmp) {{ {statements} }}", ARRAYS).kinds == kinds


def test_a_copy_reads_what_another_warp_writes() -> None:
    source = """k(float* out, float* tmp) {
        __shared__ float As[64];
        tmp[threadIdx.x] = 1;
        BETWEEN
        unsigned to = __cvta_generic_to_shared(As + threadIdx.x);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;"
            :: "r"(to), "l"(tmp + (threadIdx.x ^ 32)) : "memory");
        out[threadIdx.x] = As[threadIdx.x];
    }"""
    assert not run(source.replace("BETWEEN", "__syncthreads();"), ARRAYS).findings
    found = run(source.replace("BETWEEN", ""), ARRAYS).findings
    assert {each.kind for each in found} == {"read after write", "write after read"}
    assert not any("copies" in each.message for each in found)


ORDER = """k(unsigned* out) {
    for (int turn = 0; turn < 2; ++turn) {
        unsigned* row = out + 32 * blockIdx.x + 16 * turn;
        if (threadIdx.x % 32 == 0) row[threadIdx.x / 32 + 8] = atomicAdd(row, 1u);
        __syncthreads();
    }
}"""


def test_a_seed_shuffles_warps() -> None:
    def turns(seed: int, threads: int = 1, *, sanitize: bool = True) -> list[list[int]]:
        outcome = run(
            ORDER,
            {"out": np.zeros(96, np.uint32)},
            grid=(3, 1, 1),
            block=(256, 1, 1),
            threads=threads,
            warp_seed=seed,
            sanitize=sanitize,
        )
        assert not outcome.findings
        return outcome.arrays["out"].view(np.uint32).reshape(6, 16)[:, 8:].tolist()

    assert turns(0) == [list(range(8))] * 6
    shuffled = turns(1)
    assert all(sorted(row) == list(range(8)) for row in shuffled)
    assert len({tuple(row) for row in shuffled}) == 6
    assert turns(1, threads=2) == turns(1, sanitize=False) == shuffled != turns(2)


def test_results_and_counts_do_not_hang_on_the_seed() -> None:
    source = EXCHANGE.replace("BETWEEN", "__syncthreads();")
    plain, shuffled = (
        run(source, ARRAYS, block=(128, 1, 1), warp_seed=seed, sanitize=False) for seed in (0, 9)
    )
    assert (plain.arrays["out"] == shuffled.arrays["out"]).all()
    assert (plain.execution.tally.executed == shuffled.execution.tally.executed).all()
    assert (plain.execution.tally.sectors == shuffled.execution.tally.sectors).all()


def test_a_warp_that_waits_for_a_flag_gives_way_soon() -> None:
    """Each poll of the flag is tracked in Python."""
    source = """k(float* out) {
        __shared__ float part[32];
        __shared__ volatile int flag;
        if (threadIdx.x == 0) flag = 0;
        __syncthreads();
        if (threadIdx.x >= 32) {
            part[threadIdx.x - 32] = 1;
            __syncwarp();
            __threadfence_block();
            if (threadIdx.x == 32) flag = 1;
        } else {
            while (flag == 0);
            __threadfence_block();
            __syncwarp();
            out[blockIdx.x * 32 + threadIdx.x] = part[threadIdx.x];
        }
    }"""
    outcome = run(source, grid=(2, 1, 1))
    assert not outcome.findings
    assert outcome.execution.tally.executed.sum() < 100_000
