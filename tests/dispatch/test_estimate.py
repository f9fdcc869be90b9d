"""The closed-form time: what must hold of it whatever its figures are."""

from __future__ import annotations

import dataclasses
import warnings

import msgspec
import pytest

from gemmkit.analysis.occupancy import launch_occupancy
from gemmkit.dispatch import costs
from gemmkit.dispatch.candidates import CANDIDATES, Candidate, candidates_for
from gemmkit.dispatch.costs import BoardCosts, Costs, board_costs, derived_costs
from gemmkit.dispatch.estimate import Contender
from gemmkit.gpu import BOARDS, find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import TileConfig
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
LARGE = TileConfig(BM=128, BN=256, BK=8, WM=64, WN=64, TM=16, TN=8, stages=4)
COSTS = Costs(step=2000.0, latency=2400.0, tile=3000.0, unaligned=1.5, sharing=500.0, registers=208)
PLAIN = BoardCosts(
    launch_us=2.0,
    partial_bytes=32.0,
    exponent=4.0,
    configurations={Candidate("async_copy", LARGE).instance: COSTS},
)


def contender(board=PLAIN, gpu=H100) -> Contender:
    return Contender(Candidate("async_copy", LARGE), gpu, board)


def test_a_wave_by_hand():
    # 16 blocks, one an SM: 100 steps of 2400 cycles, and 3000 for the tile, at 1980 MHz.
    seen = contender().estimate(GemmProblem(512, 1024, 800))
    assert seen.microseconds == pytest.approx(2 + (100 * 2400 + 3000) / 1980, rel=1e-4)
    assert seen.waves == pytest.approx(16 / 132)
    assert seen.busy == pytest.approx(16 / 132)
    assert (seen.blocks_per_sm, seen.work.parts) == (1, 1)


def test_waves_are_steps():
    """One tile more than whole waves takes a wave more."""
    full = contender().estimate(GemmProblem(128 * 132, 256, 8000)).microseconds
    more = contender().estimate(GemmProblem(128 * 133, 256, 8000)).microseconds
    twice = contender().estimate(GemmProblem(128 * 264, 256, 8000)).microseconds
    assert more == pytest.approx(twice, rel=1e-3)
    assert more == pytest.approx(2 * full, rel=0.01)


def test_rows_that_are_not_aligned_cost_more():
    aligned = contender().estimate(GemmProblem(512, 1024, 8000)).microseconds
    unaligned = contender().estimate(GemmProblem(512, 1024, 8000, lda=8001)).microseconds
    assert unaligned == pytest.approx(1.5 * aligned, rel=0.01)


def test_nothing_is_faster_than_memory():
    problem = GemmProblem(1, 65536, 4096)
    seen = contender().estimate(problem)
    assert seen.microseconds > seen.memory_us > problem.minimal_bytes / 3.352e6


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.label)
def test_more_work_never_takes_less_time(candidate):
    board = next(each for each in BOARDS.values() if candidate in candidates_for(each))
    found = Contender(candidate, board, BoardCosts())
    for k in (16, 200, 3000):
        times = [
            found.estimate(problem).microseconds
            for side in (16, 100, 1000, 5000)
            if not candidate.kernel.accepts(problem := GemmProblem(side, side, k), board)
        ]
        assert times == sorted(times)
        assert all(time > 0 for time in times)


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.key)
def test_derived_costs_stay_below_the_peak(board):
    for candidate in candidates_for(board):
        found = Contender(candidate, board, BoardCosts())
        if candidate.config.BM is None:
            continue
        problem = GemmProblem(8192, 8192, 8192)
        seen = found.estimate(problem)
        shares = found.shares(problem, seen)
        assert 0 < shares.speed <= 1
        assert 0 < shares.busy <= 1
        assert 0 < shares.inside <= 1
        assert seen.microseconds > problem.flops / board.peak_tflops / 1e6


def test_an_sm_holds_as_many_blocks_as_the_compiled_kernel_allows():
    board = find_board("rtx3090")
    for candidate in candidates_for(board):
        if (candidate.config.BM, candidate.config.BN) == (64, 64):
            plan = candidate.kernel.plan(GemmProblem(67, 68, 52), candidate.config, board)
            real = launch_occupancy(plan, compile_plan(plan, board.arch), board)
            found = Contender(candidate, board, BoardCosts())
            assert found.blocks_per_sm == real.blocks_per_sm, candidate.label


def test_boards_of_a_kind_differ_by_clock_memory_and_sms_alone():
    fewer = dataclasses.replace(H100, sm_count=66)
    problem = GemmProblem(128 * 66, 256, 8000)
    one, other = (contender(gpu=each).estimate(problem) for each in (H100, fewer))
    assert one.microseconds == other.microseconds
    assert (one.busy, other.busy) == (0.5, 1.0)


def test_costs_that_ship_are_whole():
    for board in BOARDS.values():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = board_costs(board.capability.major, board.capability.minor)
        assert found.launch_us > 0
        assert all(each.latency >= each.step > 0 for each in found.configurations.values())
        if found.fitted:
            # Fitted and derived costs are not to be compared: the list and the fit go together.
            listed = {each.instance for each in candidates_for(board) if each.name != "naive"}
            assert listed <= found.configurations.keys(), "run benchmarks/dispatch_fit.py again"


@pytest.fixture
def fitted_folder(tmp_path, monkeypatch):
    folder = tmp_path / "fitted"
    folder.mkdir()
    monkeypatch.setattr(costs, "shipped_file", lambda *names: tmp_path.joinpath(*names))
    costs.board_costs.cache_clear()
    yield folder
    costs.board_costs.cache_clear()


def test_fitted_costs_go_before_derived_ones(fitted_folder):
    (fitted_folder / "sm_90.json").write_bytes(msgspec.json.encode(PLAIN))
    assert board_costs(9, 0) == PLAIN
    assert Contender(Candidate("async_copy", LARGE), H100).costs == COSTS
    other = Candidate("async_copy", dataclasses.replace(LARGE, stages=3))
    assert Contender(other, H100).costs == derived_costs(other.config, 256, H100)


def test_damaged_costs_are_told_and_left_out(fitted_folder):
    (fitted_folder / "sm_90.json").write_text('{"launch_us": "two"}')
    with pytest.warns(RuntimeWarning, match=r"sm_90.json cannot be read .*without it"):
        assert board_costs(9, 0) == BoardCosts()
