"""initcheck: exchanges, which read memory only if their result is used."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import by_oracle, run

OUT = {"out": np.zeros(64, np.float32), "other": np.zeros(64, np.float32)}
PTX = 'asm volatile("atom.global.exch.b32 {}, [%0], 7;" :: "l"(out + threadIdx.x) : "memory");'
SUNK = {
    "float": "atomicExch(out + threadIdx.x, 1.0f);",
    "int": "atomicExch((int*)out + threadIdx.x, 1);",
    "64 bits": "if (threadIdx.x < 32) atomicExch((unsigned long long*)out + threadIdx.x, 1ull);",
    "sink": PTX.format("_"),
    "only copied": 'asm volatile("{ .reg .b32 r, s; atom.global.exch.b32 r, [%0], 7; '
    'mov.b32 s, r; }" :: "l"(out + threadIdx.x) : "memory");',
}  # fmt: skip
USED = {
    "stored": "other[threadIdx.x] = atomicExch(out + threadIdx.x, 1.0f);",
    "stored after it was computed with": "other[threadIdx.x] = "
    "2 * atomicExch(out + threadIdx.x, 1.0f) + 1;",
    "decides": "if (atomicExch((int*)out + threadIdx.x, 1) == 3) other[0] = 1;",
    "an addition reads by itself": "atomicAdd(out + threadIdx.x, 1.0f);",
    "a compare-and-swap too": "atomicCAS((int*)out + threadIdx.x, 0, 1);",
}
HEAD = "k(float* out, float* other) {{ {} }}"


@pytest.mark.parametrize("name", SUNK)
def test_results_that_nothing_uses(name: str) -> None:
    source = HEAD.format(SUNK[name] + " __syncthreads(); other[threadIdx.x] = out[threadIdx.x];")
    assert not run(source, OUT, unwritten=["out"]).findings
    assert not by_oracle(source, OUT, unwritten=["out"])


@pytest.mark.parametrize("name", USED)
def test_results_that_are_used(name: str) -> None:
    source = HEAD.format(USED[name])
    found = run(source, OUT, unwritten=["out"]).only
    assert (found.check, found.kind, found.array) == ("initcheck", "uninitialized", "out")
    assert by_oracle(source, OUT, unwritten=["out"])


def test_what_is_not_exchanged_stays_unwritten() -> None:
    body = "if (threadIdx.x != 5) atomicExch(out + threadIdx.x, 1.0f); __syncthreads(); "
    source = HEAD.format(body + "other[threadIdx.x] = out[threadIdx.x];")
    found = run(source, OUT, unwritten=["out"]).only
    assert (found.check, found.offset) == ("initcheck", 20)


@pytest.mark.parametrize("use", ["", "other[0] = "])
def test_shared_memory(use: str) -> None:
    body = f"__shared__ float s[64]; {use}atomicExch(s + threadIdx.x, 1.0f); "
    source = HEAD.format(body + "other[threadIdx.x] = s[threadIdx.x];")
    found = run(source, OUT, block=(32, 1, 1)).findings
    assert {each.array for each in found if each.check == "initcheck"} == ({"s"} if use else set())
