"""racecheck: data that are stored by volatile or relaxed stores, and announced by a flag, need a
fence between the two, though such accesses do not race with each other."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

_FENCE, _BLOCK_FENCE = "__threadfence();", "__threadfence_block();"

# Each has a fence of the writer, @RELEASE@, and one of the reader, @ACQUIRE@.
_PARTS = """k(volatile float* data, int* flag, float* out) {
  const int t = threadIdx.x;
  if (blockIdx.x < 2) {
    data[blockIdx.x * 64 + t] = t;
    @RELEASE@
    __syncthreads();
    if (t == 0) atomicAdd(flag, 1);
  } else {
    if (t == 0) { while (*(volatile int*)flag < 2) {} @ACQUIRE@ }
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 2; ++i) sum += data[i * 64 + 63 - t];
    out[t] = sum;
  }
}"""
# As in NVIDIA's sample threadFenceReduction, the last block does without a second fence.
_LAST_BLOCK = """k(volatile float* data, unsigned* flag, float* out) {
  __shared__ bool last;
  const int t = threadIdx.x;
  if (t == 0) {
    data[blockIdx.x] = 1;
    @RELEASE@
    last = atomicInc(flag, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t < gridDim.x) out[t] = data[t];
}"""
_LOOK_BACK = """k(volatile float* data, volatile int* flag, float* out) {
  if (threadIdx.x) return;
  const int b = blockIdx.x;
  float before = 0;
  if (b) {
    int state;
    do state = flag[b - 1]; while (state == 0);
    @ACQUIRE@
    before = state * data[b - 1];
  }
  data[b] = before + 1;
  @RELEASE@
  flag[b] = 1;
  out[b] = before;
}"""
_LOCK = """k(volatile float* data, int* flag, float* out) {
  if (threadIdx.x) return;
  while (atomicCAS(flag, 0, 1)) {}
  @ACQUIRE@
  *data = *data + 1;
  @RELEASE@
  atomicExch(flag, 0);
}"""
_WARPS = """k(volatile float* data, volatile int* flag, float* out) {
  const int t = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    data[t] = t;
    @RELEASE@
    __syncwarp();
    if (t == 0) *flag = 1;
  } else {
    while (*flag == 0) {}
    @ACQUIRE@
    out[t] = data[31 - t];
  }
}"""
_BY_SHARED_FLAG = _WARPS.replace("volatile int* flag", "int* unused").replace(
    "const int t", "__shared__ volatile int at; volatile int* flag = &at; if (threadIdx.x == 0) "
    "at = 0; __syncthreads(); const int t",
)  # fmt: skip
KERNELS = {
    "parts": (_PARTS, 3, _FENCE),
    "last block": (_LAST_BLOCK, 3, _FENCE),
    "look-back": (_LOOK_BACK, 3, _FENCE),
    "lock": (_LOCK, 3, _FENCE),
    "warps": (_WARPS, 1, _BLOCK_FENCE),
    "warps, by a flag in shared memory": (_BY_SHARED_FLAG, 1, _BLOCK_FENCE),
}


def _kinds(source: str, blocks: int) -> list[str]:
    arrays = {"data": np.zeros(128, np.float32), "flag": np.zeros(64, np.int32)}
    arrays["out"] = np.zeros(64, np.float32)
    outcome = run(source, arrays, grid=(blocks, 1, 1), at_once=blocks)
    for each in outcome.findings:
        assert each.check == "racecheck"
        assert each.array == "data"
        assert each.other is not None
        assert source.splitlines()[each.other.line - 1].strip().startswith(("data[", "*data ="))
        assert "not followed by a __threadfence()" in each.message
    return [each.kind for each in outcome.findings]


@pytest.mark.parametrize("name", KERNELS)
def test_the_fence_of_the_writer_is_missing(name: str) -> None:
    source, blocks, fence = KERNELS[name]
    source = source.replace("@ACQUIRE@", fence)
    assert _kinds(source.replace("@RELEASE@", ""), blocks) == ["read after write"]
    assert not _kinds(source.replace("@RELEASE@", fence), blocks)


def test_without_any_fence() -> None:
    source = _PARTS.replace("@RELEASE@", "").replace("@ACQUIRE@", "")
    assert _kinds(source, 3) == ["read after write"]


def test_relaxed_accesses() -> None:
    source = """k(float* data, int* flag, float* out) {
      const int t = threadIdx.x;
      if (blockIdx.x == 0) {
        asm volatile("st.relaxed.gpu.f32 [%0], 0f3F800000;" :: "l"(data + t) : "memory");
        __syncthreads();
        if (t == 0) asm volatile("st.@HOW@.gpu.u32 [%0], 1;" :: "l"(flag) : "memory");
      } else {
        int seen;
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        while (!seen);
        asm volatile("ld.relaxed.gpu.f32 %0, [%1];" : "=f"(out[t]) : "l"(data + 63 - t));
      }
    }"""
    arrays = {"data": np.zeros(64, np.float32), "flag": np.zeros(1, np.int32)}
    arrays["out"] = np.zeros(64, np.float32)
    for how, kinds in (("release", set()), ("relaxed", {("racecheck", "read after write")})):
        outcome = run(source.replace("@HOW@", how), arrays, grid=(2, 1, 1), at_once=2)
        assert outcome.kinds == kinds


# Sound without a fence: the value says itself whether it is there, or it does not matter when it
# is seen.
SOUND = {
    "value and state in one word": """k(volatile unsigned long long* data, int* next, float* out) {
      if (threadIdx.x) return;
      const int b = atomicAdd(next, 1);
      unsigned long long seen = 0;
      if (b) while ((seen = data[b - 1]) >> 32 == 0) {}
      data[b] = 1ull << 32 | (unsigned)seen + 1;
      out[b] = (unsigned)seen;
    }""",
    "a hint to stop": """k(volatile int* data, int* next, float* out) {
      __shared__ int item, stops;
      while (true) {
        if (threadIdx.x == 0) { item = atomicAdd(next, 1); stops = *data; }
        __syncthreads();
        if (stops || item >= 9) break;
        out[item] = 1;
        if (item == 5 && threadIdx.x == 0) *data = 1;
        __syncthreads();
      }
    }""",
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_without_a_fence(name: str) -> None:
    arrays = {"data": np.zeros(64, np.int64), "next": np.zeros(1, np.int32)}
    arrays["out"] = np.zeros(64, np.float32)
    assert not run(SOUND[name], arrays, grid=(3, 1, 1), at_once=3).findings
