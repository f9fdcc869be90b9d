"""Choices for prepared operands: their copies are free, and what was measured stays a guide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmkit.dispatch.choose import Dispatcher, choose
from gemmkit.dispatch.which import which
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.problem import GemmProblem
from gemmkit.report.decision import decision_text

H100 = find_board("h100")
FP32 = {"precision": "fp32"}


@pytest.fixture(scope="module")
def asked():
    return Dispatcher(H100, None)


def chosen(asked, *shape, **fields):
    return asked.choose(GemmProblem(*shape, **fields))


def test_what_copies_and_was_the_fastest_still_is(asked):
    """In the table it won though it had to copy B, which is free now."""
    shape = 512, 4096, 4096
    measured = chosen(asked, *shape, **FP32)
    assert (measured.kernel.name, measured.measured) == ("gemm_fp16x3", True)
    found = chosen(asked, *shape, **FP32, prepared="b")
    assert (found.kernel, found.config) == (measured.kernel, measured.config)
    assert not found.measured
    assert found.microseconds < measured.microseconds
    assert "no operand prepared; here it is estimated at" in found.reason


def test_what_was_too_slow_for_its_copies_may_win_now(asked):
    shape = 64, 4096, 4096
    assert chosen(asked, *shape, **FP32).kernel.name != "gemm_fp16x3"
    found = chosen(asked, *shape, **FP32, prepared="b")
    assert found.kernel.name == "gemm_fp16x3"
    # Which is not so of the other operand, whose copy is small.
    assert chosen(asked, *shape, **FP32, prepared="a").kernel.name != "gemm_fp16x3"


def test_few_rows_are_multiplied_without_copies(asked):
    for rows in (1, 4):
        problem = GemmProblem(rows, 4096, 4096, **FP32, prepared="b")
        found = asked.choose(problem)
        assert found.kernel.plan(problem, found.config, H100).prepared == ()


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(512, 512, 512),
        GemmProblem(512, 512, 512, dtype="bfloat16"),
        GemmProblem(512, 512, 40, precision="fp32"),
        GemmProblem(512, 512, 512, transb=True, precision="tf32"),
    ],
    ids=["ieee", "aligned rows", "a short k", "rows along k"],
)
def test_where_nothing_is_copied_the_choice_is_that_without_preparation(asked, problem):
    assert asked.choose(replace(problem, prepared="b")) == asked.choose(problem)


def test_the_emulator_copies_nothing():
    problem = GemmProblem(512, 512, 512, **FP32)
    own = choose(replace(problem, prepared="b"), H100, emulated=True)
    assert own == choose(problem, H100, emulated=True)


def test_which_says_what_is_prepared():
    found = which("512x4096x4096", "h100", precision="fp32", prepared="b", store=None)
    assert (found.prepared, found.copied) == ("b", ("A",))
    parts = 4 * 4096 + 4 * 4096**2
    assert found.prepared_bytes == parts
    text = decision_text(found)
    assert "prepared B, as two parts of fp16: 67.1 MB, made once" in text
    assert "copies   A, by a launch before it" in text
    both = which("512x4096x4096", "h100", precision="fp32", prepared="ab", store=None)
    assert (both.prepared, both.copied) == ("ab", ())
    assert "prepared A and B" in decision_text(both)
    turned = which("512x4096x4096", "h100", precision="tf32", prepared="b", store=None)
    assert "prepared B, along k, as tensor cores read it" in decision_text(turned)
    unneeded = which("1x4096x4096", "h100", precision="fp32", prepared="b", store=None)
    assert unneeded.prepared == ""
    with pytest.raises(UsageError, match="use a, b or ab"):
        which("64", "h100", prepared="c")
