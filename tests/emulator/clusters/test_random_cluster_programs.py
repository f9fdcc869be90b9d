"""Random programs over the shared memory, mbarriers and barrier of a cluster: the engine gives what
the oracle does, and any order of the blocks' turns gives the same results."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import ENGINE, ORACLE, Executor, kernel_ptx, launch

from gemmkit.emulator import load
from gemmkit.emulator.machine import scheduler
from gemmkit.emulator.sanitizer.access_order import AccessOrder
from gemmkit.emulator.sanitizer.copy_order import CopyOrder

MEETINGS = (
    "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    "barrier.cluster.arrive; barrier.cluster.wait;",
    "fence.acq_rel.cluster; barrier.cluster.arrive.relaxed.aligned; add.u32 %r30, %r30, 1;"
    " barrier.cluster.wait.acquire.aligned;",
)
NO_MEETING = len(MEETINGS)
# The accumulator is %r30; %r10 is the address of the thread's word of `own`, %r16 a permuted one
# in a peer, %r17 the peer's mbarrier.
START = """
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mad.lo.u32 %r2, %r0, %r1, %tid;
    mul.wide.u32 %at, %r2, 8; add.s64 %at, %at, %rd0;
    shl.b32 %r3, %tid, 2; mov.u32 %r10, own; add.u32 %r10, %r10, %r3;
    mov.u32 %r11, bar; mov.u32 %r12, %cluster_ctarank; mov.u32 %r13, %cluster_nctarank;
    setp.eq.u32 %p1, %tid, 0; mov.u32 %r30, %r2;
    st.shared.u32 [%r10], %r2;
    @%p1 mbarrier.init.shared::cta.b64 [%r11], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
OPERATIONS = {
    "store": "st.shared::cluster.u32 [%r16], %r30;",
    "load": "ld.shared::cluster.u32 %r20, [%r16]; xor.b32 %r30, %r30, %r20;",
    "reduce": "red.shared::cluster.add.u32 [%r16], %r30;",
    "largest": "red.relaxed.cluster.shared::cluster.max.u32 [%r16], %r30;",
    "generic load": """
        cvt.u64.u32 %rd1, %r10; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r14;
        and.b32 %r21, %tid, 1; setp.eq.u32 %p2, %r21, 0; selp.b64 %rd1, %rd1, %rd2, %p2;
        ld.u32 %r20, [%rd1]; add.u32 %r30, %r30, %r20;""",
    "half of the lanes": """
        setp.lt.u32 %p2, %r12, 1; and.b32 %r21, %tid, 3; setp.ne.u32 %p3, %r21, 0;
        @%p3 ld.shared::cluster.u32 %r20, [%r16]; @%p3 add.u32 %r30, %r30, %r20;""",
    "send": """
        mul.lo.u32 %r22, %r1, 4;
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], %r22;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r16], %r30, [%r17];
        WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r11], PARITY;
        @!%p2 bra WAIT;""",
    "send sums": """
        mul.lo.u32 %r22, %r1, 4;
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], %r22;
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32
            [%r16], %r30, [%r17];
        WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r11], PARITY;
        @!%p2 bra WAIT;""",
    "signal": """
        @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r17];
        WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r11], PARITY;
        @!%p2 bra WAIT; add.u32 %r30, %r30, 3;""",
}
# Some lanes write past the end of `own`, where the mbarrier is, or past all of it.
ASTRAY = {
    "store past the end": "st.shared::cluster.u32 [%r16+64], %r30;",
    "load past the end": "ld.shared::cluster.u32 %r20, [%r16+72]; xor.b32 %r30, %r30, %r20;",
    "load of what nobody wrote": "ld.shared::cluster.u32 %r20, [%r16+-32];",
    "send past the end": """
        st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r16+16], %r30, [%r17];""",
}
# Operations that complete a phase of the block's mbarrier.
PHASES = ("send", "send sums", "signal")
Round = tuple[str, int, int, int]


def rounds_of(operations: Iterable[str], meetings: int) -> st.SearchStrategy[list[Round]]:
    """Operations, each at a distance and with a factor, and what follows it."""
    each = st.tuples(
        st.sampled_from(sorted(operations)),
        st.integers(0, 4),
        st.sampled_from([1, 3, 7, 31]),
        st.integers(0, meetings - 1),
    )
    return st.lists(each, min_size=1, max_size=6)


