"""Candidates at fitted or derived costs, on boards that run them."""

from __future__ import annotations

import dataclasses
import warnings

import msgspec
import pytest

from gemmkit.analysis.closed_form.costs import BoardCosts, Correction
from gemmkit.analysis.occupancy import launch_occupancy
from gemmkit.dispatch import costed as costed_module
from gemmkit.dispatch.candidate import Candidate
from gemmkit.dispatch.candidates import CANDIDATES, candidates_for
from gemmkit.dispatch.costed import CostedCandidate, board_costs
from gemmkit.dispatch.prices import BoardPrices
from gemmkit.gpu import BOARDS, find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem

H100, RTX3090 = find_board("h100"), find_board("rtx3090")
LARGE = TileConfig(BM=128, BN=256, BK=8, WM=64, WN=64, TM=16, TN=8, stages=4)
CORRECTION = Correction(step=1.1, latency=1.2, tile=1.3, unaligned=1.4, sharing=0.5, registers=208)
PLAIN = BoardCosts(
    launch_us=2.0,
    partial_bytes=32.0,
    exponent=4.0,
    corrections={Candidate("gemm_tiled", LARGE).instance: CORRECTION},
)


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.label)
@pytest.mark.sample(6)
def test_more_work_never_takes_less_time(candidate):
    board = next(each for each in BOARDS.values() if candidate in candidates_for(each))
    found = CostedCandidate(candidate, board, BoardCosts())
    for k in (16, 200, 3000):
        times = [
            found.estimate(problem).microseconds
            for side in (16, 100, 1000, 5000)
            if not candidate.kernel.accepts(problem := GemmProblem(side, side, k), board)
        ]
        assert times == sorted(times)
        assert all(time > 0 for time in times)


ODD = GemmProblem(67, 68, 52)
SQUARE_TILES = [
    each
    for each in candidates_for(RTX3090)
    if each.kernel.supports(ODD, each.config, RTX3090) is None
    and (each.config.BM, each.config.BN) == (64, 64)
]


@pytest.mark.parametrize("candidate", SQUARE_TILES, ids=lambda each: each.label)
@pytest.mark.sample(4)
def test_an_sm_holds_as_many_blocks_as_the_compiled_kernel_allows(candidate):
    plan = candidate.kernel.plan(ODD, candidate.config, RTX3090)
    real = launch_occupancy(plan, compile_plan(plan, RTX3090.arch), RTX3090)
    seen = CostedCandidate(candidate, RTX3090, BoardCosts()).estimate(ODD)
    assert seen.blocks_per_sm == real.blocks_per_sm


def test_costs_that_ship_are_whole():
    for board in BOARDS.values():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = board_costs(board.capability.major, board.capability.minor)
        assert found.launch_us > 0
        assert all(each.latency > 0 < each.step for each in found.corrections.values())
        types = ("float32", "float64", "float16")
        known = {each.costed_as(of) for each in candidates_for(board) for of in types}
        assert found.corrections.keys() <= known, "run benchmarks/dispatch_fit.py again"


@pytest.fixture
def fitted_folder(tmp_path, monkeypatch):
    folder = tmp_path / "fitted"
    folder.mkdir()
    monkeypatch.setattr(costed_module, "shipped_file", lambda *names: tmp_path.joinpath(*names))
    board_costs.cache_clear()
    yield folder
    board_costs.cache_clear()


def test_what_was_measured_corrects_what_follows_from_sizes(fitted_folder):
    (fitted_folder / "sm_90.json").write_bytes(msgspec.json.encode(PLAIN))
    assert board_costs(9, 0) == PLAIN
    assert (
        CostedCandidate(Candidate("gemm_tiled", LARGE), H100).correction_for("float32")
        == CORRECTION
    )


def test_what_was_not_measured_must_promise_more(fitted_folder):
    problem = GemmProblem(2048, 2048, 2048)
    other = Candidate("gemm_tiled", dataclasses.replace(LARGE, stages=3))
    alone = CostedCandidate(other, H100, PLAIN).estimate(problem).microseconds
    plain = msgspec.structs.replace(PLAIN, corrections={})
    assert alone > 1.05 * CostedCandidate(other, H100, plain).estimate(problem).microseconds


