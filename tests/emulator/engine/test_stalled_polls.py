"""Polls that can never end are a deadlock at once; whatever might end is none."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.codegen.layout import FINISHED
from gemmkit.emulator.launch import Execution
from gemmkit.emulator.machine.returns import Returns, _place
from gemmkit.errors import DeviceError
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

# The library's headers take a second to read.
_LIBRARY = "#include <cuda/atomic>\n"
_HELPERS = """
#define DEVICE __device__ __forceinline__
DEVICE int look(const int* p) { return *(const volatile int*)p; }
DEVICE void set(int* p, int x) { *(volatile int*)p = x; }
DEVICE unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
DEVICE bool complete(unsigned b) {
  int done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0;"
               " selp.s32 %0, 1, 0, p; }" : "=r"(done) : "r"(b) : "memory");
  return done;
}
DEVICE void wait(unsigned b) {
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
               " @!p bra WAIT; }" :: "r"(b) : "memory");
}
__device__ int flag, lock, flags[8];
"""
_KERNEL = """
extern "C" __global__ void k(int* out) {
  __shared__ alignas(8) unsigned long long bar;
  __shared__ int here[2];
  const int t = threadIdx.x, w = t / 32, b = blockIdx.x;
  if (t == 0) {
    here[0] = here[1] = 0;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&bar)) : "memory");
  }
  __syncthreads();
  BODY
  out[64 * b + t] = 1;
}
"""
_LIMIT = 60_000_000


def _run(
    body: str, *, blocks: int = 1, at_once: int = 8, by_oracle: bool = False, **options: Any
) -> Execution:
    """Run a kernel of 64 threads for each block."""
    cluster = "__cluster_dims__(2, 1, 1) " if "cluster" in body else ""
    kernel = _KERNEL.replace("BODY", body).replace("void k", f"void {cluster}k")
    library = _LIBRARY if "cuda::" in body else ""
    file = SourceFile(library + _HELPERS + kernel, "k.cu", "cuda", ("",), ())
    memory = DeviceMemory()
    out = memory.allocate(4 * 64 * blocks, "out")
    request = LaunchRequest(
        (blocks, 1, 1), (64, 1, 1), out.address.to_bytes(8, "little"), at_once=at_once
    )
    program = load(compile_source(file, "k", "sm_90", assemble=False).ptx, "k")
    if by_oracle:
        symbols = {name: memory.allocate(64).address for name in program.module.globals}
        execution = oracle.run(program.flow, request, memory, symbols)
    else:
        execution = program.run(request, memory, **{"max_steps": _LIMIT, **options})
    if not execution.findings:
        assert memory.view(out.address, 256 * blocks).view(np.int32).all()
    return execution


# What threads wait for, for how many blocks, and what is said.
STALLS = {
    "a flag": (
        "if (t == 0) while (look(&flag) == 0) {} __syncthreads();", 1,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0"),
    "one of several": (
        "if (t == 32) while (look(&flags[2]) < 5) {} __syncthreads();", 1,
        "warp 0 waits at LINE; lane 0 of warp 1 polls at LINE for byte 8 of 'flags', which is 0"),
    "an element that the thread computes": (
        "if (w) { while (look(&flags[b + 1]) < 5) {} } __syncthreads();", 2,
        "warp 0 waits at LINE; warp 1 polls at LINE for byte NUMBER of 'flags', which is 0"),
    "a flag in shared memory": (
        "if (w) while (look(&here[1]) == 0) {}", 1,
        "warp 1 polls at LINE for byte 4 of 'here', which is 0"),
    "two flags": (
        "while (look(&here[0]) == 0 && look(&flag) == 0) {}", 1,
        "warps 0-1 poll at LINE for byte 0 of 'here', which is 0 and at LINE for byte 0 of 'flag', "
        "which is 0"),
    "flags in turn": (
        "int i = 0; while (look(&flags[i]) == 0) i = (i + 1) % 4;", 1,
        "polls at LINE for byte NUMBER of 'flags', which is 0"),
    "a back-off": (
        "int ns = 8; while (look(&flag) == 0) { __nanosleep(ns); if (ns < 256) ns *= 2; }", 1,
        "warps 0-1 poll at LINE for byte 0 of 'flag', which is 0"),
    "an atomic": (
        "while (atomicAdd(&flag, 0) == 0) {}", 1,
        "warps 0-1 poll at LINE for byte 0 of 'flag', which is 0"),
    "the library": (
        "cuda::atomic_ref<int, cuda::thread_scope_device> f(flag); if (t == 0) "
        "while (f.load(cuda::memory_order_acquire) == 0) {} __syncthreads();", 1,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0"),
    "a lock that is not given back": (
        "if (t == 0) { while (atomicCAS(&lock, 0, 1) != 0) {} __threadfence(); } __syncthreads();",
        2, "lane 0 of warp 0 polls at LINE for byte 0 of 'lock', which is 1"),
    "an exchange": (
        "if (t == 0) while (atomicExch(&lock, 1) != 0) {} __syncthreads();", 2,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'lock', which is 1"),
    "a flag that threads look at together": (
        "int v; do { v = t == 0 ? look(&flag) : 0; } while (!__syncthreads_or(v));", 1,
        "for byte 0 of 'flag', which is 0"),
    "flags of each other": (
        "if (t == 0) { while (look(&flags[b]) == 0) {} __threadfence(); set(&flags[!b], 1); } "
        "__syncthreads();", 2,
        "lane 0 of warp 0 polls at LINE for byte NUMBER of 'flags', which is 0"),
    "polls that are counted": (
        "if (t == 0) { int n = 0; while (look(&flag) == 0) ++n; out[0] = n; } __syncthreads();", 1,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0"),
    "a back-off after some polls": (
        "if (t == 0) { int n = 0; while (look(&flag) == 0) { if (++n > 8 && n % 4) "
        "__nanosleep(40); } } __syncthreads();", 1,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0"),
    "a retry that is counted, for each tile": (
        "for (int i = b; i < 9; i += 2) { if (t == 0) { int n = 0; do { "
        "for (int k = 0; k < 9 && look(&flags[i]) == 0; ++k) __nanosleep(20); ++n; } "
        "while (look(&flags[i]) == 0); out[i] = n; } __syncthreads(); }", 2,
        "lane 0 of warp 0 polls at LINE for byte NUMBER of 'flags', which is 0"),
    "a time that is only kept": (
        "if (t == 0) { long long s = 0; while (look(&flag) == 0) s = clock64(); out[0] = s; } "
        "__syncthreads();", 1,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0"),
    "a lock of an iteration before": (
        "if (t == 0) for (int i = 0; i < 5; ++i) while (atomicExch(&lock, 1) != 0) {} "
        "__syncthreads();", 2,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'lock', which is 1"),
    "an mbarrier by polls": (
        "if (w) while (!complete(at(&bar))) {} __syncthreads();", 1,
        "warp 1 polls at LINE for the phase of parity 0 of the mbarrier at byte 0 of 'bar'"),
    "an mbarrier by all": (
        "while (!complete(at(&bar))) {}", 1,
        "warps 0-1 poll at LINE for the phase of parity 0 of the mbarrier at byte 0 of 'bar'"),
    "an mbarrier and a flag": (
        "if (w) wait(at(&bar)); else { if (t == 0) while (look(&flag) == 0) {} __syncwarp(); }", 1,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0"),
    "a peer of the cluster": (
        "if (t == 0 && b == 0) while (look(&flag) == 0) {} __syncthreads(); "
        'asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;");', 2,
        "lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0"),
}  # fmt: skip


@pytest.mark.parametrize("how", ["plain", "sanitized", "shuffled"])
@pytest.mark.parametrize("name", STALLS)
@pytest.mark.sample
def test_polls_that_never_end_are_a_deadlock(name: str, how: str) -> None:
    body, blocks, said = STALLS[name]
    line = r"[\w.]+:\d+( \(called at [\w.]+:\d+\))?"
    words = re.escape(said).replace("LINE", line).replace("NUMBER", r"\d+")
    if how == "plain":
        with pytest.raises(DeviceError, match=rf"deadlock in .*{words}"):
            _run(body, blocks=blocks)
        return
    execution = _run(body, blocks=blocks, sanitize=True, warp_seed=int(how == "shuffled"))
    found = [each for each in execution.findings if each.check == "synccheck"]
    assert {each.kind for each in found} == {"deadlock"}
    assert any(re.search(words, each.message) for each in found), found


@pytest.mark.parametrize("name", STALLS)
@pytest.mark.sample
def test_the_oracle_finds_them_too(name: str) -> None:
    body, blocks, _ = STALLS[name]
    with pytest.raises(DeviceError, match=r"'k' is deadlocked: .*warp \d of block .* polls at"):
        _run(body, blocks=blocks, by_oracle=True)


def test_a_poll_of_all_blocks_of_a_cluster_names_them() -> None:
    body = 'while (!complete(at(&bar))) {} asm volatile("barrier.cluster.arrive.aligned;");'
    execution = _run(body, blocks=4, sanitize=True, threads=1)
    found = [each for each in execution.findings if each.kind == "deadlock"]
    assert found
    assert {each.block for each in found} <= {(0, 0, 0), (2, 0, 0)}
    for each in found:
        assert re.search(r"in the cluster of block \([02], 0, 0\) \(rank 0\)", each.message)


def test_a_cluster_that_was_left_is_not_told_again() -> None:
    """Two threads may find at once that their clusters, and so all, poll for ever."""
    block = SimpleNamespace(number=3, field=lambda name: -1, observer=None)
    unit = SimpleNamespace(run=lambda fuel: FINISHED, running=block)
    block.peers = [block]
    told = Mock()
    returns = Returns(Mock(), told, None, Mock(), Mock())
    returns._doomed = {_place(unit)}
    assert not returns.share(unit, 1, lambda steps: steps)
    assert not told.deadlock.called
    assert not returns._doomed


# What ends late, or might end elsewhere: for how many blocks, and whether it does end.
NO_STALLS = {
    "so many times": (
        "for (int i = 0; look(&flag) == 0 && i < 300000; ++i) {}", 1, True),
    "so many times, beside a back-off": (
        "int n = 0; while (look(&flag) == 0) { if (n > 8) __nanosleep(40); if (++n > 200000) "
        "break; }", 1, True),
    "so many times, in rounds": (
        "for (int n = 0; n < 99999 && look(&flag) == 0; ++n) "
        "for (int k = 0; k < 9 && look(&flag) == 0; ++k) {}", 1, True),
    "a later block, without fences": (
        "if (t == 0) { if (b == 0) while (look(&flag) == 0) {} else set(&flag, 1); }", 2, True),
    "a clock": ("long long s = clock64(); while (!look(&flag) && clock64() - s < 9) {}", 1, False),
    "the time": (
        "unsigned long long s, n; asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(s)); "
        "do asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(n)); "
        "while (!look(&flag) && n - s < 9);", 1, False),
    "another block, after a long time": (
        "if (t == 0) { if (b) { int x = 1; for (int i = 0; i < 900000; ++i) x = x * x + 5; "
        "if (x) set(&flag, 1); } "
        "else while (look(&flag) == 0) {} __threadfence(); } __syncthreads();", 2, True),
    "a chain of blocks": (
        "if (t == 0) { if (b == 2) { int x = 1; for (int i = 0; i < 900000; ++i) x = x * x + 5; "
        "if (x) set(&flags[2], 1); } else { while (look(&flags[b + 1]) == 0) {} __threadfence(); "
        "set(&flags[b], 1); } } __syncthreads();", 3, True),
    "two blocks that take many turns": (
        "if (t == 0) for (int i = b; i < 60; i += 2) { while (look(&flag) != i) {} "
        "__threadfence(); set(&flag, i + 1); } __syncthreads();", 2, True),
    "a lock that is given back": (
        "if (t == 0) for (int i = 0; i < 1000; ++i) { while (atomicCAS(&lock, 0, 1) != 0) {} "
        "__threadfence(); atomicExch(&lock, 0); } __syncthreads();", 2, True),
}  # fmt: skip


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("name", NO_STALLS)
@pytest.mark.sample
def test_polls_that_might_end_go_on(name: str, sanitize: bool) -> None:
    body, blocks, ends = NO_STALLS[name]
    options: dict[str, Any] = {"sanitize": sanitize, "max_steps": _LIMIT if ends else 4_000_000}
    if ends:
        execution = _run(body, blocks=blocks, **options)
        assert "deadlock" not in {each.kind for each in execution.findings}
        assert "endless" not in {each.kind for each in execution.findings}
    elif sanitize:
        assert "endless" in {each.kind for each in _run(body, blocks=blocks, **options).findings}
    else:
        with pytest.raises(DeviceError, match="did not end within"):
            _run(body, blocks=blocks, **options)


# What other lanes of the warp, or blocks that have no room, might end: for how many blocks,
# how many of which run at a time, and what is said.
KEPT = {
    "another lane of the warp": (
        "if (t == 0) while (look(&here[0]) == 0) {} if (t == 1) set(&here[0], 1);", 1, 8,
        r"lane 0 of warp 0 polls at LINE for byte 0 of 'here', which is 0; warp 1 exited; "
        r"lanes 1-31 of warp 0 wait for the lanes that poll, to go on together at LINE: gemmkit "),
    "lanes of the warp that were first": (
        "while (atomicCAS(&lock, 0, 1) != 0) {} __threadfence(); atomicExch(&lock, 0);", 1, 8,
        r"lanes 1-31 of warp 0 poll at LINE for byte 0 of 'lock', which is 1; .*lane 0 of warp 0 "
        r"waits for the lanes that poll, to go on together at LINE: "),
    "a later block": (
        "if (t == 0) { if (b == 0) while (look(&flag) == 0) {} __threadfence(); set(&flag, 1); } "
        "__syncthreads();", 3, 1,
        r"lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0; "
        r"blocks run one after the other, and none waits for a later one"),
    "one of some later blocks": (
        "if (t == 0) { if (b < 2) while (look(&flag) == 0) {} __threadfence(); set(&flag, 1); } "
        "__syncthreads();", 5, 2,
        r"lane 0 of warp 0 polls at LINE for byte 0 of 'flag', which is 0; "
        r"3 more have not begun, as at most 2 blocks run at a time, one per SM"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NO_STALLS if NO_STALLS[name][2]])
@pytest.mark.sample
def test_the_oracle_runs_what_others_wait_for(name: str) -> None:
    body, blocks, _ = NO_STALLS[name]
    for number, less in (("900000", "2000"), ("99999", "20"), ("300000", "500"), ("200000", "200")):
        body = body.replace(number, less)
    _run(body, blocks=blocks, by_oracle=True)


@pytest.mark.parametrize("how", ["plain", "sanitized", "oracle"])
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.sample
def test_polls_that_end_only_elsewhere(name: str, how: str) -> None:
    body, blocks, at_once, said = KEPT[name]
    if how == "oracle":
        with pytest.raises(DeviceError, match="'k' does not end: warp 0 of block"):
            _run(body, blocks=blocks, at_once=at_once, by_oracle=True)
        return
    words = said.replace("LINE", r"[\w.]+:\d+( \(called at [\w.]+:\d+\))?")
    options = {"blocks": blocks, "at_once": at_once, "sanitize": how == "sanitized"}
    if how == "sanitized":
        (found,) = (each for each in _run(body, **options).findings if each.kind == "endless")
        assert re.search(rf"does not end: .*{words}", found.message), found
    else:
        with pytest.raises(DeviceError, match=rf"does not end: .*{words}"):
            _run(body, **options)


def test_a_block_that_does_not_run_yet_may_end_a_poll() -> None:
    _run(KEPT["a later block"][0], blocks=2)


def test_blocks_on_several_threads_are_stalled_together() -> None:
    # Without fences blocks run on threads of the host.
    body = "if (t == 0) while (look(&flags[b]) == 0) {} __syncthreads();"
    with pytest.raises(DeviceError, match=r"deadlock in block .* polls at .* of 'flags'"):
        _run(body, blocks=2, threads=2, max_steps=None)
