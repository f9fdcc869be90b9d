"""Flags in shared memory that others may read before the first write: found whatever the order."""

from __future__ import annotations

import pytest
from sanitizing import run

_KERNEL = """
k(float* out) {
  __shared__ float data[32]; __shared__ int flag;
  const int w = threadIdx.x / 32, t = threadIdx.x % 32;
  BODY
}
"""
_FLAG = "*(volatile int*)&flag"
_HAND_OVER = (
    f"if (w == 0) {{ data[t] = t; __threadfence_block(); __syncwarp(); if (t == 0) {_FLAG} = 1; }}"
    f"else {{ if (t == 0) while ({_FLAG} == 0) {{}} __syncwarp(); __threadfence_block();"
    "out[t] = data[31 - t]; }"
)
_ONLY_WAITS = (
    f"if (w == 0) {{ if (t == 0) {_FLAG} = 1; }}"
    f"else {{ if (t == 0) while ({_FLAG} == 0) {{}} out[t] = t; }}"
)
_WAIT = f"{{ if (t == 0) while ({_FLAG} == 0) {{}} __threadfence_block(); }}"
_CLEAR = f"if (threadIdx.x == 0) {_FLAG} = 0;"
_RELAXED = 'if (threadIdx.x == 0) asm volatile("st.relaxed.cta.u32 [%0], 0;" :: "l"(&flag));'
_COUNT = "if (t == 0) atomicAdd(&flag, 1); __syncthreads(); out[threadIdx.x] = flag;"
_EXCHANGE = "if (threadIdx.x == 0) atomicExch(&flag, 0);"
_PART = 'asm volatile("bar.sync 1, 64;" ::: "memory");'
_FOUND = [
    {("initcheck", "uninitialized flag")},
    {("initcheck", "uninitialized flag"), ("initcheck", "uninitialized")},
]
# The body, and whether the first write may come too late.
BODIES = {
    "a volatile store": (f"{_CLEAR} {_HAND_OVER}", True),
    "an ordinary store": (f"if (threadIdx.x == 0) flag = 0; {_HAND_OVER}", True),
    "a relaxed store": (f"{_RELAXED} {_HAND_OVER}", True),
    "nothing but the flag": (_HAND_OVER, True),
    "no fences": (f"{_CLEAR} {_ONLY_WAITS}", True),
    "a counter": (f"{_EXCHANGE} __threadfence_block(); {_COUNT}", True),
    "a counter without fences": (f"{_EXCHANGE} {_COUNT}", True),
    "a barrier": (f"{_CLEAR} __syncthreads(); {_HAND_OVER}", False),
    "a barrier that counts": (f"{_CLEAR} {_PART} {_ONLY_WAITS}", False),
    "a barrier, no fences": (f"{_CLEAR} __syncthreads(); {_ONLY_WAITS}", False),
    "a counter after a barrier": (f"{_EXCHANGE} __syncthreads(); {_COUNT}", False),
    "cleared again by the writer": (
        f"if (threadIdx.x == 0) flag = 0; __syncthreads(); {_CLEAR} {_HAND_OVER}", False),
    "all write the same, a barrier": (f"{_FLAG} = 0; __syncthreads(); {_HAND_OVER}", False),
    "all exchange the same, a barrier": (
        f"atomicExch(&flag, 0); __syncthreads(); {_HAND_OVER}", False),
    "all exchange the same, a barrier, no fences": (
        f"atomicExch(&flag, 0); __syncthreads(); {_ONLY_WAITS}", False),
    "both clear it, and one sets it": (
        f"if (t == 0) {_FLAG} = 0; if (threadIdx.x == 32) {_FLAG} = 1; __syncthreads();"
        f"if (w == 0) {_WAIT}", True),
    "both clear it, and the first one sets it": (
        "__shared__ volatile int other; if (threadIdx.x == 0) other = 0; __syncthreads();"
        f"if (threadIdx.x == 0) {{ {_FLAG} = 0; while (other == 0) {{}} {_FLAG} = 1; }}"
        f"if (threadIdx.x == 32) {{ {_FLAG} = 0; other = 1; }} __syncthreads();"
        f"if (w == 1) {_WAIT}", True),
    "all write the same, none waits": (
        f"{_FLAG} = 0; __syncthreads(); if (t > w) {_FLAG} = 1; __threadfence_block();"
        "__syncthreads(); out[threadIdx.x] = flag;", False),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.sample(3)
def test_first_writes_of_flags(name: str) -> None:
    body, too_late = BODIES[name]
    for seed in (0, 1):
        found = run(_KERNEL.replace("BODY", body), arch="sm_90", warp_seed=seed, max_steps=10**6)
        # One who updates it before the first write has read what was there.
        assert bool(found.kinds & _FOUND[seed]) is too_late, found.findings
        if not too_late or seed == 0:
            assert len(found.findings) == too_late, found.findings


def test_a_write_that_may_be_lost() -> None:
    """The thread that waits clears the flag, which the other one may have set before that."""
    body = f"if (threadIdx.x == 32) {_FLAG} = 0;\n{_HAND_OVER}"
    (found,) = run(
        _KERNEL.replace("BODY", body), arch="sm_90", warp_seed=1, max_steps=10**6
    ).findings
    assert found.message == (
        "uninitialized flag: thread (0, 0, 0) of block (0, 0, 0) at kernel.cu:5 writes byte 0 of "
        "'flag', which thread (32, 0, 0) at kernel.cu:4 writes for the first time, with no "
        "barrier, and no flag that one releases (by a fence and a write) and the other acquires "
        "(by a read and a fence), between: what it writes may be overwritten, and those who wait "
        "for it wait on"
    )
