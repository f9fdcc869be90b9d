"""Schedules as text, and that engine and oracle follow them in the same way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import following, kernel_ptx, launch

from gemmkit.emulator.schedule import Landing, Place, Run, Schedule
from gemmkit.errors import DeviceError, UsageError

_SMALL = st.integers(0, 999)
_FEW = st.integers(0, 3)
_PLACES = st.builds(
    Place, st.text(min_size=1, max_size=12), st.integers(1, 9999), st.integers(1, 99), st.booleans()
)
_RUNS = st.builds(Run, _SMALL, st.none() | _PLACES, st.integers(0, 7)) | st.builds(
    Run, _FEW, st.none(), st.integers(0, 2)
)
_LANDINGS = st.builds(Landing, st.integers(1, 999), _SMALL, st.integers(0, 7))


@given(
    st.tuples(_SMALL, _SMALL, _SMALL),
    st.lists(_RUNS, max_size=9),
    st.lists(_LANDINGS, max_size=3, unique=True),
)
def test_the_text_holds_the_whole_schedule(
    block: tuple[int, int, int], runs: list[Run], landings: list[Landing]
) -> None:
    schedule = Schedule(block, (*runs, *landings))
    text = str(schedule)
    assert Schedule.parse(text) == schedule
    # Nothing that a shell would interpret.
    assert set(text) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-~%:,@+"
    )


def test_what_may_be_left_out() -> None:
    assert Schedule.parse("w4@a/k.cu:50") == Schedule((0, 0, 0), (Run(4, Place("a/k.cu", 50)),))
    assert Schedule.parse("b1.2.3") == Schedule((1, 2, 3), ())


def test_ranges_of_warps_and_ranks() -> None:
    text = "b0.0.0,w0-3@k.cu:5+,w0-1r0-2@end,w7@end,c1t0,w3r1@end,w2r1@end"
    place = Place("k.cu", 5, through=True)
    runs = [Run(warp, place) for warp in range(4)]
    runs += [Run(warp, None, rank) for rank in range(3) for warp in range(2)]
    rest = (Run(7, None), Landing(1, 0), Run(3, None, 1), Run(2, None, 1))
    assert Schedule.parse(text) == Schedule((0, 0, 0), (*runs, *rest))
    assert str(Schedule.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a step is empty"),
        ("w0@end,", "a step is empty"),
        ("w0", "'w0' is not a step"),
        ("w0@k.cu", "is not a step"),
        ("w0@k.cu:0", "is not a step"),
        ("w0@k.cu:07", "is not a step"),
        ("w0@k.cu:7x0", "is not a step"),
        ("w-1@end", "is not a step"),
        ("W0@end", "is not a step"),
        ("w0@end,b0.0.0", "'b0.0.0' is not a step"),
        ("w0@k k.cu:7", "is not a step"),
        ("w0@%6b.cu:7", "not percent-encoded"),
        ("w0@%ff.cu:7", "not percent-encoded"),
        ("c0t1", "is not a step"),
        ("c1t1,c1t1", "takes effect twice"),
        ("w3-2@end", "in 'w3-2@end' a range is reversed or too long"),
        ("w0-999999999@end", "a range is reversed or too long"),
        ("w0r1-0@end", "a range is reversed or too long"),
    ],
)
def test_a_text_that_is_no_schedule(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Schedule.parse(text)


# Each warp stores its number, or waits for another one; a thread stores by bulk copies.
PTX = kernel_ptx(
    """mov.u32 %r10, tile;
mov.u32 %r11, full;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r11], 32;
bar.sync 0;
shr.u32 %r1, %tid, 5;
st.shared.u32 [%r10], %r1;
fence.proxy.async;
setp.eq.u32 %p1, %r1, 1;
@%p1 mbarrier.arrive.shared::cta.b64 _, [%r11];
setp.eq.u32 %p2, %r1, 2;
@!%p2 bra STORE;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], 0;
@!%p3 bra WAIT;
STORE: ld.shared.u32 %r2, [%r10];
st.global.u32 [%at], %r2;
setp.ne.u32 %p4, %tid, 64;
@%p4 bra END;
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 16;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
st.shared.u32 [%r10], 7;
END: bar.sync 1;""",
    pointers=2,
    declarations=".shared .align 16 .b32 tile[4]; .shared .align 8 .b64 full;",
    target="sm_90",
)


def followed(text: str) -> list[list[int] | str]:
    """What both executors return under a schedule: results and counts, or the error."""
    schedule = Schedule.parse(text)
    found: list[list[int] | str] = []
    for each in following(schedule):
        try:
            done = launch(each, PTX, np.zeros(96, np.uint32), np.zeros(4, np.uint32), block=96)
        except DeviceError as error:
            found.append(str(error))
            continue
        values = [*done.arrays[0][::32].tolist(), int(done.arrays[1][0])]
        found.append([*values, *done.tally.executed.tolist(), *done.tally.lanes.tolist()])
    return found


START = "w0@kernel.cu:5+,w1@kernel.cu:5+,w2@kernel.cu:5+"
SCHEDULES = {
    "b0.0.0": [0, 1, 2, 2],
    f"{START},w2@kernel.cu:13+,w1@kernel.cu:23,w0@kernel.cu:23": [0, 1, 0, 0],
    f"{START},w0@kernel.cu:8,w1@kernel.cu:8,w0@kernel.cu:23": [1, 1, 2, 2],
    f"{START},w1@kernel.cu:23,w2@kernel.cu:19,w0@kernel.cu:8": [0, 1, 2, 0],
    f"{START},w1@kernel.cu:23,w2@kernel.cu:20,c1t64": [0, 1, 2, 2],
    # The copy has read its source at the wait, before it is overwritten.
    f"{START},w1@kernel.cu:23,w2@kernel.cu:23,c1t64": [0, 1, 2, 2],
    f"{START},w1@kernel.cu:23,w2@kernel.cu:20,w0@kernel.cu:8,c1t64": [0, 1, 2, 0],
}


@pytest.mark.parametrize("text", SCHEDULES)
def test_a_schedule_determines_the_execution(text: str) -> None:
    engine, plain = followed(text)
    assert engine == plain
    assert engine[:4] == SCHEDULES[text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w0@end", "step 1 of the schedule, 'w0@end', is not possible: warp 0 waits at"),
        ("w0@kernel.cu:8", "warp 0 waits at kernel.cu:5"),
        (f"{START},w0@kernel.cu:8x2", "warp 0 waits at kernel.cu:23"),
        ("w3@end", "the block has 3 warps"),
        ("w0@kernel.cu:999", "the kernel has no code at kernel.cu:999"),
        ("w0@other.cu:8", "the kernel has no code at other.cu:8"),
        ("w0r1@end", "the cluster has no block of rank 1"),
        (f"{START},c1t64", "thread 64 has not issued that copy"),
        ("b1.0.0", r"for block \(1, 0, 0\); the grid is \(1, 1, 1\)"),
    ],
)
def test_a_step_that_is_not_possible(text: str, message: str) -> None:
    for found in followed(text):
        assert isinstance(found, str)
        assert message.replace("\\", "") in found
