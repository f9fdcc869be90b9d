"""mbarriers and bulk copies in native code do what Python and the oracle do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from launching import ORACLE, Executor, kernel_ptx, launch

from gemmkit.emulator import load
from gemmkit.emulator.machine import scheduler
from gemmkit.emulator.machine.phases import Phases
from gemmkit.errors import DeviceError

TURNS = 3
# Arrivals: the instruction, and what counts for the object's initialization.
ARRIVALS = {
    "plain": ("mbarrier.arrive.shared::cta.b64 %rd10, [%r11];", 1),
    "count": ("mov.u32 %r15, 2;\nmbarrier.arrive.shared::cta.b64 %rd10, [%r11], %r15;", 2),
    "generic": ("mbarrier.arrive.b64 %rd10, [%rd12];", 1),
    "copies": ("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r11];", 1),
    "bytes": (
        "mbarrier.arrive.expect_tx.shared::cta.b64 %rd10, [%r11], 16;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%r13], [%rd11], 16, [%r11];",
        1,
    ),
    "bytes first": (
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r11], 16;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%r13], [%rd11], 16, [%r11];\nmbarrier.arrive.shared::cta.b64 %rd10, [%r11];",
        1,
    ),
}


@dataclass(frozen=True)
class Round:
    """All threads arrive and wait: lanes of `mask` in the first way, the others in the second.

    `split`: odd lanes use another object than even ones. `guarded`: predicates instead of branches.
    `wait` is `try_wait` or `test_wait`, by parity or by `token`.
    """

    mask: int
    first: str
    second: str
    wait: str
    split: bool
    guarded: bool
    token: bool

    def expected(self, odd: int, warps: int) -> int:
        """The arrivals at the object of the even or the odd lanes."""
        lanes = [lane for lane in range(32) if not self.split or lane % 2 == odd]
        if not self.split and odd:
            return 1
        counts = (
            ARRIVALS[self.first if self.mask >> lane & 1 else self.second][1] for lane in lanes
        )
        return warps * sum(counts)


ROUNDS = st.builds(
    Round,
    st.integers(0, (1 << 32) - 1) | st.sampled_from([0, 1, (1 << 32) - 1]),
    st.sampled_from(sorted(ARRIVALS)),
    st.sampled_from(sorted(ARRIVALS)),
    st.sampled_from(["try_wait", "try_wait", "test_wait"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def program(rounds: list[Round], warps: int) -> str:
    """Each thread stores a number, arrives, waits, and adds the number of another thread and what a
    bulk copy brought; over and over, so that phases follow each other."""
    lines = ["mov.u32 %r10, bars;", "setp.ne.u32 %p0, %tid, 0;", "@%p0 bra READY;"]
    for number, each in enumerate(rounds):
        for odd in (0, 1):
            at, count = 16 * number + 8 * odd, each.expected(odd, warps)
            lines.append(f"mbarrier.init.shared::cta.b64 [%r10+{at}], {count};")
    lines += [
        "fence.mbarrier_init.release.cluster;", "READY: bar.sync 0;",
        "mov.u32 %r9, %tid;", "mov.u32 %r20, 0;", "and.b32 %r8, %tid, 31;",
        "mul.wide.u32 %rd11, %tid, 16;", "add.s64 %rd11, %rd11, %rd1;", "TURN:",
    ]  # fmt: skip
    for number, each in enumerate(rounds):
        lines += [
            "and.b32 %r14, %r20, 1;",
            f"mad.lo.u32 %r12, %r14, {512 * len(rounds)}, {512 * number};",
            "shl.b32 %r5, %tid, 2;", "add.u32 %r12, %r12, %r5;", "mov.u32 %r5, data;",
            "add.u32 %r12, %r12, %r5;", f"mad.lo.u32 %r5, %r9, {number + 3}, %r20;",
            "st.shared.u32 [%r12], %r5;",
            f"mad.lo.u32 %r13, %r14, {2048 * len(rounds)}, {2048 * number};",
            "mad.lo.u32 %r13, %tid, 16, %r13;", "mov.u32 %r5, copied;", "add.u32 %r13, %r13, %r5;",
            "and.b32 %r5, %tid, 1;", f"shl.b32 %r5, %r5, {3 if each.split else 31};",
            "and.b32 %r5, %r5, 8;", f"add.u32 %r11, %r5, {16 * number};",
            "add.u32 %r11, %r11, %r10;",
            "cvt.u64.u32 %rd12, %r11;", "cvta.shared.u64 %rd12, %rd12;",
            f"mov.u32 %r5, {each.mask};", "shr.u32 %r5, %r5, %r8;", "and.b32 %r5, %r5, 1;",
            "setp.eq.u32 %p3, %r5, 1;",
        ]  # fmt: skip
        ways = [ARRIVALS[name][0].split("\n") for name in (each.first, each.second)]
        if each.guarded:
            lines += [f"@%p3 {line}" for line in ways[0]] + [f"@!%p3 {line}" for line in ways[1]]
        else:
            lines += [f"@%p3 bra FIRST{number};", *ways[1], f"bra JOIN{number};"]
            lines += [f"FIRST{number}:", *ways[0], f"JOIN{number}:"]
        token = each.token and "copies" not in (each.first, each.second)
        wait = (
            f"mbarrier.{each.wait}.shared::cta.b64 %p2, [%r11], %rd10;"
            if token
            else f"mbarrier.{each.wait}.parity.shared::cta.b64 %p2, [%r11], %r14;"
        )
        lines += [
            f"WAIT{number}: {wait}", f"@!%p2 bra WAIT{number};",
            # Of another warp, if there is one, in which lanes use the same objects.
            "xor.b32 %r5, %tid, 36;", "sub.s32 %r5, %r5, %tid;", "shl.b32 %r6, %r5, 2;",
            "add.u32 %r12, %r12, %r6;", "ld.shared.u32 %r4, [%r12];", "add.u32 %r9, %r9, %r4;",
            "ld.shared.u32 %r4, [%r13];", "add.u32 %r9, %r9, %r4;",
        ]  # fmt: skip
    lines += [
        "add.u32 %r20, %r20, 1;", f"setp.lt.u32 %p5, %r20, {TURNS};", "@%p5 bra TURN;",
        "st.global.u32 [%at], %r9;",
    ]  # fmt: skip
    shared = (
        f".shared .align 8 .b64 bars[{2 * len(rounds)}];"
        f".shared .align 16 .b8 data[{1024 * len(rounds)}];"
        f".shared .align 16 .b8 copied[{4096 * len(rounds)}];"
    )
    body = "\n".join(lines)
    return kernel_ptx(body, pointers=2, declarations=shared, target="sm_90")


def engine(seed: int = 0, *, sanitize: bool = False) -> Executor:
    return Executor(
        f"seed {seed}",
        lambda ptx, flow, request, memory: load(ptx, flow.kernel.name).run(
            request, memory, warp_seed=seed, sanitize=sanitize
        ),
    )


# Native code returns to Python after so much fuel, in the middle of a warp's turn or not.
SHARES = st.just(scheduler.FIRST_SHARE) | st.integers(10_000, 200_000)
SPLIT = Round(0x55AA1234, "bytes", "plain", "test_wait", split=True, guarded=False, token=False)
TWO = [
    Round(0x0F0F0001, "copies", "count", "test_wait", split=False, guarded=False, token=False),
    Round(0, "generic", "count", "test_wait", split=True, guarded=True, token=True),
]


@settings(max_examples=5, deadline=None)
@given(
    rounds=st.lists(ROUNDS, min_size=1, max_size=3),
    warps=st.integers(1, 4),
    sanitize=st.booleans(),
    share=SHARES,
)
@example(rounds=[SPLIT], warps=3, sanitize=False, share=16_300)
@example(rounds=[SPLIT], warps=3, sanitize=False, share=21_400)
@example(rounds=TWO, warps=4, sanitize=False, share=29_900)
@example(rounds=TWO, warps=4, sanitize=False, share=55_400)
def test_random_programs_agree_with_the_oracle(
    rounds: list[Round], warps: int, sanitize: bool, share: int
) -> None:
    ptx, out = program(rounds, warps), np.zeros(32 * warps, np.uint32)
    given = np.arange(512, dtype=np.uint32) * 7 + 1
    wanted = launch(ORACLE, ptx, out, given, block=32 * warps)
    for executor in (engine(), engine(1), *[engine(sanitize=True)] * sanitize):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "FIRST_SHARE", share)
            mine = launch(executor, ptx, out, given, block=32 * warps)
        assert mine.arrays[0].tolist() == wanted.arrays[0].tolist(), executor.name
        # Not each thread has a partner, and not each slot is copied to.
        assert {each.kind for each in mine.execution.findings} <= {"uninitialized"}
        if executor.name == "seed 0":
            assert mine.tally.executed.tolist() == wanted.tally.executed.tolist()
            assert mine.tally.lanes.tolist() == wanted.tally.lanes.tolist()


START = """mov.u32 %r10, bars;
mov.u32 %r12, data;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
@%p0 mbarrier.init.shared::cta.b64 [%r10+8], 40;
@%p0 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
SHARED = ".shared .align 8 .b64 bars[2]; .shared .align 16 .b8 data[512];"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [%rd1], {}, [%r10];"


