"""How precisely float32 is multiplied: what problems ask for, and which kernels serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmkit.bench.ladder import asked_types
from gemmkit.dtypes import PRECISIONS, is_precise_enough
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel, kernels_for, tunable_kernels
from gemmkit.kernels.fitting import in_types_of
from gemmkit.kernels.plan import SourceFile
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
CUBE = GemmProblem(64, 64, 64)
NAIVE = find_kernel("naive")
BY_PRECISION = {
    each: replace(
        NAIVE, name=f"own_{each}", precision=each, file=SourceFile(NAIVE.source, "own.cu")
    )
    for each in PRECISIONS
}


def in_precision(precision, **changes):
    return replace(CUBE, precision=precision, **changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precision": "tf33"}, "unknown precision 'tf33': did you mean tf32"),
        ({"precision": "highest"}, "unknown precision 'highest'.*ieee, fp32, tf32"),
        (
            {"precision": "tf32", "dtype": "bfloat16"},
            "precision 'tf32' is of products of float32, and A and B are of bfloat16: leave it out",
        ),
        ({"precision": "fp32", "dtype": "float64"}, "A and B are of float64"),
        ({"precision": "fast"}, "A and B are of float32: use one of ieee, fp32, tf32"),
        (
            {"precision": "fp32", "dtype": "e4m3"},
            "A and B are of float8_e4m3: use one of ieee, fast",
        ),
        ({"precision": "high", "dtype": "e5m2"}, "unknown precision 'high': use one of ieee, fast"),
    ],
)
def test_what_is_no_precision(fields, message):
    with pytest.raises(UsageError, match=message):
        GemmProblem(1, 2, 3, **fields)


def test_a_precision_is_a_word_in_any_case():
    assert GemmProblem(1, 2, 3, precision=" TF32").precision == "tf32"
    with pytest.raises(UnsupportedType, match="precision = 32 is of type int: use one of ieee"):
        GemmProblem(1, 2, 3, precision=32)
    assert GemmProblem(1, 2, 3, dtype="float16", precision="ieee").precision == "ieee"


def test_problems_that_differ_in_precision_alone_differ():
    assert len({in_precision(each) for each in PRECISIONS}) == 3
    assert in_precision("ieee") == CUBE
    for made in (
        in_precision("tf32").resized(3, 4, 5),
        in_precision("tf32").laid_out("tt"),
        in_precision("tf32", batch=3).single,
        GemmProblem.of_groups("3x4x5,6x7x8", precision="tf32").product(1),
        GemmProblem.of_groups("3x4x5,6x7x8", precision="tf32").typical,
    ):
        assert made.precision == "tf32"


@pytest.mark.parametrize("asked", PRECISIONS)
@pytest.mark.parametrize("own", PRECISIONS)
def test_kernels_of_the_same_precision_or_a_higher_one_serve(own, asked):
    kernel, problem = BY_PRECISION[own], in_precision(asked)
    serves = PRECISIONS.index(own) <= PRECISIONS.index(asked)
    assert is_precise_enough(own, asked) == serves == kernel.takes_types(problem)
    refused = kernel.supports(problem, kernel.default, H100)
    said = f"'own_{own}' multiplies float32 in {own}: --precision {own} allows that"
    assert refused == (None if serves else said)


@pytest.mark.parametrize(
    ("names", "given", "wanted"),
    [
        ("naive", {}, ("float32", "ieee")),
        ("gemm_fp16x3,gemm_tf32,naive", {}, ("float32", "tf32")),
        ("naive,gemm_fp16x3", {}, ("float32", "fp32")),
        ("naive,gemm_tf32", {"precision": "ieee"}, ("float32", "ieee")),
        ("gemm_wgmma", {}, ("bfloat16", "ieee")),
        ("typed_mma,gemm_wgmma", {}, ("float16", "ieee")),
        ("typed,gemm_fp8", {}, ("float8_e4m3", "ieee")),
        ("typed", {"precision": "Fast"}, ("float8_e4m3", "fast")),
        ("gemm_tf32", {"dtype": "float32"}, ("float32", "ieee")),
    ],
)
def test_kernels_named_together_multiply_what_all_of_them_take(names, given, wanted):
    options = {"dtype": None, "out_dtype": None, "precision": None, **given}
    problem = Asked(**asked_types(names.split(","), **options)).problem("64x64x64")
    assert (problem.dtype, problem.precision) == wanted
    able = [find_kernel(each).takes_types(problem) for each in names.split(",")]
    assert all(able) == ("ieee" not in given.values() and "dtype" not in given)


def test_kernels_that_share_no_type_are_left_to_refuse():
    assert asked_types(["naive", "wmma"], None, None, None)["dtype"] is None
    assert asked_types(["wmma", "gemm_fp8"], None, None, None)["dtype"] == "bfloat16"
    with pytest.raises(UsageError, match="A and B are of float8_e4m3: use one of ieee, fast"):
        GemmProblem(1, 2, 3, **asked_types(["gemm_fp8"], None, None, "tf32"))


def test_a_refusal_names_kernels_that_are_precise_enough():
    kernel = BY_PRECISION["tf32"]
    with pytest.raises(UnsupportedProblem, match=r"--precision tf32 allows that; '\w+'"):
        kernel.plan(CUBE, kernel.default, H100)
    assert kernel.plan(in_precision("tf32"), kernel.default, H100).kernel == "own_tf32"


def test_a_precision_is_of_float32_alone():
    """A kernel that multiplies float32 in TF32 may multiply other types too."""
    kernel = replace(find_kernel("typed"), precision="tf32")
    for dtype in ("float64", "float16", "bfloat16"):
        assert kernel.takes_types(replace(CUBE, dtype=dtype, out_dtype=dtype))
    assert not kernel.takes_types(CUBE)


def test_a_kernel_that_is_named_alone_gets_the_precision_that_it_has():
    assert Asked().problem((64, 64, 64), BY_PRECISION["tf32"]) == in_precision("tf32")
    assert Asked().problem((64, 64, 64), NAIVE) == CUBE
    # With a type, a precision is to be said too.
    assert Asked(dtype="float32").problem((64, 64, 64), BY_PRECISION["tf32"]) == CUBE
    assert Asked(precision="tf32").problem((64, 64, 64), NAIVE) == in_precision("tf32")
    assert in_types_of(BY_PRECISION["fp32"], CUBE) == in_precision("fp32")
    assert in_types_of(NAIVE, in_precision("tf32")) == in_precision("tf32")


def test_another_type_has_no_precision():
    half = Asked(dtype="fp16").problem(in_precision("tf32"))
    assert half == GemmProblem(64, 64, 64, dtype="float16")
    assert Asked(dtype="fp32").problem(in_precision("tf32")) == in_precision("tf32")
    assert Asked(precision="ieee").problem(in_precision("tf32")) == CUBE
    with pytest.raises(UsageError, match="precision 'tf32' is of products of float32"):
        Asked(dtype="fp16", precision="tf32").problem((64, 64, 64))


def test_what_runs_where_nobody_names_kernels(monkeypatch):
    fast = replace(find_kernel("typed"), name="fast", precision="tf32")
    names = ("LADDER", "_FOR_ONE_SHAPE")
    for name in names:
        monkeypatch.setattr(f"gemmkit.kernels.catalog.{name}", (NAIVE, fast))
    lower = in_precision("tf32")
    assert kernels_for([CUBE]) == (NAIVE,)
    assert kernels_for([lower]) == (NAIVE, fast)
    assert fast not in tunable_kernels([CUBE], H100)
    assert fast in tunable_kernels([lower], H100)
