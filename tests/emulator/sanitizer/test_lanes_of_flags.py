"""What one lane signals for its warp by a flag, in global memory, needs a `__syncwarp()` before."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

# The first block, or warp, adds up what another one has stored.
_BLOCKS = """
k(float* out, float* part, int* flag) {
  const int w = WHO, t = threadIdx.x % 32;
  if (w) {
    part[t] = t;
    SIGNAL
  } else {
    if (t == 0) while (*(volatile int*)flag < 1) {}
    __threadfence();
    __syncwarp();
    out[t] = part[31 - t];
  }
}
"""
_BOTH, _STEP = "{ __threadfence(); atomicAdd(flag, 1); }", "__syncwarp();"
WAYS = {
    "in step": (f"{_STEP} if (t == 0) {_BOTH}", True),
    "in step after the fence": (
        f"__threadfence(); {_STEP} if (t == 0) atomicAdd(flag, 1);", True),
    "after a shuffle": (f"int one = __shfl_sync(~0u, t, 0); if (t == one) {_BOTH}", True),
    "after a step of half the warp": (
        f"{_STEP} if (t < 16) {{ __syncwarp(0xffff); if (t == 0) {_BOTH} }}", True),
    "each lane for itself": (_BOTH, True),
    "one lane": (f"if (t == 0) {_BOTH}", False),
    "one lane, after all have fenced": ("__threadfence(); if (t == 0) atomicAdd(flag, 1);", False),
    "a second flag, in step": (
        f"if (t == 0) {{ __threadfence(); atomicAdd(flag + 1, 1); }} {_STEP} if (t == 0) {_BOTH}",
        True),
    "stored again": (
        f"{_STEP} if (t == 0) {{ __threadfence(); atomicAdd(flag + 1, 1); }} part[t] = t; "
        f"if (t == 0) {_BOTH}", False),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_between_blocks(way: str) -> None:
    _signals(way, "blockIdx.x", grid=(2, 1, 1), block=(32, 1, 1))


@pytest.mark.parametrize("way", ["in step", "one lane"])
def test_within_a_block(way: str) -> None:
    _signals(way, "threadIdx.x / 32", grid=(1, 1, 1), block=(64, 1, 1))


def _signals(way: str, who: str, *, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    signal, sound = WAYS[way]
    count = "< 32)" if way == "each lane for itself" else "< 1)"
    source = _BLOCKS.replace("WHO", who).replace("SIGNAL", signal).replace("< 1)", count)
    arrays = {"out": np.zeros(32, np.float32), "part": np.zeros(32, np.float32)}
    flag = np.zeros(2, np.int32)
    outcome = run(
        source, {**arrays, "flag": flag}, grid=grid, block=block, at_once=2, unwritten=["part"]
    )
    assert outcome.arrays["out"].view(np.float32).tolist() == [*range(31, -1, -1)]
    assert outcome.kinds == (set() if sound else {("racecheck", "lanes not in step")})
    for each in outcome.findings:
        assert each.forgiven_by
        assert "no __syncwarp() before" in each.message


def test_a_missing_barrier_is_one_finding() -> None:
    # The lanes of the warp that signals are not in step either.
    source = """
    k(float* out, float* part, int* flag) {
      const int t = threadIdx.x;
      if (blockIdx.x) { part[t] = t; if (t == 0) { __threadfence(); atomicAdd(flag, 1); } }
      else {
        while (*(volatile int*)flag < 1) {}
        __threadfence();
        out[t] = part[63 - t];
      }
    }
    """
    arrays = {"out": np.zeros(64, np.float32), "part": np.zeros(64, np.float32)}
    flag = np.zeros(1, np.int32)
    found = run(source, {**arrays, "flag": flag}, grid=(2, 1, 1), at_once=2).findings
    assert {each.kind for each in found} <= {"read after write", "write after read"}
    assert found
