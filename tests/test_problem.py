"""Problems and epilogues: what they say of themselves, and what they refuse."""

from __future__ import annotations

import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.problem import GemmProblem


def test_rows_are_tight_unless_told():
    problem = GemmProblem(3, 5, 7)
    assert (problem.lda, problem.ldb, problem.ldc) == (7, 5, 5)
    padded = GemmProblem(3, 5, 7, lda=8, ldb=9, ldc=10)
    assert (padded.lda, padded.ldb, padded.ldc) == (8, 9, 10)


def test_an_empty_matrix_has_a_leading_dimension():
    assert GemmProblem(0, 0, 0).lda == 1


def test_flops_bytes_and_intensity():
    problem = GemmProblem(1024, 1024, 1024)
    assert problem.flops == 2**31
    assert problem.minimal_bytes == 3 * 4 * 2**20
    assert problem.intensity == pytest.approx(170.67, abs=0.01)
    assert GemmProblem(1024, 1024, 1024, beta=1.0).minimal_bytes == 4 * 4 * 2**20
    assert GemmProblem(0, 0, 0).intensity == 0


@pytest.mark.parametrize(
    ("text", "sizes"), [("512", (512, 512, 512)), ("512x300x200", (512, 300, 200))]
)
def test_shapes_are_read(text, sizes):
    problem = GemmProblem.from_shape(text)
    assert (problem.m, problem.n, problem.k) == sizes
    assert GemmProblem.from_shape(problem.shape) == problem


@pytest.mark.parametrize("text", ["", "3x4", "3x4x5x6", "-3x4x5", "axbxc", "3.5"])
def test_what_is_no_shape(text):
    with pytest.raises(UsageError, match="MxNxK"):
        GemmProblem.from_shape(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"m": -1}, "m = -1"),
        ({"lda": 6}, "lda = 6 is shorter than a row of 7"),
        ({"ldc": -5}, "ldc = -5"),
        ({"alpha": float("nan")}, "alpha = nan is no finite fp32 number"),
        ({"beta": 1e39}, "beta = 1e\\+39 is no finite fp32 number"),
        ({"beta": float("-inf")}, "beta = -inf"),
    ],
)
def test_what_is_no_problem(fields, said):
    with pytest.raises(UsageError, match=said):
        GemmProblem(**{"m": 3, "n": 5, "k": 7} | fields)


@pytest.mark.parametrize("text", ["none", "bias", "relu", "bias+relu"])
def test_epilogues_are_read_and_written(text):
    assert str(Epilogue.parse(text)) == text
    assert Epilogue.parse(text.upper()) == Epilogue.parse(text)


def test_the_order_of_words_does_not_matter():
    assert Epilogue.parse("relu + bias") == Epilogue(bias=True, activation="relu")


@pytest.mark.parametrize("text", ["gelu", "bias+bias", "relu+relu", "", "bias+none"])
def test_what_is_no_epilogue(text):
    with pytest.raises(UsageError, match="use one of"):
        Epilogue.parse(text)


def test_cublaslt_names():
    names = {Epilogue.parse(text).cublaslt_name for text in ("none", "bias", "relu", "bias+relu")}
    assert names == {
        f"CUBLASLT_EPILOGUE_{name}" for name in ("DEFAULT", "BIAS", "RELU", "RELU_BIAS")
    }