def run(executor: Executor, body: str, block: int = 32) -> np.ndarray:
    ptx = kernel_ptx(START + body, pointers=2, declarations=SHARED, target="sm_90")
    given = np.arange(64, dtype=np.uint32) + 5
    return launch(executor, ptx, np.zeros(block, np.uint32), given, block=block).arrays[0]


# One warp loads a stage, another waits for it and releases it.
PIPELINE = f"""setp.ge.u32 %p1, %tid, 32;
mov.u32 %r1, 0;
mov.u32 %r4, 0;
@%p1 bra CONSUME;
setp.ne.u32 %p2, %tid, 0;
@%p2 bra END;
LOAD: mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 64;
{COPY.format("%r12", 64)}
and.b32 %r2, %r1, 1;
FREE: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10+8], %r2;
@!%p3 bra FREE;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p4, %r1, 6;
@%p4 bra LOAD;
bra END;
CONSUME: and.b32 %r2, %r1, 1;
FULL: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], %r2;
@!%p3 bra FULL;
ld.shared.u32 %r3, [%r12+60];
add.u32 %r4, %r4, %r3;
mbarrier.arrive.shared::cta.b64 _, [%r10+8];
setp.lt.u32 %p5, %tid, 40;
@%p5 mbarrier.arrive.shared::cta.b64 _, [%r10+8];
add.u32 %r1, %r1, 1;
setp.lt.u32 %p4, %r1, 6;
@%p4 bra CONSUME;
END: st.global.u32 [%at], %r4;"""


