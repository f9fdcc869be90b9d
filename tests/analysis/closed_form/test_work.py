"""How launches cut problems up: what the closed form says of it, and what `Kernel.launch` does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmkit.analysis.closed_form.work import MOST_PARTS, Cutter
from gemmkit.dispatch.candidates import CANDIDATES, Candidate
from gemmkit.gpu import BOARDS, find_board
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
STREAM = TileConfig(BM=128, BN=256, BK=8, WM=64, WN=64, TM=16, TN=8, stages=4)
SPLIT = next(each for each in CANDIDATES if each.name == "gemm_split_k")


def cutter(name: str, config: TileConfig, board=H100) -> Cutter:
    return Cutter(Candidate(name, config).kernel, config, board)


@given(data=st.data())
@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.label)
def test_blocks_and_sharing_are_those_of_the_launch(candidate, data):
    able = [
        each for each in BOARDS.values() if candidate.kernel.rule(candidate.config, each) is None
    ]
    board = data.draw(st.sampled_from(able))
    extent = st.integers(1, 5000) | st.integers(1, 40)
    sizes = [data.draw(extent) for _ in range(3)]
    problem = GemmProblem(*sizes, batch=data.draw(st.integers(1, 5)))
    if candidate.kernel.accepts(problem, board) is not None:
        return
    if candidate.config.split_k is not None:
        candidate = candidate.split(data.draw(st.integers(1, 40)))
    work = Cutter(candidate.kernel, candidate.config, board).work(problem)
    shape = candidate.kernel.launch(problem, candidate.config, board)
    x, y, z = shape.grid
    depth, held_up = ceil_div(problem.k, candidate.config.BK or 1), 0
    if any(shape.fringe):
        # Strips count for less than the blocks that compute them, or for none.
        rows, columns = shape.fringe
        inside = replace(problem, m=problem.m - rows, n=problem.n - columns)
        whole = candidate.kernel.launch(inside, candidate.config, board).grid
        assert math.prod(whole) <= work.blocks <= x * y * z
        # None takes as long as two tiles, and what is left of them in the end a round more.
        held_up = 2 * depth * (x * y * z - math.prod(whole) + board.sm_count)
    else:
        assert work.blocks == x * y * z
    assert (work.parts > 1) == (shape.arrivals > 0)
    # Nothing is left out, and hardly anything counted twice.
    steps = work.tiles * depth
    assert (
        steps
        <= work.blocks * work.steps
        < steps + work.blocks * max(work.visits, 1) * (ceil_div(steps, work.tiles) + 1) + held_up
    )


def test_whole_tiles():
    config = Candidate("gemm_tiled", STREAM).config
    work = cutter("gemm_tiled", config).work(GemmProblem(1000, 1000, 100))
    assert (work.blocks, work.tiles, work.steps, work.visits, work.parts) == (32, 32, 13, 1, 1)


def test_strips_take_what_a_last_wave_leaves_empty():
    config = Candidate("gemm_tiled", STREAM).config
    # 4 of 132 SMs are left: for as many tiles as the strips of one row and one column are worth.
    some = cutter("gemm_tiled", config).work(GemmProblem(2049, 2049, 800))
    assert (some.blocks, some.tiles, some.parts) == (132, 132, 1)
    assert 100 < some.steps < 112  # and the rest of them take a round more
    none = cutter("gemm_tiled", config).work(GemmProblem(128 * 132 + 1, 256, 800))
    assert none.blocks == 132
    assert 100 < none.steps < 110


def test_cut_tiles_share_their_steps():
    config = SPLIT.split(4).config
    problem = GemmProblem(config["BM"], config["BN"], 10 * config["BK"])
    work = cutter("gemm_split_k", config).work(problem)
    assert (work.blocks, work.tiles, work.steps, work.parts) == (4, 1, 3, 4)


def test_no_more_parts_than_steps():
    config = SPLIT.split(16).config
    problem = GemmProblem(config["BM"], config["BN"], 3 * config["BK"])
    assert cutter("gemm_split_k", config).work(problem).parts == 3


def test_a_stream_of_whole_waves_cuts_nothing():
    blocks = H100.sm_count
    problem = GemmProblem(2 * 128 * blocks, 256, 800)
    work = cutter("gemm_stream_k", STREAM).work(problem)
    assert (work.blocks, work.steps, work.visits, work.parts) == (blocks, 200, 2, 1)


def test_a_stream_deals_out_what_waves_leave_over():
    problem = GemmProblem(128 * 200, 256, 800)
    work = cutter("gemm_stream_k", STREAM).work(problem)
    assert work.blocks == 132
    assert work.steps == ceil_div(200 * 100, 132)
    assert work.parts == 2


def test_splits_fill_the_sms_and_the_last_wave():
    cut = cutter("gemm_split_k", SPLIT.config)
    BM, BN, BK = (SPLIT.config[key] for key in ("BM", "BN", "BK"))

    def splits(tiles: int, steps: int = 1000) -> tuple[int, ...]:
        return cut.splits(GemmProblem(BM * tiles, BN, BK * steps), resident=3)

    assert {4, 8, 12} <= set(splits(33))
    assert {2, 4, 6} <= set(splits(66))
    # 99 tiles: four parts of each are three whole waves.
    assert 4 in splits(99)
    assert splits(1)[-1] == MOST_PARTS
    assert splits(1, steps=7) == (3,)
    assert splits(33, steps=3) == ()
    assert cut.splits(GemmProblem(0, 8, 8), resident=3) == ()


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.label)
def test_nothing_to_compute_is_no_work(candidate):
    board = next(
        each for each in BOARDS.values() if not candidate.kernel.rule(candidate.config, each)
    )
    work = Cutter(candidate.kernel, candidate.config, board).work(GemmProblem(0, 5, 5))
    assert (work.blocks, work.steps, work.parts) == (0, 0, 1)


def test_alpha_zero_reads_nothing():
    work = cutter("gemm_tiled", STREAM).work(GemmProblem(128, 256, 800, alpha=0.0))
    assert work.steps == 1
