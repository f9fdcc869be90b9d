"""What-if curves: the steps of a known board, and that they hang together for any launch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmkit.analysis.occupancy import occupancy
from gemmkit.analysis.what_if import Step, what_if
from gemmkit.gpu import BOARDS, KIB, find_board

H100 = find_board("H100")


def test_registers_of_256_threads_on_an_h100():
    seen = what_if(H100, registers=122, threads=256, shared_bytes=16640).registers
    assert [(step.first, step.last, step.theoretical) for step in seen.steps()] == [
        (1, 32, 1.0),
        (33, 40, 0.75),
        (41, 48, 0.625),
        (49, 64, 0.5),
        (65, 80, 0.375),
        (81, 128, 0.25),
        (129, 255, 0.125),
    ]
    assert seen.next_gain == Step(65, 80, 0.375)
    assert seen.next_loss == Step(129, 255, 0.125)


def test_shared_memory_steps_with_the_reserved_kibibyte():
    seen = what_if(H100, registers=32, threads=1024, shared_bytes=113 * KIB).shared_bytes
    assert [(step.last, step.theoretical) for step in seen.steps()] == [
        (113 * KIB, 1.0),
        (227 * KIB, 0.5),
    ]
    assert seen.next_gain is None


def test_block_sizes_that_do_not_fit_the_registers_have_none():
    seen = what_if(H100, registers=122, threads=256, shared_bytes=0).threads
    assert {point.value for point in seen.points if not point.theoretical} == set(
        range(544, 1025, 32)
    )


def test_a_value_between_the_units_is_a_point_too():
    seen = what_if(H100, registers=40, threads=100, shared_bytes=1001)
    assert seen.threads.here.value == 100
    assert seen.shared_bytes.here.value == 1001
    assert seen.threads.here in seen.threads.points


@given(
    board=st.sampled_from(sorted(BOARDS)),
    registers=st.integers(1, 255),
    threads=st.integers(1, 1024),
    shared_bytes=st.integers(0, 48 * KIB),
)
def test_curves_hang_together(board, registers, threads, shared_bytes):
    spec = BOARDS[board]
    seen = what_if(spec, registers=registers, threads=threads, shared_bytes=shared_bytes)
    here = occupancy(
        spec, registers=registers, threads=threads, shared_bytes=shared_bytes, blocks=1
    )
    assert seen.here == here
    for curve in seen.curves:
        assert curve.here.theoretical == pytest.approx(here.theoretical)
        steps = curve.steps()
        values = [point.value for point in curve.points]
        assert (steps[0].first, steps[-1].last) == (values[0], values[-1])
        assert all(a.last < b.first for a, b in itertools.pairwise(steps))
        assert curve.next_gain is None or curve.next_gain.theoretical > here.theoretical
        assert curve.next_loss is None or curve.next_loss.theoretical < here.theoretical
    for curve in (seen.registers, seen.shared_bytes):
        falling = [step.theoretical for step in curve.steps()]
        assert falling == sorted(falling, reverse=True)