@pytest.mark.parametrize(
    ("executor", "python"),
    [
        (engine(), {"mbarrier_init"}),
        (engine(sanitize=True), {"mbarrier_init", "bulk_copy"}),
        (engine(2), {"mbarrier_init", "mbarrier_arrive", "mbarrier_try", "bulk_copy"}),
    ],
    ids=["plain", "sanitized", "shuffled"],
)
def test_a_sound_pipeline_hardly_needs_python(
    executor: Executor, python: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: set[str] = set()
    before: Callable[..., object] = Phases.execute

    def execute(self: Phases, warp: int, action: Any, *rest: Any) -> object:
        executed.add(action.operation)
        return before(self, warp, action, *rest)

    monkeypatch.setattr(Phases, "execute", execute)
    out = run(executor, PIPELINE, block=64)
    assert out.tolist() == 32 * [0] + 32 * [6 * 20]
    assert executed == python


# What is not valid in a later lane is refused there, after the lanes before it.
REFUSED = {
    "mov.u32 %r1, 3;\nmbarrier.arrive.shared::cta.b64 %rd5, [%r10+8], %r1;":
        "too many arrivals: thread (13, 0, 0) of block (0, 0, 0) arrives with a count of 3 at an "
        "mbarrier in a phase of parity 0 with 1 of 40 arrivals pending",
    "mad.lo.u32 %r1, %tid, 4, %r10;\nmbarrier.expect_tx.shared::cta.b64 [%r1], 16;":
        "misaligned mbarrier: thread (1, 0, 0)",
    "shl.b32 %r1, %tid, 3;\nadd.u32 %r1, %r1, %r10;\n"
    "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r1], 1;":
        "thread (2, 0, 0) of block (0, 0, 0) uses an mbarrier that is not initialized",
    "mov.u32 %r1, 300000;\nmbarrier.expect_tx.shared::cta.b64 [%r10], %r1;":
        "tx-count out of range: thread (3, 0, 0) of block (0, 0, 0) announces 300,000 bytes",
    f"shl.b32 %r1, %tid, 6;\nadd.u32 %r1, %r1, %r12;\n{COPY.format('%r1', 64)}":
        "out of bounds: thread (8, 0, 0) of block (0, 0, 0) writes 64 bytes at byte 0 of "
        "'shared memory', out of bounds",
    f"shl.b32 %r1, %tid, 6;\n{COPY.format('%r12', '%r1')}": "thread (5, 0, 0) of block (0, 0, 0) "
        "reads 320 bytes",
    f"setp.lt.u32 %p1, %tid, 1;\n@%p1 {COPY.format('%r10', 16)}":
        "thread (0, 0, 0) of block (0, 0, 0) uses an mbarrier that is not initialized, at byte 0",
}  # fmt: skip


@pytest.mark.parametrize("body", REFUSED)
def test_misuse_in_a_later_lane_is_refused_as_by_python(body: str) -> None:
    texts = []
    for executor in (engine(), engine(1)):
        with pytest.raises(DeviceError) as caught:
            run(executor, body)
        texts.append(str(caught.value))
    assert REFUSED[body] in texts[0]
    same = [re.sub("0x[0-9a-f]+", "address", text) for text in texts]
    assert same[0] == same[1]


def test_a_deadlock_counts_the_bytes_of_native_copies() -> None:
    body = f"""@!%p0 bra WAIT;
    mbarrier.expect_tx.shared::cta.b64 [%r10], 48;
    {COPY.format("%r12", 16)}
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
    @!%p2 bra WAIT;"""
    for executor in (engine(), engine(1)):
        with pytest.raises(DeviceError, match=r"\(0 of 1 arrivals, 16 of 48 announced bytes\)"):
            run(executor, body)
