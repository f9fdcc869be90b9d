"""Launches that views come to, where no array that large fits into memory."""

import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.ops.operands import View
from gemmkit.ops.placement import Copied, Terms, place

HUGE = 2**31


def tight(*shape):
    return View.tight(shape)


def test_rows_too_far_apart_are_refused():
    views = {"a": View((4, 5), (HUGE, 1)), "b": tight(5, 6), "out": tight(4, 6)}
    with pytest.raises(UnsupportedProblem, match=r"rows of a lie 2,147,483,648 elements apart"):
        place(views, Terms())
    views["a"] = View((4, 5), (HUGE - 1, 1))
    (step,) = place(views, Terms())
    assert step.problem.lda == HUGE - 1


def test_strides_of_batches_take_64_bits():
    views = {
        "a": View((3, 4, 5), (5 * HUGE, 5, 1)),
        "b": tight(3, 5, 6),
        "out": View((3, 4, 6), (HUGE, 6, 1)),
    }
    (step,) = place(views, Terms())
    assert step.problem.strides == (5 * HUGE, 30, HUGE)


def test_offsets_of_launches_take_64_bits_and_keep_alignment(monkeypatch):
    monkeypatch.setattr("gemmkit.ops.placement.BYTES_A_LAUNCH", 0)
    views = {
        "a": View((2, 3, 4, 5), (HUGE + 2, 0, 5, 1)),
        "b": View((2, 3, 5, 6), (0, HUGE, 6, 1)),
        "out": tight(2, 3, 4, 6),
    }
    steps = place(views, Terms(alignment=256))
    assert [step.offsets["a"] for step in steps] == [0, HUGE + 2]
    assert [step.offsets["out"] for step in steps] == [0, 72]
    assert {(step.problem.batch, step.problem.alignment) for step in steps} == {(3, 8)}


def test_what_broadcasts_is_no_matrix_in_rows():
    views = {"a": View((4, 5), (0, 1)), "b": tight(5, 6), "out": tight(4, 6)}
    assert place(views, Terms()) == Copied("a", "neither its rows nor its columns are contiguous")


@pytest.mark.parametrize(
    ("residual", "aligned"),
    [
        (View((8, 16), (16, 1)), True),
        (View((8, 16), (20, 1)), False),
        (View((8, 16), (0, 1)), False),
    ],
    ids=["tight", "rows at multiples of 8 bytes", "one row"],
)
def test_problems_tell_whether_rows_of_residuals_are_aligned(residual, aligned):
    views = {"a": tight(8, 24), "b": tight(24, 16), "out": tight(8, 16), "residual": residual}
    terms = Terms("bfloat16", "bfloat16", epilogue=Epilogue(residual=True))
    (step,) = place(views, terms)
    assert step.problem.further_aligned == aligned
