"""Warp-specialized kernels: whose time counts, what each tile adds, and epilogues as measured."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gemmkit.analysis.block_profile import BlockProfile, profile_block
from gemmkit.analysis.model import predict, predict_profile
from gemmkit.analysis.prediction import Prediction
from gemmkit.analysis.specialized import TileTimes, multiplying_warps
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.dispatch.candidate import Candidate
from gemmkit.dispatch.costed import CostedCandidate
from gemmkit.emulator.isa.warpgroup_forms import OPERATION
from gemmkit.gpu import find_board
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.readme import read_records

H100 = find_board("H100")
TWO_SMS = replace(H100, sm_count=2)
WGMMA = find_kernel("gemm_wgmma")
SMALL = WGMMA.configure({"BM": 64, "BN": 128, "consumers": 1, "cluster_m": 1})
IN_TURN = WGMMA.configure({"BM": 64, "BN": 128, "pingpong": 2, "cluster_m": 1})
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
FUSED = {
    (record.problem.m, record.problem.epilogue): record
    for record in read_records(RESULTS / "h200-half-fused.json")
}


def bf16(m: int, n: int, k: int, epilogue: str | None = None, **more: float) -> GemmProblem:
    return Asked(dtype="bfloat16", epilogue=epilogue, **more).problem((m, n, k))


@cache
def profiled(epilogue: str | None = None) -> BlockProfile:
    """One team's block at 1024³."""
    return profile_block(WGMMA, bf16(1024, 1024, 1024, epilogue), H100, config=SMALL)


def predicted(epilogue: str | None = None) -> Prediction:
    return predict_profile(profiled(epilogue), bf16(1024, 1024, 1024, epilogue), H100)


def test_one_team_finishes_between_tiles_and_two_under_each_other():
    assert TileTimes(50, 400, 10, tiles=4, teams=1).total == 50 + 400 + 4 * 10
    assert TileTimes(50, 400, 10, tiles=4, teams=2).total == 50 + 400 + 10
    assert TileTimes(50, 400, 300, tiles=4, teams=2).total == 50 + 2 * (100 + 300)
    assert TileTimes(50, 100, 10, tiles=1, teams=2).total == TileTimes(50, 100, 10, 1, 1).total


@pytest.mark.parametrize("config", [SMALL, IN_TURN], ids=["one team", "two teams"])
@pytest.mark.sample(2)
def test_counts_of_several_tiles_are_those_of_a_run(config):
    """Four tiles for each of two blocks."""
    problem = bf16(256, 256, 192, beta=1.0)
    profile = profile_block(WGMMA, problem, TWO_SMS, config=config)
    assert (profile.tiles, profile.visits, profile.teams) == (4, 4, config["pingpong"])
    device = EmulatedDevice(TWO_SMS)
    plan = WGMMA.plan(problem, config, TWO_SMS)
    operands = Operands.zeros(device, problem)
    flow, tally = device.count(profile.binary, plan, bind_arguments(problem, operands))
    waits = [form.operation.startswith("mbarrier_t") for form in flow.forms]
    stepping = profile.executed_at[1] > profile.executed_at[0]
    own = np.zeros(len(waits), bool)
    own[list(multiplying_warps(profile))] = True
    # What a warp executes while it waits depends on the order in which warps run.
    settled = own & ~np.array(waits)
    found, expected = profile.executed(problem.k), tally.executed / plan.blocks
    assert settled.sum() > 100
    assert (settled & stepping).any()
    np.testing.assert_allclose(found[settled], expected[settled], atol=1e-9)


def test_what_brings_operands_is_not_in_the_way_of_what_multiplies(profile_of):
    profile = profiled()
    own = multiplying_warps(profile)
    operations = [each.operation for each in profile.actions]
    multiply = {at for at, each in enumerate(operations) if each == OPERATION}
    bring = {at for at, each in enumerate(operations) if each.startswith("bulk_")}
    bring = {at for at in bring if profile.actions[at].form.opcode_class == "load"}
    assert multiply <= own
    assert bring
    assert not bring & own
    assert multiplying_warps(profile_of("naive")) is None
    # Here a warp that multiplies brings operands too.
    problem = bf16(256, 256, 128)
    assert multiplying_warps(profile_block(find_kernel("tma"), problem, H100)) is None


