"""`gemmkit.chosen`: what a program has multiplied, to be tuned."""

from dataclasses import replace
from itertools import count

import pytest

import gemmkit
from fake_gpu import FakeGpu, fake_binary
from gemmkit.dispatch.choose import choose, dispatcher
from gemmkit.errors import DeviceError, UsageError
from gemmkit.gpu import find_board
from gemmkit.problem import GemmProblem
from gemmkit.trials.store import Store

NUMBERS = count()
LINEAR = GemmProblem(520, 776, 264, dtype="bfloat16", transb=True)


@pytest.fixture
def board():
    """One that no other test has chosen for."""
    return replace(find_board("h200"), clock_mhz=1500 + next(NUMBERS))


def test_it_lists_what_was_asked_for_in_order(board):
    first, second = GemmProblem(200, 120, 88), LINEAR
    for each in (first, second, first, GemmProblem(0, 8, 8)):
        choose(each, board)
    assert gemmkit.chosen(board) == [first, second]
    assert gemmkit.chosen(replace(board, clock_mhz=1000)) == []


def test_what_decides_another_problem_is_not_listed(board):
    # Allowed in TF32, and too short for it: the choice is that for a higher precision.
    short = GemmProblem(512, 512, 8, precision="tf32")
    choose(short, board)
    assert gemmkit.chosen(board) == [short]


def test_products_of_prepared_operands_are_listed_without(board):
    whole = GemmProblem(512, 512, 512, precision="fp32")
    for each in (whole, replace(whole, prepared="b")):
        choose(each, board)
    assert gemmkit.chosen(board) == [whole]


def test_untuned_ones_alone(board):
    measured = GemmProblem(4096, 4096, 4096, dtype="bfloat16")
    for each in (measured, LINEAR):
        choose(each, board)
    assert gemmkit.chosen(board, untuned=True) == [LINEAR]


def test_they_can_be_tuned_and_are_tuned_then(store, monkeypatch):
    gpu = FakeGpu()
    problem = GemmProblem(40, 48, 32)
    user = Store(store.path)
    monkeypatch.setattr("gemmkit.tune.chosen.dispatcher", lambda spec: dispatcher(spec, user))
    dispatcher(gpu.spec, user).choose(problem)
    asked = gemmkit.chosen(gpu.spec, untuned=True)
    assert asked == [problem]
    (tuned,) = gemmkit.tune(
        asked,
        budget=20.0,
        kernels=["warp_tiled"],
        device=gpu,
        store=user,
        compile_one=fake_binary,
        within=1e9,
    )
    assert dispatcher(gpu.spec, user).choose(problem).microseconds == tuned.best.time_us
    assert gemmkit.chosen(gpu.spec, untuned=True) == []
    assert gemmkit.chosen(gpu.spec) == [problem]


def test_without_a_gpu_a_board_is_named(monkeypatch):
    monkeypatch.setattr("gemmkit.tune.chosen.gpu_problem", lambda: "there is no GPU")
    with pytest.raises(DeviceError, match="there is no GPU: name the board"):
        gemmkit.chosen()
    with pytest.raises(UsageError, match="h201"):
        gemmkit.chosen("h201")
