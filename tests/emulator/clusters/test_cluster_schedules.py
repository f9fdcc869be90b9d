"""Schedules for the blocks of a cluster: engine and oracle follow them in the same way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import following, kernel_ptx, launch

from gemmkit.emulator.schedule import Landing, Place, Run, Schedule, Step
from gemmkit.errors import DeviceError

# Two blocks of two warps. Each warp takes tickets from a counter in the block of rank 0, which show
# in which order the warps ran, and sends one to the peer by st.async.
TICKET = "@%p0 atom.shared::cluster.add.u32 {}, [%r13], 1;"
PTX = kernel_ptx(
    f"""mov.u32 %r10, count; mov.u32 %r11, full; mov.u32 %r12, slots; mov.u32 %r1, %cluster_ctarank;
shr.u32 %r2, %tid, 5; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r4, %r3, 2, %r2; xor.b32 %r6, %r1, 1;
mul.wide.u32 %at, %r4, 32; add.s64 %at, %at, %rd0; mapa.shared::cluster.u32 %r13, %r10, 0;
mapa.shared::cluster.u32 %r14, %r12, %r6; mapa.shared::cluster.u32 %r15, %r11, %r6;
and.b32 %r7, %tid, 31; setp.eq.u32 %p0, %r7, 0; shl.b32 %r8, %r2, 2; add.u32 %r14, %r14, %r8;
setp.eq.u32 %p1, %tid, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r11], 1;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 8;
{TICKET.format("%r20")}
barrier.cluster.arrive.aligned;
{TICKET.format("%r21")}
barrier.cluster.wait.aligned;
{TICKET.format("%r22")}
bar.sync 0;
{TICKET.format("%r23")}
@%p0 st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r14], %r23, [%r15];
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r11], 0;
@!%p2 bra WAIT;
{TICKET.format("%r24")}
ld.shared.v2.u32 {{%r25, %r26}}, [%r12];
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
@%p0 st.global.v4.u32 [%at], {{%r20, %r21, %r22, %r23}};
@%p0 st.global.v4.u32 [%at+16], {{%r24, %r25, %r26, %r4}};""",
    declarations=(
        ".shared .align 4 .b32 count; .shared .align 8 .b32 slots[2]; .shared .align 8 .b64 full;"
    ),
    target="sm_90a",
)
LINES = {"init": 7, "arrive": 10, "wait": 12, "sync": 14, "send": 16, "full": 17, "leave": 21}

Found = list[int] | str


def followed(schedule: Schedule) -> tuple[Found, Found]:
    """What both executors return under a schedule, of two clusters: tickets and counts, or the
    error."""
    found: list[Found] = []
    for each in following(schedule):
        zeros = np.zeros((8, 8), np.uint32)
        try:
            done = launch(each, PTX, zeros, grid=4, block=64, cluster=(2, 1, 1))
        except DeviceError as error:
            found.append(str(error))
            continue
        counts = [*done.tally.executed.tolist(), *done.tally.lanes.tolist()]
        found.append([*done.arrays[0].reshape(-1).tolist(), *counts])
    engine, plain = found
    return engine, plain


def tickets(schedule: str) -> list[int]:
    """The first eight values of each warp of the second cluster."""
    engine, plain = followed(Schedule.parse(schedule))
    assert engine == plain
    assert not isinstance(engine, str), engine
    return engine[32:64]


def test_the_steps_order_the_warps_of_both_blocks() -> None:
    at = LINES["arrive"]
    steps = f"w1r1@kernel.cu:{at},w0@kernel.cu:{at},w0r1@kernel.cu:{at},w1@kernel.cu:{at}"
    first = tickets(f"b2.0.0,{steps}")[::8]
    assert first == [1, 3, 2, 0]
    # Any block of the cluster stands for it, and the other cluster runs in the default order.
    assert tickets(f"b3.0.0,{steps}")[::8] == first
    assert tickets("b0.0.0")[::8] == tickets(f"b0.0.0,{steps}")[::8] != first


def test_a_warp_waits_for_the_cluster_in_its_step() -> None:
    steps = ",".join(f"w{warp}r1@kernel.cu:{LINES['wait']}+" for warp in (1, 0))
    found = tickets(f"b2.0.0,{steps}")
    # By warp: the tickets before the arrival and before the wait.
    assert [found[8 * warp : 8 * warp + 2] for warp in (3, 2)] == [[0, 1], [2, 3]]


def test_a_copy_to_a_peer_takes_effect_at_its_step() -> None:
    ready = [f"w{warp}r{rank}@kernel.cu:{LINES['sync']}+" for rank in (0, 1) for warp in (0, 1)]
    meeting = [f"w{warp}r{rank}@kernel.cu:{LINES['wait']}+" for rank in (0, 1) for warp in (0, 1)]
    sent = [f"w{warp}r1@kernel.cu:{LINES['full']}+" for warp in (0, 1)]
    steps = [*meeting, *ready, *sent, "w0@kernel.cu:17+", "c1t32r1", "w1@kernel.cu:17+", "c1t0r1"]
    late = tickets("b2.0.0," + ",".join(steps))
    # Both warps of rank 0 have what was sent, though one asked before it had come.
    assert late[5:7] == late[13:15] == [late[19], late[27]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w0r1@end", "step 1 of the schedule, 'w0r1@end', is not possible: warp 0 of rank 1 waits"),
        ("w0r2@end", "the cluster has no block of rank 2"),
        ("w2r1@end", "the block has 2 warps"),
        ("c1t0r1", "thread 0 has not issued that copy"),
        ("b4.0.0", "for block (4, 0, 0); the grid is (4, 1, 1)"),
    ],
)
def test_a_step_that_is_not_possible_in_a_cluster(text: str, message: str) -> None:
    for found in followed(Schedule.parse(text)):
        assert isinstance(found, str)
        assert message in found


# The course of a warp, by lines up to or through which (`+`) a step can lead.
COURSE = ("arrive", "arrive+", "wait+", "sync", "sync+", "send", "send+", "full+", "leave")
WARPS = [(warp, rank) for rank in (0, 1) for warp in (0, 1)]


def is_open(target: str, warp: int, at: list[int], landed: set[int]) -> bool:
    """Whether a warp gets to a place of its course when the others are where they are."""
    passed = {name: [COURSE.index(name) <= each for each in at] for name in ("arrive+", "sync+")}
    block, peer = (slice(first, first + 2) for first in (warp // 2 * 2, 2 - warp // 2 * 2))
    if target == "sync":
        return all(passed["arrive+"])
    if target == "send":
        return all(passed["sync+"][block])
    return target != "leave" or {*range(4)[peer]} <= landed


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Steps that are possible: warps in any order, each as far as it gets, and copies that take
    effect late."""
    late = draw(st.sets(st.sampled_from(range(4))))
    at, landed, steps = [-1] * 4, set[int](), list[Step]()
    for _ in range(draw(st.integers(0, 24))):
        due = [("land", each) for each in late - landed if at[each] >= COURSE.index("send+")]
        ready = [
            (COURSE[at[each] + 1], each)
            for each in range(4)
            if at[each] + 1 < len(COURSE) and is_open(COURSE[at[each] + 1], each, at, landed)
        ]
        if not due + ready:
            break
        name, each = draw(st.sampled_from([*due, *ready]))
        warp, rank = WARPS[each]
        if name == "land":
            steps.append(Landing(1, 32 * warp, rank))
            landed.add(each)
            continue
        at[each] += 1
        if name == "send+" and each not in late:
            landed.add(each)
        place = Place("kernel.cu", LINES[name.rstrip("+")], through=name.endswith("+"))
        steps.append(Run(warp, place, rank))
    sent = [each for each in late - landed if at[each] >= COURSE.index("send+")]
    steps += [Landing(1, 32 * WARPS[each][0], WARPS[each][1]) for each in sent]
    return Schedule((2, 0, 0), tuple(steps))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(schedules())
def test_random_schedules_agree(schedule: Schedule) -> None:
    engine, plain = followed(schedule)
    assert not isinstance(engine, str), (str(schedule), engine)
    assert engine == plain


_STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        Run,
        st.integers(0, 1),
        st.builds(
            Place,
            st.just("kernel.cu"),
            st.sampled_from(sorted(LINES.values())),
            through=st.booleans(),
        ),
        st.integers(0, 1),
    ),
    st.builds(Landing, st.just(1), st.sampled_from([0, 32]), st.integers(0, 1)),
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(_STEPS, min_size=1, max_size=5, unique=True))
def test_steps_in_any_order_agree_also_in_their_errors(steps: list[Step]) -> None:
    engine, plain = followed(Schedule((2, 0, 0), tuple(steps)))
    assert engine == plain
