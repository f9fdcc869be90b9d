"""The nearest problem that a kernel takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import LADDER, PRODUCTION, find_kernel
from gemmkit.kernels.fitting import default_problem, fitting, in_types_of
from gemmkit.kernels.sizes import multiples_text
from gemmkit.problem import GemmProblem

H100, CUBE = find_board("h100"), GemmProblem(512, 512, 512, ldc=600)


@pytest.mark.parametrize(
    ("multiples", "text"),
    [
        ((8, 32, 8), "M is a multiple of 8, N of 32 and K of 8"),
        ((1, 32, 8), "N is a multiple of 32 and K of 8"),
        ((16, 16, 16), "M, N and K are multiples of 16"),
        ((1, 1, 4), "K is a multiple of 4"),
    ],
)
def test_multiples_in_words(multiples, text):
    assert multiples_text(multiples) == text


def taking(condition):
    return replace(find_kernel("naive"), condition=condition)


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_every_rung_takes_what_is_found(kernel):
    cube = in_types_of(kernel, CUBE)
    found = fitting(kernel, cube, H100)
    assert kernel.supports(found, kernel.default, H100) is None
    if kernel.supports(cube, kernel.default, H100) is None:
        assert found == cube


def test_types_are_the_problems_own_or_the_kernels_first():
    half = GemmProblem(8, 8, 8, dtype="float16", out_dtype="float32")
    assert in_types_of(find_kernel("wmma"), half) == half
    assert in_types_of(find_kernel("naive"), half) == GemmProblem(8, 8, 8)
    assert in_types_of(find_kernel("wmma"), CUBE) == replace(
        CUBE, dtype="bfloat16", out_dtype="bfloat16"
    )


def test_few_rows_then_few_columns():
    rows = taking(lambda problem, _: None if problem.m <= 16 else "too high")
    columns = taking(lambda problem, _: None if problem.n <= 16 else "too wide")
    assert fitting(rows, CUBE, H100) == GemmProblem(16, 512, 512, ldc=600)
    assert fitting(columns, CUBE, H100) == GemmProblem(512, 16, 512)


def test_nothing_fits():
    with pytest.raises(UnsupportedProblem, match="naive: never"):
        fitting(taking(lambda *_: "never"), CUBE, H100)


@pytest.mark.parametrize("kernel", [*LADDER, *PRODUCTION], ids=lambda kernel: kernel.name)
def test_every_kernel_takes_the_problem_that_is_shown_by_default(kernel):
    found = default_problem(kernel, Asked().problem("1024", kernel), H100)
    assert kernel.supports(found, kernel.default, H100) is None
    assert "1024" in found.shape


def test_without_any_that_fits_the_default_is_what_was_asked_for():
    assert default_problem(taking(lambda *_: "never"), CUBE, H100) == CUBE
