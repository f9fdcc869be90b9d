"""Warps of one block hand data over in shared memory by flags there."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

# Warp 0 hands 32 numbers to warp 1.
_KERNEL = """
k(float* out) {
  __shared__ float data[32]; __shared__ int flag;
  const int w = threadIdx.x / 32, t = threadIdx.x % 32;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (w == WRITER) {
    data[t] = t;
    RELEASE
  } else {
    ACQUIRE
    out[t] = data[31 - t];
  }
}
"""
_FENCE, _STEP = "__threadfence_block();", "__syncwarp();"
_SET = "if (t == 0) *(volatile int*)&flag = 1;"
_POLL = "if (t == 0) while (*(volatile int*)&flag == 0) {}"
_GENERIC_SET = 'if (t == 0) asm volatile("st.ORDER.cta.u32 [%0], 1;" :: "l"(&flag) : "memory");'
_GENERIC_POLL = (
    "if (t == 0) { int v; do "
    'asm volatile("ld.ORDER.cta.u32 %0, [%1];" : "=r"(v) : "l"(&flag) : "memory"); while (!v); }'
)
_SOUND = (f"{_FENCE} {_STEP} {_SET}", f"{_POLL} {_STEP} {_FENCE}")
_GENERIC = (
    f"{_STEP} {_GENERIC_SET.replace('ORDER', 'release')}",
    f"{_GENERIC_POLL.replace('ORDER', 'acquire')} {_STEP}",
)
_RACE, _LANES = {("racecheck", "read after write")}, {("racecheck", "lanes not in step")}
WAYS = {
    "sound": (*_SOUND, set()),
    "fence after the step": (f"{_STEP} {_FENCE} {_SET}", _SOUND[1], set()),
    "fence by the polling lane": (_SOUND[0], f"if (t == 0) {{ {_POLL} {_FENCE} }} {_STEP}", set()),
    "release and acquire": (*_GENERIC, set()),
    "an atomic": (f"{_FENCE} {_STEP} if (t == 0) atomicExch(&flag, 1);", _SOUND[1], set()),
    "no fence of the writer": (f"{_STEP} {_SET}", _SOUND[1], _RACE),
    "no fence of the reader": (_SOUND[0], f"{_POLL} {_STEP}", _RACE),
    "relaxed store": (f"{_STEP} {_GENERIC_SET.replace('ORDER', 'relaxed')}", _GENERIC[1], _RACE),
    "relaxed load": (_GENERIC[0], f"{_GENERIC_POLL.replace('ORDER', 'relaxed')} {_STEP}", _RACE),
    "nobody waits": (_SOUND[0], _FENCE, _RACE),
    "lanes that only fence": (f"{_FENCE} {_SET}", _SOUND[1], _LANES),
    "one lane that does both": (f"if (t == 0) {{ {_FENCE} {_SET} }}", _SOUND[1], _LANES),
    "a release by one lane": (_GENERIC[0].replace(_STEP, ""), _GENERIC[1], _LANES),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_data_handed_over(way: str) -> None:
    release, acquire, expected = WAYS[way]
    source = _KERNEL.replace("RELEASE", release).replace("ACQUIRE", acquire)
    outcome = run(source.replace("WRITER", "0"), arch="sm_90")
    assert outcome.kinds == expected, outcome.findings
    assert outcome.arrays["out"].view(np.float32)[:32].tolist() == [*range(31, -1, -1)]
    for each in outcome.findings:
        assert "which thread (" in each.message
        assert each.here is not None
        assert each.other is not None
        missing = "no flag that one releases (by a fence and a write) and the other acquires"
        apart = "only the write to a flag by thread (0, 0, 0)"
        assert (missing if expected == _RACE else apart) in each.message


def test_a_warp_that_polls_first() -> None:
    release, acquire, _ = WAYS["sound"]
    source = _KERNEL.replace("RELEASE", release).replace("ACQUIRE", acquire)
    outcome = run(source.replace("WRITER", "1"), arch="sm_90")
    assert not outcome.findings


def test_two_rounds_after_one_that_was_not_in_step() -> None:
    # What warp 0 hands over by the first flag too early, it hands over by the second in order.
    release = f"{_FENCE} {_SET} {_STEP} {_FENCE} if (t == 0) *(volatile int*)&flag = 2;"
    acquire = f"if (t == 0) while (*(volatile int*)&flag != 2) {{}} {_STEP} {_FENCE}"
    source = _KERNEL.replace("RELEASE", release).replace("ACQUIRE", acquire)
    assert not run(source.replace("WRITER", "0"), arch="sm_90").findings


# A lock of each thread: lanes of one warp hand data over to each other.
_LOCK = """
k(float* out) {
  __shared__ float sum; __shared__ int lock;
  if (threadIdx.x == 0) { sum = 0; lock = 0; }
  __syncthreads();
  for (bool done = false; !done;)
    if (atomicCAS(&lock, 0, 1) == 0) {
      __threadfence_block();
      *(volatile float*)&sum += threadIdx.x;
      __threadfence_block();
      atomicExch(&lock, 0);
      done = true;
    }
  __syncthreads();
  out[threadIdx.x] = sum;
}
"""


def test_a_lock_that_each_thread_takes() -> None:
    outcome = run(_LOCK, arch="sm_90")
    assert not outcome.findings
    assert (outcome.arrays["out"].view(np.float32) == 64 * 63 / 2).all()


# Lanes of one warp meet at a counter, and at a flag of one of them.
_MEET = """
k(float* out) {
  __shared__ int count; __shared__ volatile int flag;
  if (threadIdx.x == 0) { count = 0; flag = 0; }
  __syncthreads();
  atomicAdd(&count, 1);
  int seen;
  do asm volatile("ld.acquire.cta.b32 %0, [%1];" : "=r"(seen) : "l"(&count) : "memory");
  while (seen < 64);
  while (*(volatile int*)&count < 64) {}
  if (threadIdx.x == 0) flag = 1;
  while (flag == 0) {}
  out[threadIdx.x] = seen;
}
"""


def test_lanes_of_one_warp_meet_at_flags() -> None:
    outcome = run(_MEET, arch="sm_90")
    assert not outcome.findings
    assert (outcome.arrays["out"].view(np.float32) == 64).all()


def test_volatile_stores_do_not_keep_lanes_in_step() -> None:
    source = """
k(float* out) {
  __shared__ volatile float sums[64];
  sums[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = sums[threadIdx.x ^ 1];
}
"""
    (found,) = run(source, arch="sm_90").findings
    assert "with no __syncwarp() or barrier between" in found.message
