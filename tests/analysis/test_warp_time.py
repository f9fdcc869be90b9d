"""One warp's time: what latency it meets, and that software pipelines hide it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gemmkit.analysis.block_profile import BlockProfile
from gemmkit.analysis.machine import machine_of
from gemmkit.analysis.warp_time import Segment, issue_cost, segments
from gemmkit.gpu import find_board
from gemmkit.jit.sass import disassemble, disassembler

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


@pytest.mark.parametrize("name", ["async_copy"])
def test_a_software_pipeline_hides_the_latency(profile_of, name):
    near, far = (
        sum(each.latency for each in in_loop(profile_of(name), latency)) for latency in (NEAR, FAR)
    )
    assert far == near


def test_loads_that_ptxas_moves_to_the_end_of_the_loop_are_waited_for(profile_of):
    """The PTX of double_buffered loads at the top of its loop; the machine code does so late."""
    near, far = (
        sum(each.latency for each in in_loop(profile_of("double_buffered"), latency))
        for latency in (NEAR, FAR)
    )
    assert near <= far <= near + FAR - NEAR + 1


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
    profile = profile_of("double_buffered")
    cost: dict[str, set[float]] = {}
    for number, action in enumerate(profile.actions):
        cost.setdefault(action.form.opcode, set()).add(issue_cost(profile, number, MACHINE))
    assert cost["fma.rn.f32"] == {MACHINE.ffma_issue}
    assert cost["add.s64"] == {2.0}
    assert cost["cvta.to.global.u64"] == {0.0}
    assert cost["st.shared.f32"] == {1.0}
    # Around the loop's end, and over single accesses.
    assert cost["bra"] == {0.0, 1.0}


@pytest.mark.parametrize("name", ["shared_tiling", "coarsening_1d", "conflict_free", "async_copy"])
def test_issue_slots_of_the_main_loop_are_near_its_machine_instructions(profile_of, name):
    if disassembler() is None:
        pytest.skip("needs nvdisasm")
    profile = profile_of(name)
    plain = replace(MACHINE, ffma_issue=1.0)
    slots = sum(
        issue_cost(profile, number, plain)
        for each in in_loop(profile, NEAR)
        for number in each.instructions
    )
    assert slots == pytest.approx(longest_loop(disassemble(profile.binary.cubin)), rel=0.12)


def longest_loop(sass: str) -> int:
    """Instructions between a label and a branch back to it, at most."""
    labels: dict[str, int] = {}
    count = longest = 0
    for line in sass.splitlines():
        label = re.match(r"\.(L_x_\d+):", line)
        if label:
            labels[label[1]] = count
        elif re.search(r"/\*[0-9a-f]{4,}\*/", line):
            count += 1
            back = re.search(r"BRA.*`\(\.(L_x_\d+)\)", line)
            if back and back[1] in labels:
                longest = max(longest, count - labels[back[1]])
    return longest
