"""racecheck: blocks that wait for a flag by a relaxed loop, and then use nothing but atomics."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

_KERNEL = """k(unsigned* data, unsigned* flag, unsigned* out) {
  if (blockIdx.x == 0) {
    WRITER
  } else {
    READER
  }
}"""
_FENCE = "__threadfence();"
_SET = 'asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");'
_POLL = (
    'unsigned v; do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) '
    ': "memory"); while (v == 0);'
)
_ADD, _LOOK = "atomicAdd(data, 5);", "out[0] = atomicAdd(data, 0);"
_COUNT, _EMPTY = "atomicAdd(data, 1);", "atomicExch(data, 7);"
_READ = {("racecheck", "read after write")}
# What the writer and the reader do besides their flag, and what is found.
WAYS = {
    "an atomic that looks": (_ADD, _LOOK, _READ),
    "one after a fence of its own": (_ADD, f"{_FENCE} {_LOOK}", _READ),
    "one after a fence of the writer": (f"{_ADD} {_FENCE}", _LOOK, set()),
    "a volatile store": ("*(volatile unsigned*)data = 5;", _LOOK, _READ),
    "atomics that commute": (_ADD, _COUNT, set()),
    "one whose value is tested": (_ADD, "if (atomicAdd(data, 0) > 9) __trap();", set()),
    "tickets": ("out[1] = atomicAdd(data, 1);", "out[2] = atomicAdd(data, 1);", set()),
    "an ordinary store": (f"*data = 5; {_FENCE}", _COUNT, set()),
    "one without a fence": ("*data = 5;", _COUNT, {("racecheck", "write after write")}),
    "an ordinary load": (f"out[1] = *data; {_FENCE}", _EMPTY, set()),
    "a load without a fence": ("out[1] = *data;", _EMPTY, {("racecheck", "write after read")}),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.sample(3)
def test_atomics_after_a_relaxed_loop(name: str) -> None:
    writer, reader, expected = WAYS[name]
    source = _KERNEL.replace("WRITER", f"{writer} {_SET}").replace("READER", f"{_POLL} {reader}")
    arguments = {each: np.zeros(4, np.uint32) for each in ("data", "flag", "out")}
    found = run(source, arguments, grid=(2, 1, 1), block=(1, 1, 1), arch="sm_90")
    assert found.kinds == expected, found.findings
    if expected:
        assert "__threadfence()" in found.only.message
        assert (" reads byte 0 of 'data'" in found.only.message) is (expected == _READ)
