"""Where one lane waits for a flag, the others of its warp need a `__syncwarp()` after it."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

_STORES = "part[t] = t; @FENCE@ __syncwarp(); if (t == 0) *flag = 1;"
_READS = "@WAIT@ out[t] = part[31 - t];"
_BLOCKS = f"""k(float* part, volatile int* flag, float* out) {{
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {{ {_STORES} }} else {{ {_READS} }}
}}"""
_WARPS = _BLOCKS.replace("blockIdx.x == 0", "threadIdx.x < 32").replace(
    "t = threadIdx.x;", "t = threadIdx.x % 32;"
)
_SHARED = f"""k(float* unused, int* none, float* out) {{
  __shared__ float part[32];
  __shared__ volatile int at;
  volatile int* flag = &at;
  const int t = threadIdx.x % 32;
  if (threadIdx.x == 0) at = 0;
  __syncthreads();
  if (threadIdx.x < 32) {{ {_STORES} }} else {{ {_READS} }}
}}"""
WHERE = {
    "blocks": (_BLOCKS, 2, 32, "__threadfence();"),
    "warps": (_WARPS, 1, 64, "__threadfence_block();"),
    "shared memory": (_SHARED, 1, 64, "__threadfence_block();"),
}
_POLL = "while (*flag == 0) {}"
WAITS = {
    "in step, then a fence": (f"if (t == 0) {_POLL} __syncwarp(); @FENCE@", True),
    "a fence, then in step": (f"if (t == 0) {{ {_POLL} @FENCE@ }} __syncwarp();", True),
    "after a shuffle": (f"if (t == 0) {_POLL} t + __shfl_sync(~0u, t, 0); @FENCE@", True),
    "each lane for itself": (f"if (t == 0) {_POLL} if (t) {_POLL} @FENCE@", True),
    "a fence": (f"if (t == 0) {_POLL} @FENCE@", False),
    "a fence of that lane": (f"if (t == 0) {{ {_POLL} @FENCE@ }}", False),
    "half the warp": (f"if (t < 16) {_POLL} @FENCE@", False),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("way", WAITS)
@pytest.mark.sample(5)
def test_one_lane_waits(where: str, way: str) -> None:
    (source, blocks, threads, fence), (wait, sound) = WHERE[where], WAITS[way]
    arrays = {"part": np.zeros(32, np.float32), "flag": np.zeros(1, np.int32)}
    arrays["out"] = np.zeros(32, np.float32)
    outcome = run(
        source.replace("@WAIT@", wait).replace("@FENCE@", fence),
        arrays,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        at_once=blocks,
    )
    assert outcome.kinds == (set() if sound else {("racecheck", "lanes not in step")})
    for found in outcome.findings:
        assert found.forgiven_by
        assert "another lane of this warp has waited for that" in found.message
        assert found.array == "part"
        first = 16 if way == "half the warp" else 1
        assert found.here.thread == (first + (threads - 32), 0, 0)
        assert found.other is not None
        assert found.other.thread == (31 - first, 0, 0)


@pytest.mark.parametrize(("who", "step", "sound"), [
    ("true", "", True), ("t == 0", "__syncwarp();", True), ("t == 0", "", False),
])  # fmt: skip
def test_one_lane_waits_at_an_mbarrier(who: str, step: str, sound: bool) -> None:
    source = """k(float* out) {
      __shared__ float part[32];
      __shared__ unsigned long long full;
      const unsigned at = __cvta_generic_to_shared(&full);
      const int t = threadIdx.x % 32;
      if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(at));
      __syncthreads();
      if (threadIdx.x < 32) {
        part[t] = t;
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");
      } else {
        if (WHO)
          asm volatile("{ .reg .pred p; A: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;"
            " @!p bra A; }" :: "r"(at) : "memory");
        STEP
        out[t] = part[31 - t];
      }
    }"""
    source = source.replace("WHO", who).replace("STEP", step)
    outcome = run(source, {"out": np.zeros(32, np.float32)}, arch="sm_90a")
    assert outcome.kinds == (set() if sound else {("racecheck", "lanes not in step")})


def test_a_buffer_that_is_filled_before_it_is_empty() -> None:
    source = """k(float* out) {
      __shared__ volatile int full, empty;
      __shared__ float buffer[32];
      const int t = threadIdx.x % 32;
      if (threadIdx.x == 0) full = empty = 0;
      __syncthreads();
      for (int i = 1; i <= 2; ++i) {
        if (threadIdx.x < 32) {
          if (t == 0) while (empty < i - 1) {}
          @STEP@
          __threadfence_block();
          buffer[t] = i;
          __threadfence_block();
          __syncwarp();
          if (t == 0) full = i;
        } else {
          while (full < i) {}
          __threadfence_block();
          out[i * 32 + t] = buffer[31 - t];
          __threadfence_block();
          __syncwarp();
          if (t == 0) empty = i;
        }
      }
    }"""
    arrays = {"out": np.zeros(96, np.float32)}
    assert not run(source.replace("@STEP@", "__syncwarp();"), arrays).findings
    found = run(source.replace("@STEP@", ""), arrays).only
    assert (found.kind, found.array) == ("lanes not in step", "buffer")
    assert "writes byte 4 of 'buffer'" in found.message