ROUNDS = rounds_of(OPERATIONS, len(MEETINGS))
RACING = rounds_of(OPERATIONS, NO_MEETING + 1)
FAULTY = rounds_of({**OPERATIONS, **ASTRAY}, NO_MEETING + 1)


def program(rounds: list[Round], threads: int) -> str:
    """Each round permutes the threads' words and goes to the peer so many ranks further."""
    text, phase = [START], 0
    for number, (name, distance, factor, meeting) in enumerate(rounds):
        operation = {**OPERATIONS, **ASTRAY}[name].replace("WAIT", f"WAIT{number}")
        text.append(f"""
            add.u32 %r14, %r12, {distance}; rem.u32 %r14, %r14, %r13;
            mad.lo.u32 %r15, %tid, {factor}, {number}; rem.u32 %r15, %r15, {threads};
            shl.b32 %r15, %r15, 2; mov.u32 %r18, own; add.u32 %r15, %r15, %r18;
            mapa.shared::cluster.u32 %r16, %r15, %r14;
            mapa.shared::cluster.u32 %r17, %r11, %r14;
            {operation.replace("PARITY", str(phase & 1))}
            {(*MEETINGS, "")[meeting]}""")
        phase += name in PHASES
    text.append("ld.shared.u32 %r20, [%r10]; st.global.v2.u32 [%at], {%r20, %r30};")
    return re.sub(r"\n\s+\[", " [", "".join(text))


def seeded(seed: int) -> Executor:
    return Executor(
        f"seed {seed}",
        lambda text, flow, request, memory: load(text, flow.kernel.name).run(
            request, memory, warp_seed=seed
        ),
    )


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    ROUNDS,
    st.integers(2, 5),
    st.sampled_from([32, 64]),
    st.integers(1, 1000),
    # After so much fuel native code returns to Python, in the middle of a warp's turn or not.
    st.just(scheduler.FIRST_SHARE) | st.integers(10_000, 100_000),
)
def test_random_programs_agree(
    rounds: list[Round], blocks: int, threads: int, seed: int, share: int
) -> None:
    declarations = f".shared .align 16 .b8 own[{4 * threads}]; .shared .align 8 .b64 bar;"
    ptx = kernel_ptx(program(rounds, threads), declarations=declarations, target="sm_90a")
    shape = {"grid": 2 * blocks, "block": threads, "cluster": (blocks, 1, 1)}
    zeros = np.zeros((2 * blocks, threads, 2), np.uint32)
    wanted = launch(ORACLE, ptx, zeros, **shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "FIRST_SHARE", share)
        mine = launch(ENGINE, ptx, zeros, **shape)
    assert np.array_equal(mine.arrays[0], wanted.arrays[0])
    assert not mine.tally.differences(wanted.tally)
    assert np.array_equal(launch(seeded(seed), ptx, zeros, **shape).arrays[0], wanted.arrays[0])


CHECKED = Executor(
    "checked",
    lambda text, flow, request, memory: load(text, flow.kernel.name).run(
        request, memory, threads=1, sanitize=True
    ),
)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(RACING | FAULTY, st.integers(1, 4), st.sampled_from([32, 40, 64]))
def test_lanes_are_checked_together_as_one_by_one(
    rounds: list[Round], blocks: int, threads: int
) -> None:
    """Findings, results and counts are the same whether a warp's accesses are recorded at once."""
    declarations = f".shared .align 16 .b8 own[{4 * threads}]; .shared .align 8 .b64 bar;"
    ptx = kernel_ptx(program(rounds, threads), declarations=declarations, target="sm_90a")
    shape = {"grid": 2 * blocks, "block": threads, "cluster": (blocks, 1, 1)}
    zeros = np.zeros((2 * blocks, threads, 2), np.uint32)
    together = launch(CHECKED, ptx, zeros, **shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CopyOrder, "sent", lambda *_: False)
        patch.setattr(AccessOrder, "_reach_in_order", lambda *_: False)
        alone = launch(CHECKED, ptx, zeros, **shape)
    assert together.execution.findings == alone.execution.findings
    assert np.array_equal(together.arrays[0], alone.arrays[0])
    assert not together.tally.differences(alone.tally)
