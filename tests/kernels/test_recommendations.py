"""What a refusal recommends runs on the board at hand."""

from __future__ import annotations

import re

import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import BOARDS, find_board
from gemmkit.kernels.catalog import LADDER, PRODUCTION, alternatives, find_kernel, instead_of
from gemmkit.problem import GemmProblem, read_problem

PROBLEMS = [
    GemmProblem(64, 64, 64),
    GemmProblem(64, 64, 64, transb=True),
    GemmProblem(64, 64, 64, batch=3),
    GemmProblem(64, 64, 64, dtype="float64"),
    GemmProblem(64, 64, 64, dtype="bfloat16", out_dtype="float32"),
    GemmProblem(64, 64, 64, epilogue=Epilogue.parse("bias+relu+residual")),
    GemmProblem(4, 640, 640),
    GemmProblem.of_groups("64x64x64,5x5x5,0x3x3"),
    GemmProblem(2**31 - 1, 1, 1),
]


@pytest.mark.parametrize("board", ["t4", "rtx2080ti", "rtx3090", "h100"])
@pytest.mark.parametrize("kernel", [*LADDER, *PRODUCTION], ids=lambda each: each.name)
@pytest.mark.sample(3)
def test_what_is_recommended_takes_the_problem_there(kernel, board):
    gpu = find_board(board)
    for problem in PROBLEMS:
        config = kernel.default
        if kernel.supports(problem, config, gpu) is None:
            assert not instead_of(kernel, problem, gpu)
            continue
        with pytest.raises(UnsupportedProblem) as refusal:
            kernel.plan(problem, config, gpu)
        asked = [problem]
        if "in a launch of its own" in str(refusal.value):
            asked = [problem.product(number) for number in range(problem.groups.count)]
        names = re.findall(r"'(\w+)'", instead_of(kernel, problem, gpu))
        assert str(refusal.value).endswith(instead_of(kernel, problem, gpu))
        # Nothing takes what no index reaches.
        assert bool(names) == (problem.m < 2**30)
        for name in names:
            other = find_kernel(name)
            assert other is not kernel or asked != [problem]
            assert all(other.supports(each, other.default, gpu) is None for each in asked)


def test_a_board_without_cp_async_is_recommended_what_needs_none():
    groups = GemmProblem.of_groups("64x64x64,5x5x5")
    for name in ("t4", "rtx2080ti"):
        assert alternatives(groups, BOARDS[name]) == "; 'grouped_typed' takes it"
        # More tiles than a launch can number.
        told = alternatives(GemmProblem.of_groups("1048576x1048576x64*40"), BOARDS[name])
        assert told == "; 'typed' takes each of its products in a launch of its own"
        told = alternatives(GemmProblem(64, 64, 64), BOARDS[name])
        assert told == "; 'typed' and 'warp_tiled' take it"


def test_a_configuration_that_is_refused_recommends_no_kernel():
    kernel = find_kernel("warp_tiled")
    with pytest.raises(UnsupportedProblem) as refusal:
        kernel.plan(GemmProblem(64, 64, 64), kernel.configure({"TM": 3}), find_board("h100"))
    assert "take" not in str(refusal.value)


@pytest.mark.parametrize("text", ["64x64x64", "64x64x64x3"])
def test_of_a_kernel_for_groups_others_for_groups_are_named(text):
    found = instead_of(find_kernel("ragged_wgmma"), read_problem(text), find_board("rtx3090"))
    assert re.findall(r"'(\w+)'", found)
    assert all(find_kernel(name).takes_groups for name in re.findall(r"'(\w+)'", found))