def test_a_kernel_with_the_mainloop_of_another_has_its_costs_until_its_own_are_measured():
    grouped = Candidate("gemm_grouped", LARGE)
    assert CostedCandidate(grouped, H100, PLAIN).correction_for("float32") == CORRECTION
    own = msgspec.structs.replace(CORRECTION, launch=1.25)
    board = msgspec.structs.replace(
        PLAIN, corrections={**PLAIN.corrections, grouped.costed_as("float32"): own}
    )
    assert CostedCandidate(grouped, H100, board).correction_for("float32") == own
    problem = GemmProblem.of_groups("500x300x200*9,64x64x64")
    slower, faster = (
        CostedCandidate(grouped, H100, each).estimate(problem).microseconds
        for each in (board, PLAIN)
    )
    assert slower == pytest.approx(1.25 * faster)


def test_damaged_costs_are_told_and_left_out(fitted_folder):
    (fitted_folder / "sm_90.json").write_text('{"launch_us": "two"}')
    with pytest.warns(RuntimeWarning, match=r"sm_90.json cannot be read .*without it"):
        assert board_costs(9, 0) == BoardCosts()


def test_layouts_are_corrected_apart():
    candidate = Candidate("gemm_tiled", LARGE)
    slow_nt = msgspec.structs.replace(CORRECTION, nt=1.5)
    corrected = msgspec.structs.replace(PLAIN, corrections={candidate.instance: slow_nt}, tt=1.2)
    for layout, least, most in (("nn", 1, 1), ("tn", 1, 1), ("nt", 1.3, 1.5), ("tt", 1.1, 1.2)):
        problem = GemmProblem(4096, 4096, 4096).laid_out(layout)
        before, after = (
            CostedCandidate(candidate, H100, board).estimate(problem).microseconds
            for board in (PLAIN, corrected)
        )
        assert least <= after / before <= most, layout


def test_where_there_is_cp_async_long_products_of_fp32_leave_other_tiles_out():
    long, short = GemmProblem(512, 512, 512), GemmProblem(512, 512, 8)
    double = GemmProblem(512, 512, 512, dtype="float64")

    def names(problem, gpu):
        return {each.kernel.name for each in BoardPrices(find_board(gpu)).candidates(problem)}

    assert "typed" not in names(long, "h100")
    for problem, gpu in ((short, "h100"), (double, "h100"), (long, "t4")):
        assert "typed" in names(problem, gpu)


# Tiles of gemm_wgmma in bf16, NT, and the microseconds that they took on an H200: BM, BN, BK,
# stages, consumers, blocks that share k.
FEW_ROWS = {
    (16, 12288, 4096): {
        (16, 192, 64, 8, 1, 1): 28.0,  # 64 blocks
        (64, 176, 64, 7, 1, 1): 42.6,  # 70
        (16, 128, 64, 12, 1, 1): 31.6,  # 96
        (64, 96, 64, 9, 1, 1): 29.4,  # 128
        (16, 64, 128, 10, 1, 1): 28.2,  # 192 tiles
        (16, 256, 64, 6, 2, 1): 34.9,  # 48
    },
    (16, 11008, 4096): {
        (16, 192, 64, 8, 1, 1): 27.6,
        (64, 160, 64, 7, 1, 1): 38.8,
        (16, 128, 64, 12, 1, 1): 31.0,
        (16, 128, 64, 12, 1, 2): 26.7,
    },
    (1, 8192, 8192): {
        (16, 64, 128, 10, 1, 1): 35.2,
        (16, 128, 64, 12, 1, 1): 38.2,
        (64, 112, 64, 9, 1, 1): 61.7,
    },
}


@pytest.mark.parametrize("shape", FEW_ROWS, ids=str)
def test_blocks_of_few_rows_share_the_ports_of_groups_of_sms(shape):
    problem = GemmProblem(*shape, dtype="bfloat16").laid_out("nt")
    h200 = find_board("h200")
    pipes = dataclasses.replace(h200.capability.pipes, ports=None)
    capability = dataclasses.replace(h200.capability, pipes=pipes)
    unknown = dataclasses.replace(h200, capability=capability)
    for values, measured in FEW_ROWS[shape].items():
        keys = ("BM", "BN", "BK", "stages", "consumers", "cluster_k")
        ones = {"pingpong": 1, "cluster_m": 1, "cluster_n": 1}
        config = TileConfig(**dict(zip(keys, values, strict=True)), **ones)
        candidate = Candidate("gemm_wgmma", config)
        seen = CostedCandidate(candidate, h200)
        assert seen.estimate(problem).microseconds == pytest.approx(measured, rel=0.15), values
        without = CostedCandidate(candidate, unknown).estimate(problem)
        assert without.port_us == 0
        assert without.microseconds <= seen.estimate(problem).microseconds
