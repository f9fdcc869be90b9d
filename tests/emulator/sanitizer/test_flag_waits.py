"""What loops wait for, found in their code: the values that let a thread go on."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import WORDS, run

from gemmkit.emulator.codegen.flag_tests import FlagWait
from gemmkit.emulator.codegen.flag_waits import flag_waits
from gemmkit.emulator.codegen.operands import actions_of
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse

_KERNEL = """
.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 flag, .param .u32 n) {{
  .reg .pred %p<9>; .reg .b16 %h<4>; .reg .b32 %r<9>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [flag];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  setp.ne.s32 %p8, %r2, 3;
{}
OUT:
  st.global.u32 [%rd1+4], %r2;
  ret;
}}
"""
_LOAD = "ld.volatile.global.u32 %r3, [%rd1];"
# Loops, and the values from −2 to 6 that end them if %r1 is 4.
WAITS = {
    "a comparison": (f"A: {_LOAD} setp.lt.s32 %p1, %r3, %r1; @%p1 bra A;", {4, 5, 6}),
    "negated": (f"A: {_LOAD} setp.ge.s32 %p1, %r3, %r1; @!%p1 bra A;", {4, 5, 6}),
    "unsigned": (f"A: {_LOAD} setp.lt.u32 %p1, %r3, %r1; @%p1 bra A;", {-2, -1, 4, 5, 6}),
    "the operand first": (f"A: {_LOAD} setp.gt.s32 %p1, %r1, %r3; @%p1 bra A;", {4, 5, 6}),
    "a mask": (
        f"A: {_LOAD} and.b32 %r4, %r3, 1; setp.eq.s32 %p1, %r4, 0; @%p1 bra A;", {-1, 1, 3, 5}),
    "a shift and a sum": (
        f"A: {_LOAD} shl.b32 %r4, %r3, 1; add.s32 %r5, %r4, -2; setp.lt.s32 %p1, %r5, %r1; "
        "@%p1 bra A;", {3, 4, 5, 6}),
    "what is computed from the operand": (
        f"A: {_LOAD} add.s32 %r4, %r1, -1; setp.lt.s32 %p1, %r3, %r4; @%p1 bra A;", {3, 4, 5, 6}),
    "a pause": (
        f"A: {_LOAD} setp.ge.s32 %p1, %r3, %r1; @%p1 bra OUT; nanosleep.u32 20; bra A;",
        {4, 5, 6}),
    "two tests": (
        f"A: {_LOAD} setp.eq.s32 %p1, %r3, 2; @%p1 bra OUT; setp.ne.s32 %p2, %r3, %r1; "
        "@%p2 bra A;", {2, 4}),
    "a byte": (
        "A: ld.volatile.global.u8 %h1, [%rd1]; setp.eq.s16 %p1, %h1, 5; @!%p1 bra A;", {5}),
    "a signed byte": (
        "A: ld.volatile.global.s8 %h1, [%rd1]; setp.lt.s16 %p1, %h1, 0; @!%p1 bra A;", {-2, -1}),
    "a barrier of the block": (
        f"A: mov.u32 %r4, 0; @%p8 bra B; {_LOAD} setp.ge.s32 %p1, %r3, %r1; "
        "selp.u32 %r4, 1, 0, %p1; B: setp.ne.u32 %p2, %r4, 0; bar.red.or.pred %p3, 0, %p2; "
        "selp.u32 %r5, 1, 0, %p3; setp.eq.s32 %p4, %r5, 0; @%p4 bra A;", {4, 5, 6}),
    "a vote": (
        f"A: {_LOAD} setp.ge.s32 %p1, %r3, %r1; vote.sync.any.pred %p2, %p1, -1; not.pred %p3, "
        "%p2; @%p3 bra A;", {4, 5, 6}),
    "in a larger loop, which other lanes pass without effect": (
        "mov.u32 %r6, 0; A: @%p8 bra C; "
        f"B: {_LOAD} setp.lt.s32 %p1, %r3, %r1; @%p1 bra B; "
        "C: membar.cta; add.s32 %r6, %r6, 1; @%p8 bra D; st.global.u32 [%rd1+8], %r6; "
        "D: setp.lt.u32 %p2, %r6, 3; @%p2 bra A;", {4, 5, 6}),
    "an atomic": (
        "A: atom.global.add.u32 %r3, [%rd1], 0; setp.lt.s32 %p1, %r3, %r1; @%p1 bra A;",
        {4, 5, 6}),
}  # fmt: skip
# Here the value does not tell, or not alone.
NO_WAITS = {
    "no loop": f"{_LOAD} setp.lt.s32 %p1, %r3, %r1; @%p1 bra OUT;",
    "an ordinary load": "A: ld.global.u32 %r3, [%rd1]; setp.lt.s32 %p1, %r3, %r1; @%p1 bra A;",
    "a store in the loop": (
        f"A: {_LOAD} st.global.u32 [%rd1+8], %r3; setp.lt.s32 %p1, %r3, %r1; @%p1 bra A;"),
    "an operand that changes": (
        f"A: {_LOAD} setp.lt.s32 %p1, %r3, %r1; add.s32 %r1, %r1, 1; @%p1 bra A;"),
    "two operands": (
        f"A: {_LOAD} add.s32 %r4, %r1, %r2; setp.lt.s32 %p1, %r3, %r4; @%p1 bra A;"),
    "a count of the block": (
        f"A: {_LOAD} setp.ge.s32 %p1, %r3, %r1; bar.red.popc.u32 %r4, 0, %p1; "
        "setp.lt.u32 %p2, %r4, 32; @%p2 bra A;"),
    "a value that is used afterwards": (
        f"A: {_LOAD} setp.lt.s32 %p1, %r3, %r1; @%p1 bra A; mov.u32 %r2, %r3;"),
    "a part of it that is": (
        f"A: {_LOAD} and.b32 %r2, %r3, 6; setp.lt.s32 %p1, %r3, %r1; @%p1 bra A;"),
}  # fmt: skip


def waits(body: str) -> list[FlagWait]:
    kernel = parse(_KERNEL.format(body)).kernels["k"]
    flow = ControlFlow.of(kernel)
    return [*flag_waits(flow, actions_of(flow)).values()]


@pytest.mark.parametrize("name", WAITS)
def test_values_that_let_a_thread_go_on(name: str) -> None:
    body, ends = WAITS[name]
    (wait,) = waits(body)
    found = {each for each in range(-2, 7) if wait.exit(each & 0xFFFFFFFF, 4)}
    assert found == ends


@pytest.mark.parametrize("name", NO_WAITS)
def test_loops_that_are_not_understood(name: str) -> None:
    assert not waits(NO_WAITS[name])


def test_a_look_before_the_loop() -> None:
    first, second = waits(
        f"{_LOAD} setp.ge.s32 %p1, %r3, %r1; @%p1 bra OUT; "
        "A: nanosleep.u32 9; ld.volatile.global.u32 %r4, [%rd1]; setp.lt.s32 %p2, %r4, %r1; "
        "@%p2 bra A;"
    )
    for value in range(7):
        assert bool(first.exit(value, 4)) == bool(second.exit(value, 4)) == (value >= 4)


_HANDED = """
k(float* out, float* part, int* flag) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    part[t] = t;
    __syncthreads();
    if (t == 0) { __threadfence(); atomicAdd(flag, 1); }
  } else {
    if (t == 0) { while (*(volatile int*)flag < COUNT) {} __threadfence(); }
    __syncthreads();
    out[t] = part[63 - t];
  }
}
"""


@pytest.mark.parametrize(("before", "count", "sound"), [(0, 1, True), (0, 0, False), (5, 5, False)])
def test_a_wait_that_ends_before_anybody_has_written(before: int, count: int, sound: bool) -> None:
    # The second block looks when the first one has ended.
    arrays = {"out": np.zeros(64, np.float32), "part": np.zeros(64, np.float32)}
    flag = np.full(1, before, np.int32)
    source = _HANDED.replace("COUNT", str(count))
    found = run(source, {**arrays, "flag": flag}, grid=(2, 1, 1), at_once=2).findings
    assert {each.kind for each in found} == (set() if sound else {"read after write"})


# Block 0 shows its own part first, by 1, and then the sum so far, by 2.
_LOOK_BACK = """
k(float* out, float* part, int* flag) {
  const int t = threadIdx.x;
  __shared__ int seen;
  if (blockIdx.x == 0) {
    for (int state = 1; state <= 2; ++state) {
      part[64 * state + t] = state;
      __threadfence();
      __syncthreads();
      if (t == 0) *(volatile int*)flag = state;
    }
  } else {
    if (t == 0) {
      int state;
      do state = *(volatile int*)flag; while (state == 0);
      FENCE
      seen = state;
    }
    __syncthreads();
    out[t] = CHOICE;
  }
}
"""


@pytest.mark.parametrize(
    ("choice", "fence", "sound"),
    [
        ("part[64 * seen + t]", "__threadfence();", True),
        ("seen == 2 ? part[128 + t] : part[64 + t]", "__threadfence();", True),
        ("part[64 * seen + t]", "", False),
        # What the flag says is not used: it may have been 1.
        ("part[128 + t]", "__threadfence();", False),
    ],
)
def test_a_value_that_says_what_to_read(choice: str, fence: str, sound: bool) -> None:
    arrays = {"out": np.zeros(64, np.float32), "part": np.zeros(192, np.float32)}
    source = _LOOK_BACK.replace("CHOICE", choice).replace("FENCE", fence)
    if "seen" not in choice:
        source = source.replace("seen = state;", "")
    flag = np.zeros(1, np.int32)
    found = run(source, {**arrays, "flag": flag}, grid=(2, 1, 1), at_once=2).findings
    assert {each.kind for each in found} == (set() if sound else {"read after write"})


def test_a_flag_past_the_end_is_out_of_bounds() -> None:
    """Block 1 signals past the end of the flags, and block 0 waits there."""
    source = """k(float* out, int* flags) {
    if (blockIdx.x == 1) {
        out[1] = 1;
        __threadfence();
        atomicExch(&flags[4], 1);
    } else {
        while (atomicAdd(&flags[4], 0) == 0) __nanosleep(20);
        __threadfence();
        out[0] = 2;
    }
}"""
    arrays = {"out": WORDS, "flags": np.zeros(4, np.int32)}
    found = run(source, arrays, grid=(2, 1, 1), block=(1, 1, 1), at_once=2).findings
    assert ("memcheck", "out of bounds", "flags") in {
        (each.check, each.kind, each.array) for each in found
    }
