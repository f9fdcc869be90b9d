"""Residue tiles: rows and columns past the last whole tile, which blocks of their own compute."""

from __future__ import annotations

import dataclasses

import pytest
from typed_run import check_exact, run_typed

from gemmkit.bench.check import check
from gemmkit.devices.choose import open_device
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import MAX_GRID_YZ, find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.grids import spread_over_yz
from gemmkit.kernels.production.residue import LEAST_SIDE, WIDEST, residue_extents
from gemmkit.kernels.rules import resident_blocks
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
TILE = {"BM": 64, "BN": 128, "BK": 16, "WM": 32, "WN": 64, "TM": 8, "TN": 8, "stages": 2}
UNEVEN = {"BM": 192, "BN": 96, "WM": 96, "WN": 32, "TM": 12, "TN": 8, "stages": 3}
CONFIGS = {
    "128 threads": ("gemm_tiled", TILE),
    "slices": ("gemm_split_k", {**TILE, "BK": 32, "split_k": 1, "slice_k": 2}),
    "cut k": ("gemm_split_k", {**TILE, "split_k": 3, "slice_k": 1}),
    "stream": ("gemm_stream_k", TILE),
    "512 threads": ("gemm_tiled", {**TILE, "WM": 16, "WN": 32, "TM": 4, "TN": 4}),
    "alone": ("gemm_tiled", {**TILE, "BK": 32, "stages": 5}),
}


def chosen(named):
    name, changes = CONFIGS[named]
    kernel = find_kernel(name)
    return kernel, kernel.configure(changes)


def planned(problem, named="128 threads", board=H100):
    kernel, config = chosen(named)
    return kernel.plan(problem, config, board)


def has_residue(plan):
    return any(plan.residue)


@pytest.fixture(scope="module")
def device():
    return open_device("emulator", "h100", sanitize=True)


@pytest.mark.parametrize(
    ("rows", "left"),
    [(64, 0), (65, 1), (64 + WIDEST, WIDEST), (64 + WIDEST + 1, 0), (WIDEST, 0), (191, 0)],
)
def test_few_rows_past_a_whole_tile_are_left_over(rows, left):
    assert residue_extents(GemmProblem(rows, 5, 5), 64, 64) == (left, 0)


def test_narrow_tiles_leave_nothing_over():
    assert residue_extents(GemmProblem(5, LEAST_SIDE + 1, 5), 64, LEAST_SIDE) == (0, 1)
    assert residue_extents(GemmProblem(5, 2 * WIDEST + 1, 5), 64, 2 * WIDEST) == (0, 0)


def test_the_grid_has_whole_tiles_and_then_lines_of_residue_tiles():
    problem = GemmProblem(129, 257, 50)
    # 9 tiles along the row and 4 along the column.
    assert planned(problem).grid == (2, 2 + 7, 1)
    assert planned(problem, "cut k").grid == (2, 2 + 3, 3)
    assert planned(problem, "stream").grid == (4, 1 + 4, 1)
    assert has_residue(planned(problem))
    assert planned(GemmProblem(120, 257, 50)).grid == (2, 2 + 2, 1)
    whole = planned(GemmProblem(128, 256, 50))
    assert whole.grid == (2, 2, 1)
    assert not has_residue(whole)


@pytest.mark.parametrize(
    ("problem", "named", "size"),
    [
        (GemmProblem(129, 257, 50), "128 threads", (4, 32)),
        (GemmProblem(64, 128 + 5, 50), "128 threads", (8, 32)),
        (GemmProblem(64 + 4, 128, 50), "alone", (4, 64)),
        (GemmProblem(64 + 1, 128 + 8, 50), "alone", (8, 64)),
    ],
)
def test_residue_tiles_are_short_beside_whole_ones_and_narrow(problem, named, size):
    _, config = chosen(named)
    plan = planned(problem, named)
    assert plan.residue == residue_extents(problem, config["BM"], config["BN"])
    assert f"Residue{{.width = {size[0]}, .length = {size[1]}," in plan.entry


def test_a_split_k_is_told_apart():
    problem = GemmProblem(129, 257, 50)
    assert ".split = true}" in planned(problem, "cut k").entry
    assert ".split = false}" in planned(problem, "slices").entry


