"""Counters in global memory that a launch leaves set, which the next launch would count on from."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

# Two blocks take 4 tiles of 32 numbers one after another.
_SCHEDULER = """
k(float* out) {
  static unsigned next, done;
  __shared__ unsigned tile;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) tile = atomicAdd(&next, 1);
    __syncthreads();
    if (tile >= 4) break;
    out[32 * tile + threadIdx.x] = tile + 1;
  }
  if (threadIdx.x == 0) { END }
}
"""
_RESET = "if (tile == 4 + gridDim.x - 1) next = 0;"
# The last block is known by a counter, which may be set back too.
_LAST = "if (atomicAdd(&done, 1) == gridDim.x - 1) { next = 0; done = 0; }"
# What ends a block; the variable on which a later launch depends, and which launch that is.
ENDS = {
    "nothing": ("", "next", "second"),
    "set back by the last block": (_RESET, "", ""),
    "set to another number": (_RESET.replace("= 0", "= 1"), "next", "second"),
    "how many blocks have run": (f"{_RESET} atomicAdd(&done, 1);", "", ""),
    "which launch it is": (f"{_RESET} if (atomicAdd(&done, 1) > 1) out[0] = 7;", "done", "second"),
    "two counters set back": (_LAST, "", ""),
    # The second launch does not set `next` back, as `done` never is 1 in it.
    "one of two counters set back": (_LAST.replace("done = 0;", ""), "done", "third"),
}


@pytest.mark.parametrize("name", ENDS)
def test_later_launches(name: str) -> None:
    end, variable, launch = ENDS[name]
    outcome = run(
        _SCHEDULER.replace("END", end), {"out": np.zeros(128, np.float32)}, grid=(2, 1, 1),
        block=(32, 1, 1), explain=True,
    )  # fmt: skip
    assert (
        outcome.arrays["out"].view(np.float32).tolist() == np.arange(1.0, 5.0).repeat(32).tolist()
    )
    if not variable:
        assert not outcome.findings
        return
    assert (outcome.only.check, outcome.only.kind) == ("synccheck", "counter left set")
    assert outcome.only.array == variable
    assert f"and a {launch} launch gives another result" in outcome.only.message
    assert f"--constant {variable}=0" in outcome.only.message


def test_a_second_launch_after_the_host_has_set_the_counter() -> None:
    outcome = run(
        _SCHEDULER.replace("END", ""), {"out": np.zeros(128, np.float32)}, grid=(2, 1, 1),
        block=(32, 1, 1), explain=True, host_sets={"next": bytes(4)},
    )  # fmt: skip
    assert not outcome.findings


def test_a_second_launch_that_does_not_end() -> None:
    source = """k(float* out) {
        static unsigned gate;
        if (threadIdx.x == 0) {
            while (atomicAdd(&gate, 0) != 0);
            out[0] = 1;
            atomicExch(&gate, 1);
        }
    }"""
    found = run(source, explain=True, max_steps=10_000).only
    assert found.array == "gate"
    assert "a second launch does not end within 10,000 steps, and this one does" in found.message


def test_a_second_launch_that_is_stopped_proves_nothing() -> None:
    """It takes six times as long as the first one."""
    source = """k(float* out) {
        static int gate;
        if (blockIdx.x == 0) {
            int x = atomicAdd(&gate, 0);
            for (int i = x ? -150000 : 0; i < 30000; ++i) x = x * x + i;
            out[0] = x;
            __threadfence();
            atomicExch(&gate, 1);
        } else {
            while (atomicAdd(&gate, 0) == 0);
        }
    }"""
    stopped = run(source, grid=(2, 1, 1), block=(1, 1, 1), explain=True, max_steps=100_000)
    assert not stopped.findings
    assert "flag left set" in {
        each.kind
        for each in run(
            source, grid=(2, 1, 1), block=(1, 1, 1), explain=True, max_steps=600_000
        ).findings
    }


def test_flags_of_a_launch_that_is_stopped_are_not_left_set() -> None:
    source = """k(float* out) {
        static int gate;
        if (blockIdx.x == 0) {
            atomicExch(&gate, 1);
        } else {
            while (atomicAdd(&gate, 0) == 0);
            for (int i = 0; i < 1 << 30; ++i) out[0] = i;
            atomicExch(&gate, 0);
        }
    }"""
    assert run(source, grid=(2, 1, 1), max_steps=100_000).only.kind == "endless"


@pytest.mark.parametrize("reset", [False, True])
def test_semaphores(reset: bool) -> None:
    """The argument of that name is zero before each launch."""
    source = """k(float* out, unsigned* semaphores) {
        __shared__ bool last;
        atomicAdd(out + threadIdx.x, 1.0f);
        __syncthreads();
        if (threadIdx.x == 0) last = COUNT == gridDim.x - 1;
        __syncthreads();
        if (last && threadIdx.x == 0) out[63] = 0;
    }"""
    count = "atomicInc(semaphores + 1, gridDim.x - 1)" if reset else "atomicAdd(semaphores + 1, 1)"
    arguments = {"out": np.zeros(64, np.float32), "semaphores": np.zeros(3, np.uint32)}
    source = source.replace("COUNT", count)
    outcome = run(source, arguments, grid=(3, 1, 1), block=(32, 1, 1))
    assert outcome.arrays["semaphores"].view(np.uint32).tolist() == [0, 0 if reset else 3, 0]
    if reset:
        assert not outcome.findings
        return
    assert outcome.only.message == (
        "counter left set: byte 4 of 'semaphores', which threads write at kernel.cu:5, is 3 after "
        "the launch, and must be zero, as it was before: the next launch counts on from there"
    )
