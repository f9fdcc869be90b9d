"""racecheck: a thread that observes a flag by a relaxed load, and acquires at another address.

By PTX's memory model an access that acquires or releases does so at its own address; only a fence
does at all of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from flag_kernels import run as reverse
from sanitizing import run

_BETWEEN_BLOCKS = """k(int* data, int* flag, int* other, int* out) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    data[t] = t;
    __syncthreads();
    if (t == 0) { WRITER }
  } else {
    if (t == 0) { READER }
    __syncthreads();
    out[t] = data[63 - t];
  }
}"""
# The same by two warps of a block, which have their flags in global or in shared memory.
_BETWEEN_WARPS = """k(int* data, int* flag, int* other, int* out) {
  const int t = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    data[t] = t;
    __syncwarp();
    if (t == 0) { WRITER }
  } else {
    if (t == 0) { READER }
    __syncwarp();
    out[t] = data[31 - t];
  }
}"""
_IN_SHARED_MEMORY = (
    _BETWEEN_WARPS.replace("int* data, int* flag, int* other, ", "")
    .replace(
        "  const int t",
        "  __shared__ int data[32], flag[1], other[1];\n"
        "  if (threadIdx.x == 0) flag[0] = other[0] = 0;\n  __syncthreads();\n  const int t",
    )
    .replace("read(flag", "read(&flag")
)
_WHERE = {
    "between blocks": _BETWEEN_BLOCKS,
    "between warps": _BETWEEN_WARPS,
    "in shared memory": _IN_SHARED_MEMORY,
}
_ASM = 'asm volatile("{}" {} : "memory");'


def _load(order: str, place: str, value: str = "v") -> str:
    return _ASM.format(f"ld.{order}.gpu.u32 %0, [%1];", f': "=r"({value}) : "l"({place})')


def _store(order: str, place: str) -> str:
    return _ASM.format(f"st.{order}.gpu.u32 [%0], 1;", f':: "l"({place})')


def _add(order: str, place: str, value: str = "v", more: int = 1) -> str:
    form = f"atom.{order}.gpu.add.u32 %0, [%1], {more};"
    return _ASM.format(form, f': "=r"({value}) : "l"({place})')


def _until(look: str) -> str:
    return f"int v; do {{ {look} }} while (v == 0);"


_FENCE, _ACQ_REL = "__threadfence();", 'asm volatile("fence.acq_rel.gpu;" ::: "memory");'
_SET, _RELEASE = f"{_FENCE} {_store('relaxed', 'flag')}", _store("release", "flag")
_POLL, _VOLATILE = _until(_load("relaxed", "flag")), "while (*(volatile int*)flag == 0) {}"
_ELSEWHERE = "int w; " + _load("acquire", "other", "w")
# What the writer and the reader do, and whether the data is announced.
WAYS = {
    "a fence": (_SET, f"{_POLL} {_FENCE}", True),
    "a fence after a volatile load": (_SET, f"{_VOLATILE} {_ACQ_REL}", True),
    "an acquire": (_SET, _until(_load("acquire", "flag")), True),
    "an acquire of the flag after a relaxed loop": (
        _RELEASE, f"{_POLL} {_load('acquire', 'flag')}", True),
    "an atomic that acquires the flag": (
        _RELEASE, f"{_POLL} int w; {_add('acquire', 'flag', 'w', 0)}", True),
    "an acquire elsewhere": (_SET, f"{_POLL} {_ELSEWHERE}", False),
    "an acquire elsewhere after a volatile load": (_RELEASE, f"{_VOLATILE} {_ELSEWHERE}", False),
    "an atomic elsewhere": (_SET, f"{_POLL} int w; {_add('acq_rel', 'other', 'w')}", False),
    "an acquire elsewhere before": (_SET, f"{_ELSEWHERE} {_POLL}", False),
    "a fence besides": (_SET, f"{_POLL} {_ELSEWHERE} {_ACQ_REL}", True),
    "a release there by the writer": (
        f"{_store('release', 'other')} {_store('relaxed', 'flag')}",
        f"{_POLL} int w; do {{ {_load('acquire', 'other', 'w')} }} while (w == 0);", True),
    "atomics of both there": (
        f"int v; {_add('acq_rel', 'other')} {_store('relaxed', 'flag')}",
        f"{_POLL} int w; {_add('acq_rel', 'other', 'w')}", True),
    "a release elsewhere": (
        f"{_store('release', 'other')} {_store('relaxed', 'flag')}", f"{_POLL} {_FENCE}", False),
    "an acquire elsewhere by the writer": (
        f"{_ELSEWHERE} {_store('relaxed', 'flag')}", f"{_POLL} {_FENCE}", False),
    "a release and a store after it": (
        f"{_RELEASE} {_store('relaxed', 'flag')}", _until(_load("acquire", "flag")), True),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("where", _WHERE)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sample
def test_data_announced_by_a_flag(way: str, where: str, seed: int) -> None:
    writer, reader, sound = WAYS[way]
    source, count = _WHERE[where].replace("WRITER", writer).replace("READER", reader), 64
    blocks = 2 if where == "between blocks" else 1
    names = ("out",) if where == "in shared memory" else ("data", "flag", "other", "out")
    arguments = {each: np.zeros(count, np.int32) for each in names}
    found = run(
        source, arguments, grid=(blocks, 1, 1), at_once=2, arch="sm_90", warp_seed=seed
    )  # fmt: skip
    kinds = {("racecheck", "read after write")}
    assert found.kinds == (set() if sound else kinds), found.findings
    for each in found.findings if "elsewhere" in way else ():
        assert "an access that acquires or releases does so for its own address" in each.message


def test_the_flag_is_named_and_not_the_atomic_that_observes_another_counter() -> None:
    # Both blocks count elsewhere, so that the reader observes the writer there too, too early.
    count = "int w; " + _add("acq_rel", "other", "w")
    source = _BETWEEN_BLOCKS.replace("data[t] = t;", f"if (t == 0) {{ {count} }} data[t] = t;")
    source = source.replace("WRITER", _SET).replace("READER", f"{_POLL} {count}")
    arguments = {each: np.zeros(64, np.int32) for each in ("data", "flag", "other", "out")}
    found = run(source, arguments, grid=(2, 1, 1), at_once=2, arch="sm_90").only
    assert "between this and the relaxed load that signals the other" in found.message


# These reverse the numbers of A, by the atomics of CUDA's library.
_LIBRARY = """
#include <cuda/atomic>
using Flag = cuda::atomic_ref<int, cuda::thread_scope_device>;
__device__ int parts[128], flag, count;
extern "C" __global__ void k(const int* a, int* c) {
  const int t = threadIdx.x, i = 64 * blockIdx.x + t;
  parts[i] = a[i];
  __syncthreads();
  if (t == 0) { BARRIER }
  __syncthreads();
  c[i] = parts[127 - i];
}
"""
_ADD = "const int old = Flag(count).fetch_add(1, cuda::memory_order_{});"
_LOOK = "while (Flag(count).load(cuda::memory_order_{}) / 2 == old / 2) {{}}"
_FENCE_ALL = "cuda::atomic_thread_fence(cuda::memory_order_{}, cuda::thread_scope_device);"
BARRIERS = {
    "acquire and release": (_ADD.format("release") + _LOOK.format("acquire"), True),
    "sequentially consistent": (_ADD.format("seq_cst") + _LOOK.format("seq_cst"), True),
    "fences": (
        _FENCE_ALL.format("release") + _ADD.format("relaxed") + _LOOK.format("relaxed")
        + _FENCE_ALL.format("acquire"), True),
    "a relaxed loop": (_ADD.format("acq_rel") + _LOOK.format("relaxed"), False),
    "an acquire elsewhere": (
        _ADD.format("acq_rel") + _LOOK.format("relaxed")
        + "Flag(flag).load(cuda::memory_order_acquire);", False),
    "an acquire there after the loop": (
        _ADD.format("acq_rel") + _LOOK.format("relaxed")
        + "Flag(count).load(cuda::memory_order_acquire);", True),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", BARRIERS)
@pytest.mark.sample
def test_barriers_of_all_blocks(name: str, seed: int) -> None:
    barrier, sound = BARRIERS[name]
    execution, found, a = reverse(_LIBRARY.replace("BARRIER", barrier), seed=seed)
    kinds = {each.kind for each in execution.findings}
    assert kinds == (set() if sound else {"read after write"}), execution.findings
    assert found.tolist() == a[::-1].tolist()
