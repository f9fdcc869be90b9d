"""Contenders: candidates at fitted or derived costs, on boards that run them."""

from __future__ import annotations

import dataclasses
import warnings

import msgspec
import pytest

from gemmkit.analysis.closed_form.costs import BoardCosts, Costs, derived_costs
from gemmkit.analysis.occupancy import launch_occupancy
from gemmkit.dispatch import contender as contenders
from gemmkit.dispatch.candidates import CANDIDATES, Candidate, candidates_for
from gemmkit.dispatch.contender import Contender, board_costs
from gemmkit.gpu import BOARDS, find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
LARGE = TileConfig(BM=128, BN=256, BK=8, WM=64, WN=64, TM=16, TN=8, stages=4)
COSTS = Costs(step=2000.0, latency=2400.0, tile=3000.0, unaligned=1.5, sharing=500.0, registers=208)
PLAIN = BoardCosts(
    launch_us=2.0,
    partial_bytes=32.0,
    exponent=4.0,
    configurations={Candidate("gemm_tiled", LARGE).instance: COSTS},
)


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


def test_an_sm_holds_as_many_blocks_as_the_compiled_kernel_allows():
    board = find_board("rtx3090")
    for candidate in candidates_for(board):
        if (candidate.config.BM, candidate.config.BN) == (64, 64):
            plan = candidate.kernel.plan(GemmProblem(67, 68, 52), candidate.config, board)
            real = launch_occupancy(plan, compile_plan(plan, board.arch), board)
            found = Contender(candidate, board, BoardCosts())
            assert found.blocks_per_sm == real.blocks_per_sm, candidate.label


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
    monkeypatch.setattr(contenders, "shipped_file", lambda *names: tmp_path.joinpath(*names))
    board_costs.cache_clear()
    yield folder
    board_costs.cache_clear()


def test_fitted_costs_go_before_derived_ones(fitted_folder):
    (fitted_folder / "sm_90.json").write_bytes(msgspec.json.encode(PLAIN))
    assert board_costs(9, 0) == PLAIN
    assert Contender(Candidate("gemm_tiled", LARGE), H100).costs == COSTS
    other = Candidate("gemm_tiled", dataclasses.replace(LARGE, stages=3))
    assert Contender(other, H100).costs == derived_costs(other.kernel, other.config, 256, H100)


def test_damaged_costs_are_told_and_left_out(fitted_folder):
    (fitted_folder / "sm_90.json").write_text('{"launch_us": "two"}')
    with pytest.warns(RuntimeWarning, match=r"sm_90.json cannot be read .*without it"):
        assert board_costs(9, 0) == BoardCosts()