SMALL = {"BM": 32, "BN": 64, "WM": 32, "WN": 64, "TM": 8, "TN": 8, "slice_k": 4}


@pytest.mark.parametrize(
    ("problem", "has_any"),
    [
        (GemmProblem(513, 513, 50), True),
        (GemmProblem(257, 257, 50), False),
        (GemmProblem(1025, 1025, 50), False),
    ],
    ids=["no tile is a second one", "all tiles find an SM", "there are second tiles anyway"],
)
def test_small_tiles_leave_to_the_residue_what_would_give_an_sm_a_second_tile(problem, has_any):
    kernel, config = chosen("slices")
    config = dataclasses.replace(config, **SMALL)
    plan = kernel.plan(problem, config, H100)
    assert has_residue(plan) == has_any
    # A whole tile and a residue tile: with room for more, these crowd on SMs without the former.
    assert not has_any or resident_blocks(config, H100, plan.shared_bytes) == 2


@pytest.mark.parametrize(
    ("problem", "named", "changes"),
    [
        (GemmProblem(129, 257, 50, batch=2), "128 threads", {}),
        (GemmProblem(64 * 40000 + 1, 129, 50), "cut k", {}),
        (GemmProblem(129, 257, 50), "128 threads", {"BN": 64}),
        (GemmProblem(193, 193, 50), "slices", UNEVEN),
        (GemmProblem(129, 0, 50), "128 threads", {}),
    ],
    ids=["batch", "no room along y", "small tiles", "384 threads", "no columns"],
)
def test_partial_tiles_stay_where_residue_tiles_would_be_slower(problem, named, changes):
    kernel, config = chosen(named)
    config = dataclasses.replace(config, **changes)
    assert not has_residue(kernel.plan(problem, config, H100))


PROBLEMS = (
    GemmProblem(65, 129, 33),
    GemmProblem(72, 128, 70),
    GemmProblem(64, 136, 41),
    GemmProblem(130, 257, 64, alpha=-1.5, beta=0.5),
    GemmProblem(136, 136, 40),
    GemmProblem(65, 129, 0, beta=1.0),
    GemmProblem(65, 129, 40, alpha=0.0, beta=2.0),
    GemmProblem(66, 130, 1, lda=40, ldb=200, ldc=333),
)


# What runs has tiles of 256 threads where nothing rests on their number: a third of the code.
LESS_CODE = {"BK": 8, "WN": 32, "TM": 4}


@pytest.mark.parametrize("named", CONFIGS)
@pytest.mark.sample(3)
def test_results_are_right_and_no_rule_is_broken(named, device):
    kernel, config = chosen(named)
    if CONFIGS[named][1] is TILE:
        config = dataclasses.replace(config, **LESS_CODE)
    problems = PROBLEMS if named == "128 threads" else PROBLEMS[:1]
    assert all(has_residue(kernel.plan(each, config, H100)) for each in problems)
    for record in check(kernel, problems, config=config.as_dict(), device=device):
        assert record.verdict == "ok", (record.detail, record.findings)


def test_transposed_matrices_and_every_kind_of_epilogue(device):
    kernel, config = chosen("128 threads")
    config = dataclasses.replace(config, **LESS_CODE | {"BK": 16})
    problem = GemmProblem(
        *(65, 131, 45),
        beta=0.5,
        transa=True,
        transb=True,
        epilogue=Epilogue("row", "relu", residual=True, auxiliary=True, scale=0.5),
    )
    assert has_residue(kernel.plan(problem, config, H100))
    check_exact(problem, run_typed(problem, device, kernel=kernel.name, config=config))


def test_residue_tiles_come_after_more_rows_of_tiles_than_y_has_room_for():
    kernel, config = chosen("128 threads")
    rows = MAX_GRID_YZ + 1
    problem = GemmProblem(64 * rows + 1, 129, 1)
    plan = kernel.plan(problem, config, H100)
    assert has_residue(plan)
    assert plan.grid == (1, *spread_over_yz(rows + 5 + 2 * rows))
    assert plan.grid[2] > 1
