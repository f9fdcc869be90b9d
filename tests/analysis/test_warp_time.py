"""One warp's time: what latency it meets, and that software pipelines hide it."""

from __future__ import annotations

import pytest

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.machine import machine_of
from gemmkit.analysis.warp_time import Segment, issue_cost, segments
from gemmkit.gpu import find_board

H100 = find_board("H100")
MACHINE = machine_of(H100)
NEAR, FAR = 300.0, 900.0


def in_loop(profile: BlockProfile, latency: float) -> list[Segment]:
    turns = profile.executed(512) / profile.warps
    found = segments(profile, MACHINE, latency)
    return [each for each in found if turns[each.head] > 8]


def test_a_loop_that_fetches_and_waits_takes_the_whole_latency(profile_of):
    near, far = (
        sum(each.latency for each in in_loop(profile_of("conflict_free"), latency))
        for latency in (NEAR, FAR)
    )
    assert far - near == pytest.approx(FAR - NEAR)


@pytest.mark.parametrize("name", ["double_buffered", "async_copy"])
def test_a_software_pipeline_hides_the_latency(profile_of, name):
    near, far = (
        sum(each.latency for each in in_loop(profile_of(name), latency)) for latency in (NEAR, FAR)
    )
    assert far == near


def test_a_pipeline_does_not_hide_what_is_longer_than_its_turn(profile_of):
    slow = sum(each.latency for each in in_loop(profile_of("double_buffered"), 10_000.0))
    assert slow > 9_000


def test_barriers_part_a_loop(profile_of):
    parts = in_loop(profile_of("conflict_free"), NEAR)
    assert len(parts) == 3
    multiply_adds = [
        sum(profile_of("conflict_free").flow.forms[number].opcode_class == "fma" for number in
            each.instructions)
        for each in parts
    ]  # fmt: skip
    assert multiply_adds == [0, 16 * 64, 0]


def test_loads_of_an_unrolled_loop_share_one_latency(profile_of):
    (loop,) = in_loop(profile_of("naive"), FAR)
    assert FAR / profile_of("naive").unroll < loop.latency < FAR / 2


def test_each_instruction_that_runs_is_in_one_segment(profile_of):
    for name in ("naive", "conflict_free", "double_buffered", "async_copy"):
        profile = profile_of(name)
        numbers = [n for each in segments(profile, MACHINE, NEAR) for n in each.instructions]
        ran = [n for n, times in enumerate(profile.executed_at[1]) if times > 0]
        assert sorted(numbers) == ran


def test_issue_slots_follow_the_stated_conversion(profile_of):
    actions = profile_of("double_buffered").actions
    cost = {}
    for action in actions:
        cost.setdefault(action.form.opcode, set()).add(issue_cost(action, MACHINE))
    assert cost["fma.rn.f32"] == {MACHINE.ffma_issue}
    assert cost["add.s64"] == {2.0}
    assert cost["cvta.to.global.u64"] == {0.0}
    assert cost["st.shared.f32"] == {1.0}
