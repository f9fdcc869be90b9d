"""The engine diverges and reconverges lanes as the oracle does."""

from __future__ import annotations

import numpy as np
import pytest
from control_flow_programs import THREAD_WORDS, program
from launching import ENGINE, ORACLE, launch

from gemmkit.emulator.codegen import arithmetic
from gemmkit.emulator.codegen import compile as compiling
from gemmkit.emulator.codegen.analysis import Analysis
from gemmkit.emulator.codegen.operands import actions_of
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Register
from gemmkit.emulator.ptx.parser import parse

PER_TEST = 5


@pytest.mark.parametrize("start", range(0, 40, PER_TEST))
@pytest.mark.sample(5)
def test_any_control_flow(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second program as compact as large ones are."""
    parted = 0
    for seed in range(start, start + PER_TEST):
        monkeypatch.setattr(compiling, "COMBINED_INSTRUCTIONS", 0 if seed % 2 else 10**6)
        text = program(seed)
        arguments = (np.zeros(200 * THREAD_WORDS, np.uint32), np.uint32(3), np.uint32(seed))
        engine, oracle = (
            launch(each, text, *arguments, grid=2, block=100) for each in (ENGINE, ORACLE)
        )
        assert np.array_equal(engine.arrays[0], oracle.arrays[0]), f"seed {seed}"
        assert engine.tally.differences(oracle.tally) == {}, f"seed {seed}"
        parted += int(engine.tally.divergent.sum())
    assert parted > 0


def analysis(body: str) -> Analysis:
    text = f"""
    .version 8.5
    .target sm_90
    .address_size 64
    .visible .entry k(.param .u32 n)
    {{
        .reg .b32 %t, %n, %i, %x, %y;
        .reg .pred %p, %q;
        ld.param.u32 %n, [n];
        mov.u32 %t, %tid.x;
        {body}
        ret;
    }}
    """
    (kernel,) = parse(text).kernels.values()
    flow = ControlFlow.of(kernel)
    return Analysis(flow, actions_of(flow), arithmetic.scalar_native)


def held(found: Analysis, names: int) -> set[str]:
    return {register.name for register, place in found.registers.items() if names >> place & 1}


class TestAnalysis:
    def test_a_loop_over_a_parameter_keeps_lanes_together(self) -> None:
        found = analysis(
            """
            mov.u32 %i, 0;
            AGAIN: add.u32 %x, %x, %t;
            add.u32 %i, %i, 1;
            setp.lt.u32 %p, %i, %n;
            @%p bra AGAIN;
            """
        )
        assert found.regions == ()
        assert held(found, found.varying) == {"%t", "%x"}
        assert held(found, found.scalar) == {"%n", "%i", "%p"}

    def test_a_loop_that_lanes_leave_one_by_one(self) -> None:
        """`i` is the same in all lanes that run, and differs once they have left the loop."""
        found = analysis(
            """
            mov.u32 %i, 0;
            AGAIN: add.u32 %i, %i, 1;
            setp.lt.u32 %p, %i, %t;
            @%p bra AGAIN;
            mov.u32 %x, %i;
            setp.eq.u32 %q, %x, %n;
            """
        )
        (region,) = found.regions
        assert held(found, found.varying) == {"%t", "%i", "%p", "%x", "%q"}
        assert found.bit(Register("%i", "b32")) & found.shared_in(region.branch)

    def test_writes_under_a_divergent_branch_spare_waiting_lanes(self) -> None:
        found = analysis(
            """
            mov.u32 %x, 1;
            mov.u32 %y, 2;
            setp.lt.u32 %p, %t, 5;
            @%p bra OTHER;
            add.u32 %x, %x, %n;
            mov.u32 %i, %x;
            bra DONE;
            OTHER: add.u32 %y, %y, %n;
            DONE: add.u32 %x, %x, %y;
            """
        )
        (region,) = found.regions
        fall, taken = min(region.fall), min(region.taken)
        assert held(found, found.shared_in(fall)) == {"%x", "%y"}
        assert held(found, found.shared_in(taken)) >= {"%x", "%y"}
        assert held(found, found.shared_in(region.branch)) == set()

    def test_a_uniform_branch_in_a_divergent_region_is_uniform(self) -> None:
        found = analysis(
            """
            setp.lt.u32 %p, %t, 5;
            @%p bra DONE;
            setp.lt.u32 %q, %n, 7;
            @%q bra DONE;
            mov.u32 %x, %n;
            DONE: mov.u32 %y, 0;
            """
        )
        assert len(found.regions) == 1
        assert {"%q", "%n"} <= held(found, found.scalar)
