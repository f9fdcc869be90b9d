"""mbarriers: what each instruction does, and how warps and lanes wait, on each executor."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import ENGINE, ORACLE, Executor, kernel_ptx, launch

from gemmkit.emulator import load
from gemmkit.emulator.isa.mbarriers import MOST, Misuse, State, completes, updated
from gemmkit.emulator.isa.table import form_of
from gemmkit.errors import DeviceError

SHARED = ".shared .align 8 .b64 bars[4]; .shared .align 4 .b32 data[128];"
# Thread 0 initializes two objects, which expect 1 and 31 arrivals.
START = """mov.u32 %r10, bars;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
@%p0 mbarrier.init.shared::cta.b64 [%r10+8], 31;
bar.sync 0;
"""


def run(executor: Executor, body: str, *, block: int = 32) -> np.ndarray:
    ptx = kernel_ptx(START + body, declarations=SHARED, target="sm_90")
    return launch(executor, ptx, np.zeros(block, np.uint32), block=block).arrays[0]


# The state of an object


def test_a_state_survives_its_encoding() -> None:
    for state in (
        State(0, 1, 1),
        State(1, MOST, MOST, MOST),
        State(1, 0, 5, -MOST),
        State(0, 3, 0, -1),
    ):
        assert State.of(state.word) == state
        assert 0 <= state.word < 1 << 64


@given(
    st.lists(
        st.tuples(st.sampled_from(["arrive", "drop", "expect", "complete"]), st.integers(1, 40)),
        max_size=40,
    ),
    st.integers(1, 100),
)
def test_a_phase_completes_when_arrivals_and_bytes_are_all_there(
    operations: list[tuple[str, int]], count: int
) -> None:
    opcodes = {
        "arrive": "mbarrier.arrive.shared.b64",
        "drop": "mbarrier.arrive_drop.shared.b64",
        "expect": "mbarrier.expect_tx.shared.b64",
        "complete": "mbarrier.complete_tx.shared.b64",
    }
    word, phase, expected, pending, balance = State.initial(count).word, 0, count, count, 0
    for name, operand in operations:
        form = form_of(opcodes[name])
        assert form is not None
        if name in ("arrive", "drop") and operand > pending:
            with pytest.raises(Misuse, match="arrives with a count"):
                updated(form, word, operand)
            continue
        before, word = word, updated(form, word, operand)
        pending -= operand * (name in ("arrive", "drop"))
        expected -= operand * (name == "drop")
        balance += {"expect": operand, "complete": -operand}.get(name, 0)
        complete = pending == 0 and balance == 0
        assert completes(form, before, word) == complete
        if complete:
            phase, pending = phase ^ 1, expected
        assert State.of(word) == State(phase, pending, expected, balance)


# Instructions


def test_tokens_hold_the_pending_arrivals(executor: Executor) -> None:
    out = run(
        executor,
        """setp.lt.u32 %p1, %tid, 31;
        @%p1 mbarrier.arrive.release.cta.shared::cta.b64 %rd5, [%r10+8];
        @!%p1 mbarrier.arrive.shared.b64 %rd5, [%r10];
        mbarrier.pending_count.b64 %r1, %rd5;
        mbarrier.test_wait.shared::cta.b64 %p2, [%r10], %rd5;
        @%p1 mbarrier.test_wait.shared::cta.b64 %p2, [%r10+8], %rd5;
        selp.u32 %r2, 100, 0, %p2;
        add.u32 %r1, %r1, %r2;
        st.global.u32 [%at], %r1;""",
    )
    assert out.tolist() == [*(131 - lane for lane in range(31)), 101]


def test_dropped_arrivals_are_not_expected_again(executor: Executor) -> None:
    out = run(
        executor,
        """setp.lt.u32 %p1, %tid, 30;
        @%p1 mbarrier.arrive.shared::cta.b64 _, [%r10+8];
        setp.eq.u32 %p1, %tid, 31;
        @%p1 mbarrier.arrive_drop.shared::cta.b64 _, [%r10+8];
        @%p1 mbarrier.arrive.shared::cta.b64 %rd5, [%r10+8];
        mbarrier.pending_count.b64 %r1, %rd5;
        @%p1 st.global.u32 [%at], %r1;""",
    )
    assert out[31] == 30


def test_bytes_that_are_announced_must_arrive(executor: Executor) -> None:
    out = run(
        executor,
        """mov.u32 %r1, 0;
        @!%p0 bra END;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 64;
        mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10], 0;
        @%p2 add.u32 %r1, %r1, 1;
        mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 48;
        mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10], 0;
        @%p2 add.u32 %r1, %r1, 2;
        mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r10], 16;
        mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r10], 0;
        @%p2 add.u32 %r1, %r1, 4;
        mbarrier.test_wait.parity.relaxed.cluster.shared::cta.b64 %p2, [%r10], 1;
        @%p2 add.u32 %r1, %r1, 8;
        END: st.global.u32 [%at], %r1;""",
    )
    assert out.tolist() == [4] + 31 * [0]


def test_the_lowest_bit_of_a_parity_counts(executor: Executor) -> None:
    """Triton sign-extends a boolean to the operand."""
    out = run(
        executor,
        """mov.u32 %r1, 0;
        @!%p0 bra END;
        mov.u32 %r2, -1;
        mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10], %r2;
        @%p2 add.u32 %r1, %r1, 1;
        mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10], 2;
        @%p2 add.u32 %r1, %r1, 2;
        mbarrier.arrive.shared::cta.b64 _, [%r10];
        mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 6;
        @%p2 add.u32 %r1, %r1, 4;
        END: st.global.u32 [%at], %r1;""",
    )
    assert out.tolist() == [5] + 31 * [0]


def test_generic_addresses_name_the_same_objects(executor: Executor) -> None:
    out = run(
        executor,
        """cvt.u64.u32 %rd5, %r10;
        cvta.shared.u64 %rd5, %rd5;
        @%p0 mbarrier.inval.b64 [%rd5];
        @%p0 mbarrier.init.b64 [%rd5], 32;
        bar.sync 0;
        mbarrier.arrive.b64 %rd6, [%rd5];
        mbarrier.pending_count.b64 %r1, %rd6;
        st.global.u32 [%at], %r1;""",
    )
    assert out.tolist() == list(range(32, 0, -1))


MISUSES = {
    "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10], 2;":
        "too many arrivals: thread (0, 0, 0) of block (0, 0, 0) arrives with a count of 2 at an "
        "mbarrier in a phase of parity 0 with 1 of 1 arrivals pending, at byte 0 of 'bars', by "
        "'mbarrier.arrive.shared::cta.b64' at kernel.cu:6",
    "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10+16];":
        "invalid mbarrier: thread (0, 0, 0) of block (0, 0, 0) uses an mbarrier that is not "
        "initialized, at byte 16 of 'bars'",
    "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10+4];":
        "misaligned mbarrier: thread (0, 0, 0) of block (0, 0, 0) uses an mbarrier that is not "
        "aligned to 8 bytes, at byte 4 of 'bars'",
    "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10+65536];": "bytes of shared memory",
    "@%p0 mbarrier.arrive.b64 _, [%rd0];": "bytes of shared memory",
    "mov.u32 %r1, 0;\n@%p0 mbarrier.init.shared::cta.b64 [%r10+16], %r1;":
        "initializes an mbarrier with a count of 0; it must be 1 to 1,048,575",
    "@%p0 mbarrier.init.shared::cta.b64 [%r10+16], 1048576;":
        "initializes an mbarrier with a count of 1,048,576",
    "@%p0 mbarrier.inval.shared::cta.b64 [%r10];\n@%p0 mbarrier.arrive.shared.b64 _, [%r10];":
        "uses an mbarrier that was invalidated, at byte 0 of 'bars'",
    "@%p0 mbarrier.expect_tx.shared::cta.b64 [%r10], 1048575;\n"
    "@%p0 mbarrier.expect_tx.shared::cta.b64 [%r10], 16;":
        "announces 16 bytes to an mbarrier in a phase of parity 0 with 1 of 1 arrivals pending "
        "and a tx-count of 1,048,575 bytes; the tx-count must stay within ±1,048,575",
    "mov.u64 %rd5, 5;\nmbarrier.test_wait.shared::cta.b64 %p2, [%r10], %rd5;":
        "waits with 0x5, which no arrival returned",
    "@%p0 mbarrier.arrive.noComplete.shared::cta.b64 %rd5, [%r10], 1;":
        "arrives by .noComplete with the last 1 arrivals",
}  # fmt: skip


@pytest.mark.parametrize("body", MISUSES)
def test_misuse_is_refused_in_words(executor: Executor, body: str) -> None:
    with pytest.raises(DeviceError) as caught:
        run(executor, body)
    assert MISUSES[body] in str(caught.value)


# Waiting


def test_a_lane_may_wait_for_the_others_of_its_warp(executor: Executor) -> None:
    for kind in ("try_wait", "test_wait"):
        out = run(
            executor,
            f"""@%p0 bra WAIT;
            mbarrier.arrive.shared::cta.b64 _, [%r10+8];
            mov.u32 %r1, 8;
            bra END;
            WAIT: mbarrier.{kind}.parity.shared::cta.b64 %p2, [%r10+8], 0;
            @!%p2 bra WAIT;
            mov.u32 %r1, 7;
            END: st.global.u32 [%at], %r1;""",
        )
        assert out.tolist() == [7] + 31 * [8]


def test_registers_of_lanes_that_wait_are_kept(executor: Executor) -> None:
    # Lane 0 comes first and waits within a nested branch, while the others overwrite the same
    # registers.
    out = run(
        executor,
        """mul.lo.u32 %r1, %tid, 11;
        add.u32 %r2, %r1, 5;
        setp.lt.u32 %p1, %tid, 2;
        @%p1 bra LOW;
        add.u32 %r3, %tid, 1000;
        add.u32 %r4, %tid, 7;
        bra NEXT;
        NEXT: mbarrier.arrive.shared::cta.b64 _, [%r10+8];
        add.u32 %r2, %r2, %r3;
        add.u32 %r2, %r2, %r4;
        bra END;
        LOW: add.u32 %r3, %r1, 1;
        @%p0 bra FIRST;
        mov.u32 %r4, 9;
        mbarrier.arrive.shared::cta.b64 _, [%r10+8];
        bra JOIN;
        FIRST: add.u32 %r4, %r3, 1;
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10+8], 0;
        @!%p2 bra WAIT;
        add.u32 %r2, %r4, 100;
        JOIN: add.u32 %r2, %r2, %r3;
        END: st.global.u32 [%at], %r2;""",
    )
    wanted = [103, 28, *(13 * t + 1012 for t in range(2, 32))]
    assert out.tolist() == wanted


def test_a_failed_try_returns_if_only_the_warp_itself_can_go_on(executor: Executor) -> None:
    out = run(
        executor,
        """mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
        selp.u32 %r1, 1, 2, %p2;
        @%p0 mbarrier.arrive.shared::cta.b64 _, [%r10];
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0, 1000;
        @!%p2 bra WAIT;
        st.global.u32 [%at], %r1;""",
    )
    assert set(out.tolist()) == {2}


def test_waiting_takes_no_steps_and_polling_does() -> None:
    body = """setp.ge.u32 %p1, %tid, 32;
    @%p1 bra LATE;
    WAIT: mbarrier.{}.parity.shared::cta.b64 %p2, [%r10], 0;
    @!%p2 bra WAIT;
    bra END;
    LATE: mov.u32 %r1, 0;
    LOOP: add.u32 %r1, %r1, 1;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10], 0;
    setp.lt.u32 %p3, %r1, 50;
    @%p3 bra LOOP;
    setp.eq.u32 %p4, %tid, 32;
    @%p4 mbarrier.arrive.shared::cta.b64 _, [%r10];
    END:"""
    asked = {}
    for kind in ("try_wait", "test_wait"):
        ptx = kernel_ptx(START + body.format(kind), declarations=SHARED, target="sm_90")
        counts = []
        for executor in (ENGINE, ORACLE):
            outcome = launch(executor, ptx, np.zeros(64, np.uint32), block=64)
            counts.append(outcome.tally.executed.tolist())
        assert counts[0] == counts[1]
        place = next(index for index, form in enumerate(outcome.flow.forms) if kind in form.opcode)
        asked[kind] = counts[0][place]
    assert asked["try_wait"] == 1
    assert asked["test_wait"] > 40


DEADLOCK = """setp.ge.u32 %p1, %tid, 64;
@%p1 bra END;
setp.ge.u32 %p1, %tid, 32;
@%p1 bra SECOND;
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 32;
@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 16;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
@!%p2 bra WAIT;
bra END;
SECOND: setp.lt.u32 %p3, %tid, 40;
@%p3 mbarrier.arrive.shared::cta.b64 _, [%r10+8];
AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10+8], 0;
@!%p2 bra AGAIN;
END:"""


def test_a_deadlock_says_what_each_warp_waits_for(executor: Executor) -> None:
    with pytest.raises(DeviceError) as caught:
        run(executor, DEADLOCK, block=96)
    text = str(caught.value)
    for part in (
        "kernel.cu:12 for the phase of parity 0 of the mbarrier at byte 0 of 'bars' (1 of 1 arr",
        "kernel.cu:17 for the phase of parity 0 of the mbarrier at byte 8 of 'bars' (8 of 31 arr",
    ):
        assert part in text, text
    if executor is ENGINE:
        assert "16 of 32 announced bytes" in text
        assert text.endswith("warp 2 exited")


IN_TURN = """mov.u32 %r1, 0;
mov.u32 %r2, data;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
@%p2 bra END;
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10+8], 0;
@%p2 bra END;
add.u32 %r1, %r1, 1;
COUNTED
setp.lt.u32 %p2, %r1, LIMIT;
@%p2 bra WAIT;
END: st.global.u32 [%at], %r1;"""


def test_waits_for_several_mbarriers_in_turn_are_a_deadlock_too(executor: Executor) -> None:
    body = IN_TURN.replace("COUNTED", "").replace("LIMIT", "1000000000")
    with pytest.raises(DeviceError, match=r"byte [08] of 'bars'"):
        run(executor, body)


@pytest.mark.parametrize(("counted", "rounds"), [("", 15), ("st.shared.u32 [%r2], %r1;", 70)])
def test_waits_in_turn_may_give_up(executor: Executor, counted: str, rounds: int) -> None:
    """After a few rounds, or after more of them with something to do in each."""
    body = IN_TURN.replace("COUNTED", counted).replace("LIMIT", str(rounds))
    assert run(executor, body)[0] == rounds


def test_the_sanitizers_report_a_deadlock_with_the_same_words() -> None:
    ptx = kernel_ptx(START + DEADLOCK, declarations=SHARED, target="sm_90")
    found = sanitized(ptx, block=96)
    assert [each.kind for each in found] == ["deadlock"]
    assert "16 of 32 announced bytes" in found[0].message
    assert "warp 2 exited" in found[0].message


def test_the_sanitizers_report_misuse_once_per_place() -> None:
    ptx = kernel_ptx(
        START + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10], 2;",
        declarations=SHARED,
        target="sm_90",
    )
    (found,) = sanitized(ptx, grid=3)
    assert (found.check, found.kind, found.count) == ("synccheck", "too many arrivals", 3)
    assert (found.array, found.offset, found.here.line) == ("bars", 0, 6)


def sanitized(ptx: str, *, grid: int = 1, block: int = 32) -> tuple:
    executor = Executor(
        "sanitized",
        lambda text, flow, request, memory: load(text, flow.kernel.name).run(
            request, memory, sanitize=True
        ),
    )
    out = np.zeros(block, np.uint32)
    return launch(executor, ptx, out, grid=grid, block=block).execution.findings


def test_an_endless_poll_ends_at_the_step_limit() -> None:
    body = """WAIT: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10+8], 0;
    @!%p2 bra WAIT;"""
    ptx = kernel_ptx(START + body, declarations=SHARED, target="sm_90")
    limited = Executor(
        "limited",
        lambda text, flow, request, memory: load(text, flow.kernel.name).run(
            request, memory, max_steps=100_000
        ),
    )
    started = time.perf_counter()
    words = r"within 100,000 steps: .*polls at kernel.cu:6 for the phase .* \(0 of 31 arrivals\)"
    with pytest.raises(DeviceError, match=words):
        launch(limited, ptx, np.zeros(32, np.uint32))
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("executor", [ENGINE, ORACLE])
def test_a_comparison_joined_with_the_result_of_a_poll(executor: Executor) -> None:
    """One comparison for all lanes, and a predicate with a bit for each."""
    body = """mov.u32 %r1, 0;
    WAIT: add.u32 %r1, %r1, 1;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10+8], 0;
    setp.gt.or.u32 %p2, %r1, 20, %p2;
    @!%p2 bra WAIT;
    st.global.u32 [%at], %r1;"""
    assert run(executor, body).max() == 21


@pytest.mark.usefixtures("handles_interrupts")
def test_an_endless_poll_can_be_interrupted() -> None:
    # A thread that counts up to a limit does not do the same again.
    body = """WAIT: add.u32 %r1, %r1, 1;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10+8], 0;
    @%p2 bra DONE;
    setp.lt.u32 %p2, %r1, 0x7fffffff;
    @%p2 bra WAIT;
    DONE:"""
    ptx = kernel_ptx(START + body, declarations=SHARED, target="sm_90")
    limited = Executor(
        "limited",
        lambda text, flow, request, memory: load(text, flow.kernel.name).run(
            request, memory, max_steps=1_000_000_000
        ),
    )
    timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
    started = time.perf_counter()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        launch(limited, ptx, np.zeros(32, np.uint32))
    assert time.perf_counter() - started < 3


# Random programs


def random_program(rounds: list[tuple[int, int, int, bool]]) -> str:
    """In each round, lanes of a mask store and arrive at an object of their own, and lanes of
    another wait for it and load; which lanes, depends on the warp. `apart`: lanes that arrive do
    not wait, and the two sides of a branch meet after it."""
    lines = ["mov.u32 %r9, 0;", "shr.u32 %r8, %tid, 5;", "mad.lo.u32 %r8, %r8, 7, %tid;",
             "and.b32 %r8, %r8, 31;"]  # fmt: skip
    for number, (arrives, waits, kind, apart) in enumerate(rounds):
        name = ("try_wait", "test_wait")[kind]
        at = f"%r10+{8 * number}"
        arrive = [
            f"mul.lo.u32 %r1, %r9, {number + 3};", "add.u32 %r1, %r1, %tid;",
            "shl.b32 %r2, %tid, 2;", "mov.u32 %r3, data;", "add.u32 %r3, %r3, %r2;",
            f"st.shared.u32 [%r3+{512 * number}], %r1;",
            f"mbarrier.arrive.shared::cta.b64 _, [{at}];",
        ]  # fmt: skip
        wait = [
            f"WAIT{number}: mbarrier.{name}.parity.shared::cta.b64 %p2, [{at}], 0;",
            f"@!%p2 bra WAIT{number};", "xor.b32 %r2, %tid, 37;", "shl.b32 %r2, %r2, 2;",
            "mov.u32 %r3, data;", "add.u32 %r3, %r3, %r2;",
            f"ld.shared.u32 %r4, [%r3+{512 * number}];", "add.u32 %r9, %r9, %r4;",
        ]  # fmt: skip
        for predicate, mask in (("%p3", arrives), ("%p4", waits)):
            lines += [f"mov.u32 %r5, {mask};", "shr.u32 %r5, %r5, %r8;", "and.b32 %r5, %r5, 1;"]
            lines.append(f"setp.eq.u32 {predicate}, %r5, 1;")
        join = f"JOIN{number}"
        if apart:
            # Lanes that take a branch run first: here those that wait for the others.
            lines += [f"@!%p3 bra REST{number};", *arrive, f"bra {join};"]
            lines += [f"REST{number}: @!%p4 bra {join};", *wait, f"{join}:"]
        else:
            lines += [f"@!%p3 bra NONE{number};", *arrive, f"NONE{number}:"]
            lines += [f"@!%p4 bra {join};", *wait, f"{join}:"]
    lines.append("st.global.u32 [%at], %r9;")
    return "\n".join(lines)


MASKS = st.integers(0, (1 << 32) - 1)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(MASKS.filter(bool), MASKS, st.sampled_from([0, 0, 1]), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 4),
)
def test_random_programs_agree(rounds: list[tuple[int, int, int, bool]], warps: int) -> None:
    start = ["mov.u32 %r10, bars;", "setp.ne.u32 %p0, %tid, 0;", "@%p0 bra READY;"]
    for number, (arrives, *_) in enumerate(rounds):
        count = arrives.bit_count() * warps
        start.append(f"mbarrier.init.shared::cta.b64 [%r10+{8 * number}], {count};")
    body = "\n".join([*start, "READY: bar.sync 0;", random_program(rounds)])
    shared = ".shared .align 8 .b64 bars[5]; .shared .align 4 .b32 data[640];"
    ptx = kernel_ptx(body, declarations=shared, target="sm_90")
    out = np.zeros(32 * warps, np.uint32)
    wanted = launch(ORACLE, ptx, out, block=32 * warps)
    for seed in range(3):
        mine = launch(shuffled(seed), ptx, out, block=32 * warps)
        assert mine.arrays[0].tolist() == wanted.arrays[0].tolist()
        if seed == 0:
            assert mine.tally.executed.tolist() == wanted.tally.executed.tolist()
            assert mine.tally.lanes.tolist() == wanted.tally.lanes.tolist()


def shuffled(seed: int) -> Executor:
    return Executor(
        f"seed {seed}",
        lambda ptx, flow, request, memory: load(ptx, flow.kernel.name).run(
            request, memory, warp_seed=seed
        ),
    )
