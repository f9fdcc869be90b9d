"""synccheck: barriers and warp-wide instructions without the threads that they need."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import WORDS, run


def test_barrier_for_a_part_of_a_warp() -> None:
    source = """k(float* out) {
        if (threadIdx.x < 16)
            __syncthreads();
        out[threadIdx.x] = 1;
    }"""
    found = run(source, block=(32, 1, 1)).only
    assert (found.check, found.kind) == ("synccheck", "divergent barrier")
    assert (found.here.line, found.here.thread) == (3, (0, 0, 0))
    assert "without lanes 16-31 of its warp 0" in found.message


def test_a_poll_that_gives_up_by_a_trap_does_not_divide_a_warp() -> None:
    source = """k(float* out) {
        if (threadIdx.x == 0) {
            const long long start = clock64();
            while (*(volatile float*)(out + 32) != 0)
                if (clock64() - start > (1ll << 40)) __trap();
        }
        __syncthreads();
        out[threadIdx.x] = 1;
    }"""
    assert not run(source, block=(32, 1, 1)).findings


def test_warps_that_exit_without_a_barrier() -> None:
    """A barrier of the whole block waits for the threads that have not exited."""
    source = """k(float* out) {
        if (threadIdx.x < 32)
            __syncthreads();
        out[threadIdx.x] = 1;
    }"""
    assert not run(source).findings


def test_threads_that_return_before_a_barrier() -> None:
    source = """k(float* out) {
        if (threadIdx.x >= 41) return;
        __syncthreads();
        out[threadIdx.x] = 1;
    }"""
    outcome = run(source)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == [1.0] * 41 + [0.0] * 23


def test_barrier_after_lanes_of_a_warp_have_exited() -> None:
    source = """k(float* out) {
        asm volatile("{ .reg .pred p; setp.gt.u32 p, %0, 40; @p exit; }" :: "r"(threadIdx.x));
        __syncthreads();
        out[threadIdx.x] = 1;
    }"""
    outcome = run(source)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32).tolist() == [1.0] * 41 + [0.0] * 23


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("if (threadIdx.x < 32)\n__syncthreads();\n__syncthreads();", 3),
        ("if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();", 3),
        ("if (threadIdx.x < 32) __syncthreads(); else __syncthreads();", 2),
    ],
    ids=["skipped", "by branch", "in one line"],
)
def test_warps_that_wait_at_different_barriers(body: str, line: int) -> None:
    found = run(f"k(float* out) {{\n{body}\nout[threadIdx.x] = 1;\n}}").only
    assert (found.check, found.kind, found.here.line) == ("synccheck", "divergent barrier", line)
    assert "warp 0 of block (0, 0, 0) waits" in found.message
    assert "all threads of a block must reach the same barrier" in found.message


def test_barriers_of_an_unrolled_loop() -> None:
    """Copies of one statement are one barrier, even if warps pass it a different number of times
    and then exit."""
    source = """k(float* out) {
        int rounds = threadIdx.x < 32 ? 6 : 4;
        #pragma unroll 4
        for (int i = 0; i < rounds; ++i) {
            __syncthreads();
            out[threadIdx.x] += i;
        }
    }"""
    assert not run(source).findings


def test_a_block_that_does_not_fill_its_last_warp() -> None:
    source = "k(float* out) { __syncthreads(); out[threadIdx.x] = __shfl_sync(~0u, 1, 0); }"
    assert not run(source, block=(41, 1, 1)).findings


def test_deadlock_does_not_hold_other_blocks() -> None:
    source = """k(float* out, int n) {
        if (blockIdx.x == n) {
            if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
            else asm volatile("bar.sync 2, 64;");
        }
        out[blockIdx.x] = 1;
    }"""
    outcome = run(source, {"out": WORDS, "n": np.int32(1)}, grid=(3, 1, 1))
    found = outcome.only
    assert (found.check, found.kind, found.block) == ("synccheck", "deadlock", (1, 0, 0))
    assert (
        "warp 0 at kernel.cu:3 for barrier 1 (32 of 64 threads); "
        "warp 1 at kernel.cu:4 for barrier 2 (32 of 64 threads)"
    ) in found.message
    assert outcome.arrays["out"].view(np.float32)[:3].tolist() == [1, 0, 1]
    assert not run(source, {"out": WORDS, "n": np.int32(3)}, grid=(3, 1, 1)).findings


def test_endless_kernel() -> None:
    source = """k(volatile float* out) {
        while (out[0] == 0) {}
    }"""
    found = run(source, max_steps=2_000_000).only
    assert (found.check, found.kind, found.here.line) == ("synccheck", "endless", 2)
    assert not run(source, {"out": WORDS + 1}, max_steps=2_000_000).findings


@pytest.mark.parametrize(("threads", "valid"), [(64, True), (40, False), (128, False)])
def test_threads_that_a_barrier_waits_for(threads: int, valid: bool) -> None:
    source = """k(float* out, int n) {
        asm volatile("bar.sync 1, %0;" :: "r"(n));
        out[threadIdx.x] = 1;
    }"""
    outcome = run(source, {"out": WORDS, "n": np.int32(threads)})
    assert (("synccheck", "invalid thread count") in outcome.kinds) != valid
    assert bool(outcome.findings) != valid


def test_barrier_number() -> None:
    source = """k(float* out, int n) {
        asm volatile("bar.sync %0;" :: "r"(n));
        out[threadIdx.x] = 1;
    }"""
    assert run(source, {"out": WORDS, "n": np.int32(16)}).only.kind == "invalid barrier"
    assert not run(source, {"out": WORDS, "n": np.int32(15)}).findings


@pytest.mark.parametrize(
    "call",
    [
        "x = __shfl_xor_sync(MASK, x, 1);",
        "x = __ballot_sync(MASK, x > 3);",
        "x = __all_sync(MASK, x > 3);",
        "x = __match_any_sync(MASK, threadIdx.x);",
        "x = __reduce_add_sync(MASK, threadIdx.x);",
    ],
)
def test_members_that_do_not_participate(call: str) -> None:
    source = f"""k(float* out, unsigned some) {{
        float x = threadIdx.x;
        if (threadIdx.x % 32 < 16)
            {call}
        out[threadIdx.x] = x;
    }}"""
    found = run(source.replace("MASK", "~0u"), {"out": WORDS, "some": np.uint32(0)}).only
    assert (found.check, found.kind) == ("synccheck", "divergent warp instruction")
    assert (found.count, found.here.line) == (2, 4)
    assert "names lanes 16-31 of its warp 0, which do not participate" in found.message
    arguments = {"out": WORDS, "some": np.uint32(0xFFFF)}
    assert not run(source.replace("MASK", "some"), arguments).findings


def test_products_of_matrices_take_the_whole_warp() -> None:
    source = """k(double* out, unsigned lanes) {
        double x = threadIdx.x, y = 0;
        if (threadIdx.x % 32 < lanes)
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%2}, {%0, %1};"
                : "+d"(x), "+d"(y) : "d"(1.0));
        out[threadIdx.x] = x;
    }"""
    out = np.zeros(WORDS.size)
    found = run(source, {"out": out, "lanes": np.uint32(16)}).only
    assert (found.check, found.kind) == ("synccheck", "divergent warp instruction")
    assert "names lanes 16-31 of its warp 0, which do not participate" in found.message
    assert not run(source, {"out": out, "lanes": np.uint32(32)}).findings


def test_a_lane_outside_of_its_mask() -> None:
    source = """k(float* out) {
        out[threadIdx.x] = __shfl_sync(0xFFFF, float(threadIdx.x), 0);
    }"""
    found = run(source, block=(32, 1, 1)).only
    assert "participates while lanes 16-31 of its warp 0 are not in the mask" in found.message


def test_masks_of_groups() -> None:
    source = """k(float* out) {
        unsigned group = 0xFFu << threadIdx.x / 8 * 8;
        out[threadIdx.x] = __shfl_xor_sync(group, float(threadIdx.x), 1);
    }"""
    assert not run(source, block=(32, 1, 1)).findings


def test_lanes_may_arrive_at_different_lines() -> None:
    source = """k(float* out) {
        float x = 0;
        if (threadIdx.x % 32 < 16) { __syncwarp(); x = 1; } else { __syncwarp(); x = out[0]; }
        out[threadIdx.x + 64] = x;
    }"""
    assert not run(source, {"out": np.zeros(128, np.float32)}).findings


def test_lanes_that_wait_alone() -> None:
    source = """k(float* out) {
        if (threadIdx.x % 32 < 16) __syncwarp();
        out[threadIdx.x] = 1;
    }"""
    found = run(source).only
    assert (found.kind, found.count) == ("divergent warp instruction", 2)
