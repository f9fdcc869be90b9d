"""Rules of warp-wide instructions: shuffles, masks, partial barriers, read-only loads."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import Outcome, by_oracle, run

ARRAYS = {"out": np.zeros(64, np.float32), "in": np.arange(64, dtype=np.float32)}


def found_in(source: str, threads: int = 32) -> Outcome:
    """The engine's findings in a kernel without races; the oracle must find the same."""
    outcome = run(source, ARRAYS, block=(threads, 1, 1))
    by_both = [
        sorted(each.message for each in findings)
        for findings in (outcome.findings, by_oracle(source, ARRAYS, block=(threads, 1, 1)))
    ]
    assert by_both[0] == by_both[1]
    return outcome


SUM = """k(float* out, const float* in) {
    float sum = in[threadIdx.x];
    if (threadIdx.x < 16)
        for (int step = FIRST; step; step /= 2)
            sum += __shfl_down_sync(0xFFFF, sum, step);
    if (threadIdx.x == 0) out[0] = sum;
}"""


def test_shuffle_from_a_lane_that_is_elsewhere() -> None:
    found = found_in(SUM.replace("FIRST", "16")).only
    assert (found.check, found.kind) == ("synccheck", "absent lane")
    assert (found.here.line, found.other and found.other.line) == (5, 6)
    assert "thread (0, 0, 0) of block (0, 0, 0) takes the value of lane 16" in found.message
    # Lanes 8 to 15 read from absent ones here too, but nothing uses what they get.
    outcome = found_in(SUM.replace("FIRST", "8"))
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[0] == sum(range(16))


TOGETHER = """k(float* out, const float* in) {
    float sum = in[threadIdx.x];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(MASK, sum, step);
    out[threadIdx.x] = sum;
}"""


def test_shuffle_in_a_block_that_does_not_fill_its_warp() -> None:
    source = TOGETHER.replace("MASK", "__activemask()")
    assert found_in(source, 24).only.kind == "absent lane"
    assert not found_in(source).findings


def test_shuffle_from_a_lane_that_has_exited() -> None:
    source = """k(float* out, const float* in) {
        if (threadIdx.x >= LEFT) return;
        out[threadIdx.x] = __shfl_down_sync(~0u, in[threadIdx.x], 1);
    }"""
    found = found_in(source.replace("LEFT", "30")).only
    assert "thread (29, 0, 0) of block (0, 0, 0) takes the value of lane 30" in found.message
    # The last lane gets its own value, as the next one is past the end of the warp.
    assert not found_in(source.replace("LEFT", "32")).findings


def test_shuffle_from_a_lane_that_the_mask_does_not_name() -> None:
    source = """k(float* out, const float* in) {
        unsigned group = threadIdx.x < 16 ? 0xFFFFu : 0xFFFF0000u;
        out[threadIdx.x] = __shfl_sync(group, in[threadIdx.x], 3 WIDTH);
    }"""
    found = found_in(source.replace("WIDTH", "")).only
    assert found.here.thread == (16, 0, 0)
    assert "the value of lane 3 of its warp 0" in found.message
    assert not found_in(source.replace("WIDTH", ", 16")).findings


EXCHANGE = """k(float* out, const float* in) {
    __shared__ float values[32];
    unsigned lane = threadIdx.x;
    values[lane] = in[lane];
    SYNC
    out[lane] = values[lane ^ DISTANCE];
}"""
HALVES = "__syncwarp(lane < 16 ? 0xFFFFu : 0xFFFF0000u);"
PAIRS = "__syncwarp(1u << lane | 1u << (lane ^ 1));"
OTHER_PAIRS = "__syncwarp(1u << lane | 1u << (lane ^ 2));"


@pytest.mark.parametrize(
    ("sync", "distance", "ordered"),
    [
        ("__syncwarp();", 16, True),
        (HALVES, 8, True),
        (HALVES, 16, False),
        ("if (lane < 16) __syncwarp(0xFFFF); else __syncwarp(0xFFFF0000);", 8, True),
        ("if (lane < 16) __syncwarp(0xFFFF);", 8, False),
        # Order is transitive through barriers.
        (PAIRS, 1, True),
        (PAIRS, 3, False),
        (PAIRS + OTHER_PAIRS, 3, True),
        (PAIRS + OTHER_PAIRS, 4, False),
        (PAIRS + "__syncwarp();", 16, True),
    ],
)
@pytest.mark.sample(2)
def test_barriers_order_the_lanes_that_they_name(sync: str, distance: int, ordered: bool) -> None:
    source = EXCHANGE.replace("SYNC", sync).replace("DISTANCE", str(distance))
    outcome = run(source, ARRAYS, block=(32, 1, 1))
    assert bool(outcome.findings) != ordered
    assert all((each.check, each.kind) == ("racecheck", "read after write")
               for each in outcome.findings)  # fmt: skip


def test_an_exited_lane_need_not_be_named() -> None:
    source = EXCHANGE.replace("SYNC", "if (lane >= 16) return; __syncwarp(0xFFFF);")
    assert not run(source.replace("DISTANCE", "8"), ARRAYS, block=(32, 1, 1)).findings


READ_ONLY = """k(float* out, const float* in) {
    out[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x + 32] = LOAD;
}"""


def test_read_only_loads_of_memory_that_the_kernel_writes() -> None:
    found = run(READ_ONLY.replace("LOAD", "__ldg(out + 31 - threadIdx.x)"), ARRAYS,
                block=(32, 1, 1)).only  # fmt: skip
    assert (found.check, found.kind) == ("racecheck", "write to read-only memory")
    assert (found.here.line, found.other and found.other.line) == (4, 2)
    assert (found.array, found.offset, found.count) == ("out", 124, 32)
    for load in ("out[31 - threadIdx.x]", "__ldg(in + threadIdx.x)"):
        assert not run(READ_ONLY.replace("LOAD", load), ARRAYS, block=(32, 1, 1)).findings


def test_read_only_loads_of_what_another_block_writes() -> None:
    """In either order; other addresses in the same array do not count."""
    source = """k(float* out, const float* in) {
        if (blockIdx.x == 0) out[threadIdx.x] = __ldg(out + 32 + threadIdx.x);
        else out[threadIdx.x + 32 DISTANCE] = 2;
    }"""
    arrays = {**ARRAYS, "out": np.zeros(128, np.float32)}
    outcome = run(source.replace("DISTANCE", ""), arrays, block=(32, 1, 1), grid=(2, 1, 1))
    assert ("racecheck", "write to read-only memory") in outcome.kinds
    twin = run(source.replace("DISTANCE", "+ 32"), arrays, block=(32, 1, 1), grid=(2, 1, 1))
    assert not twin.findings