def test_matrices_that_tma_brings_for_an_epilogue_count_once_a_tile():
    """Not once for each step of k: two matrices of 64×128 results of two bytes, whatever k."""
    plain, added = profiled(), profiled("residual")
    assert added.copied_bytes_per_k == plain.copied_bytes_per_k == 2 * (64 + 128)
    assert (plain.copied_added_bytes, added.copied_added_bytes) == (0, 2 * 64 * 128)
    assert added.copied_bytes(4096) == 2 * (64 + 128) * 4096 + 2 * 64 * 128
    problem = bf16(4096, 4096, 4096)
    traffic = []
    for profile in (plain, added):
        plan = WGMMA.plan(problem, SMALL, H100)
        whole = replace(profile, plan=plan, tiles=2048 / 132, visits=16.0)
        traffic.append(predict_profile(whole, problem, H100).l2_bytes)
    assert traffic[1] - traffic[0] == pytest.approx(2 * 4096 * 4096)


def test_busiest_block_of_a_persistent_grid_is_the_one_that_counts():
    """132 tiles take 132 SMs as long as one does, and one more tile twice as long."""
    shapes = ((11 * 64, 12 * 128), (7 * 64, 19 * 128))
    found = [predict(WGMMA, bf16(m, n, 4096), H100, config=SMALL) for m, n in shapes]
    least = H100.pipes.launch_us
    ratio = (found[1].microseconds - least) / (found[0].microseconds - least)
    assert ratio == pytest.approx(2, rel=0.15)
    assert found[0].busy_share == 1
    assert found[1].busy_share == pytest.approx(133 / 264)


def test_an_activation_takes_the_special_function_units():
    """GELU takes an exponential and a reciprocal, of which a scheduler makes four per cycle."""
    plain, found = predicted(), predicted("gelu")
    term = next(each for each in found.terms if each.name == "the special-function units")
    cycles = 2 * 64 * 128 / 4 / 4
    assert term.microseconds == pytest.approx(cycles / H100.clock_mhz)
    assert not any(each.name == term.name for each in plain.terms)
    assert found.microseconds - plain.microseconds > term.microseconds / 2


@pytest.mark.parametrize(
    "epilogue",
    [
        "gelu",
        "residual",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("bias+silu", "bias+relu+residual", "bias+gelu_tanh+aux")
        ),
    ],
)
def test_instructions_that_epilogues_are_said_to_add_are_those_of_the_code(epilogue):
    """One warp of each scheduler finishes 64 results of each thread; up to one more instruction for
    each is of the warps that move boxes."""
    slots = []
    for each in (None, epilogue):
        term = next(one for one in predicted(each).terms if one.name == "issue slots")
        slots.append(term.microseconds * H100.clock_mhz / 64)
    asked = WGMMA.work(bf16(1024, 1024, 1024, epilogue), SMALL, H100).finishing
    assert slots[1] - slots[0] == pytest.approx(asked.issue, rel=0.12, abs=1.0)


def test_estimates_without_a_run_follow_what_epilogues_take():
    """As measured; two teams of warps hide it, and residuals of the first tiles come first."""
    for (_, epilogue), record in FUSED.items():
        problem = bf16(record.problem.m, record.problem.n, record.problem.k, epilogue)
        board = find_board(record.device.gpu)
        form = CostedCandidate(Candidate(record.kernel, WGMMA.configure(record.config)), board)
        assert record.time_us is not None
        assert form.estimate(problem).microseconds == pytest.approx(record.time_us.median, rel=0.2)
    added = []
    for config in (WGMMA.default, WGMMA.configure({"BM": 64, "pingpong": 2, "cluster_m": 1})):
        form = CostedCandidate(Candidate(WGMMA.name, config), H100)
        plain, gelu, residual = (
            form.estimate(bf16(4096, 4096, 4096, each)).microseconds
            for each in (None, "gelu", "residual")
        )
        added.append(gelu - plain)
        assert residual - plain > 2 * 132 * 128 * 256 / H100.dram_gb_per_s / 1e3
    assert added[0] > 3 * added[1] > 0


@pytest.mark.parametrize(
    ("size", "epilogue"),
    [
        (4096, "bias+relu+residual"),
        (1024, "scale=0.5"),
        (1024, "bias+gelu"),
        (1024, "bias+residual"),
        (4096, "bias+gelu_tanh"),
    ],
)
@pytest.mark.sample(5)
def test_epilogues_are_predicted_as_they_were_measured(size, epilogue):
    record = FUSED[size, epilogue]
    problem = bf16(size, size, size, epilogue)
    config = WGMMA.configure(record.config)
    found = predict(WGMMA, problem, find_board(record.device.gpu), config=config)
    assert record.time_us is not None
    assert found.microseconds == pytest.approx(record.time_us.median, rel=0.17)
