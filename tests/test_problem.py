"""Problems and epilogues: what they say of themselves, and what they refuse."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from gemmkit.dispatch.choose import choose
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import BROADCAST, GemmProblem, read_problem


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


@pytest.mark.parametrize("text", ["", "3x4", "3x4x5x6x7", "3x4x5*6", "-3x4x5", "axbxc", "3.5"])
def test_what_is_no_shape(text):
    with pytest.raises(UsageError, match="MxNxK"):
        GemmProblem.from_shape(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"m": -1}, "m = -1"),
        ({"lda": 6}, "lda = 6 is smaller than a row of 7"),
        ({"ldc": -5}, "ldc = -5"),
        ({"alpha": float("nan")}, "alpha = nan is not a finite fp32 number"),
        ({"beta": 1e39}, "beta = 1e\\+39 is not a finite fp32 number"),
        ({"beta": float("-inf")}, "beta = -inf"),
    ],
)
def test_what_is_no_problem(fields, said):
    with pytest.raises(UsageError, match=said):
        GemmProblem(**{"m": 3, "n": 5, "k": 7} | fields)


@pytest.mark.parametrize(
    "text",
    [
        *("none", "bias", "relu", "bias+relu", "row_bias+gelu_tanh+residual", "silu", "aux"),
        *("bias+gelu+residual+aux+scale=0.5", "relu+scale=1e+20", "scale=-2.5e-05"),
    ],
)
def test_epilogues_are_read_and_written(text):
    assert str(Epilogue.parse(text)) == text
    assert Epilogue.parse(text.upper()) == Epilogue.parse(text)


def test_the_order_of_words_does_not_matter():
    assert Epilogue.parse("relu + bias") == Epilogue(bias=True, activation="relu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tanh", r"unknown epilogue 'tanh': did you mean gelu_tanh\?$"),
        ("bais+relu", r"unknown epilogue 'bais': did you mean bias\b"),
        ("xyz", "unknown epilogue 'xyz': use one of bias, .* joined by '\\+', such as bias\\+relu"),
        ("", "unknown epilogue '': use one of"),
        ("bias+row_bias", "'row_bias' does not fit in the epilogue 'bias\\+row_bias'"),
        ("relu+gelu", "'gelu' does not fit"),
        ("bias+none", "'none' does not fit"),
        ("aux+aux", "'aux' does not fit"),
        ("scale=2+scale=3", "'scale=3' does not fit"),
        ("scale", "unknown epilogue 'scale'"),
        ("scale=", "'scale=' is not a scale: write scale=0.5"),
        ("relu+scale=two", "'scale=two' is not a scale"),
        ("scale=inf", "scale = inf is not a finite fp32 number"),
    ],
)
def test_what_is_no_epilogue(text, said):
    with pytest.raises(UsageError, match=said):
        Epilogue.parse(text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Epilogue("col"), "unknown bias 'col': did you mean column"),
        (lambda: Epilogue(activation="tanh"), "unknown activation 'tanh': did you mean gelu_tanh"),
        (lambda: Epilogue(scale="2"), "scale = '2' is not a number"),
        (lambda: Epilogue(scale=1e39), "scale = 1e\\+39 is not a finite fp32 number"),
        (lambda: Epilogue.custom(" "), "not a single CUDA expression"),
        (lambda: Epilogue.custom("x; return 0"), "not a single CUDA expression"),
        (lambda: Epilogue.custom("fmaxf(x, 0.0f"), "has an unmatched '\\('"),
        (lambda: Epilogue.custom("(x[0)]"), "has an unmatched '\\)'"),
        (lambda: Epilogue.custom("x)"), "has an unmatched '\\)'"),
        (lambda: Epilogue.custom(3), "a CUDA expression of x, not 3"),
        (lambda: Epilogue.custom("x * x", x=2), "cannot be called 'x'"),
        (lambda: Epilogue.custom("x * s", s="2"), "parameter s = '2' is not a number"),
    ],
)
def test_epilogues_that_cannot_be_meant(make, said):
    with pytest.raises(UsageError, match=said):
        make()


def test_an_epilogues_numbers_may_be_numpys():
    assert Epilogue(scale=np.float32(0.5)) == Epilogue(scale=0.5)
    assert str(Epilogue.custom("x * s", s=np.float32(2))) == "custom(x * s;s=2.0)"


def test_cublaslt_names():
    names = {Epilogue.parse(text).cublaslt_name for text in ("none", "bias", "relu", "bias+relu")}
    assert names == {
        f"CUBLASLT_EPILOGUE_{name}" for name in ("DEFAULT", "BIAS", "RELU", "RELU_BIAS")
    }


def test_a_batch_counts_its_products():
    problem = GemmProblem.from_shape("64x32x16x1000")
    assert problem == GemmProblem(64, 32, 16, batch=1000)
    assert problem.shape == "64x32x16x1000"
    assert problem.single == GemmProblem(64, 32, 16)
    assert problem.flops == 1000 * problem.single.flops
    assert problem.minimal_bytes == 1000 * problem.single.minimal_bytes
    assert read_problem((64, 32, 16, 1000)) == problem
    assert read_problem((64, 32, 16)) == problem.single
    empty = GemmProblem(64, 32, 16, batch=0)
    assert empty.flops == empty.minimal_bytes == empty.intensity == 0
    assert GemmProblem.from_shape(empty.shape) == empty


def test_strides_are_tight_unless_told():
    problem = GemmProblem(3, 5, 7, lda=8, batch=4)
    assert problem.strides == (24, 35, 15)
    # A problem made of another keeps them; one product has none.
    assert replace(problem, alpha=2.0).strides == problem.strides
    assert replace(problem, batch=1).strides == (0, 0, 0)
    assert replace(problem, batch=1) == GemmProblem(3, 5, 7, lda=8)
    told = GemmProblem(3, 5, 7, batch=4, stride_a=30, stride_b=1, stride_c=15)
    assert told.strides == (30, 1, 15)


def test_a_shared_operand_is_read_once():
    problem = GemmProblem(3, 5, 7, batch=4, stride_b=BROADCAST)
    assert problem.strides == (21, 0, 15)
    assert replace(problem, beta=1.0).stride_b == BROADCAST
    assert problem.minimal_bytes == 4 * (4 * 21 + 35 + 4 * 15)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batch": -1}, "batch = -1: sizes must be 0 or more"),
        ({"stride_a": -2}, r"stride_a = -2: .* or BROADCAST \(-1\)"),
        ({"stride_c": BROADCAST}, "stride_c = -1: .*: each product has its own C"),
        ({"stride_c": 14}, "stride_c = 14 makes the matrices of C overlap: use at least 15"),
        ({"ldc": 19, "stride_c": 5}, "overlap: use at least 43"),
        ({"ldc": 40, "stride_c": 4}, "overlap"),
    ],
)
def test_what_is_no_batch(fields, said):
    with pytest.raises(UsageError, match=said):
        GemmProblem(**{"m": 3, "n": 5, "k": 7, "batch": 4} | fields)


@pytest.mark.parametrize("fields", [{"ldc": 20, "stride_c": 5}, {"m": 1, "stride_c": 5}])
def test_matrices_of_c_may_lie_inside_each_others_rows(fields):
    assert GemmProblem(**{"m": 3, "n": 5, "k": 7, "batch": 4} | fields).strides[2] == 5


def test_factors_are_of_the_type_of_the_sums():
    assert GemmProblem(1, 1, 1, alpha=1e300, dtype="float64").alpha == 1e300
    for dtype in ("float32", "float16", "bfloat16"):
        with pytest.raises(UsageError, match="finite fp32"):
            GemmProblem(1, 1, 1, beta=1e300, dtype=dtype)
    with pytest.raises(UsageError, match="finite fp64"):
        GemmProblem(1, 1, 1, beta=math.inf, dtype="float64")


@pytest.mark.parametrize(
    ("short", "full"),
    [("half", "float16"), ("bf16", "bfloat16"), ("fp32", "float32"), ("double", "float64")],
)
def test_short_names_of_types(short, full):
    problem = GemmProblem(2, 3, 4, dtype=short, out_dtype=short)
    assert (problem.dtype, problem.out_dtype) == (full, full)
    assert problem == GemmProblem(2, 3, 4, dtype=full)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Epilogue(bias=3),
        lambda: Epilogue(activation=3),
        lambda: Epilogue(residual=3),
        lambda: Epilogue(scale="x"),
        lambda: Epilogue.custom(b"x"),
    ],
)
def test_epilogues_of_wrong_types(make):
    with pytest.raises(TypeError):
        make()


def test_expressions_with_hidden_characters():
    with pytest.raises(UsageError, match="unprintable"):
        Epilogue.custom("x \0 + 1")
    with pytest.raises(UsageError, match="exceeds fp32's range"):
        Epilogue.custom("slope * x", slope=10**400)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GemmProblem("1", 2, 3), "m = '1' is of type str: use an integer"),
        (lambda: GemmProblem(1, 2.5, 3), "n = 2.5 is of type float: use an integer"),
        (lambda: GemmProblem(1, 2, None), "k = None is of type NoneType: use an integer"),
        (lambda: GemmProblem(True, 2, 3), "m = True is of type bool: use an integer"),
        (lambda: GemmProblem(1, 2, 3, lda="9"), "lda = '9' is of type str: use an integer"),
        (lambda: GemmProblem(1, 2, 3, stride_c=1.0), "stride_c = 1.0 is of type float"),
        (lambda: GemmProblem(1, 2, 3, beta="x"), "beta = 'x' is of type str: use a number"),
        (lambda: GemmProblem(1, 2, 3, transa=1), "transa = 1 is of type int: use True or False"),
        (lambda: GemmProblem(1, 2, 3, epilogue=3), "epilogue = 3 is of type int: use an Epilogue"),
        (lambda: GemmProblem(1, 2, 3, groups="1x2x3"), "use GemmProblem.of_groups"),
        (lambda: GemmProblem(1, 2, 3, dtype=[]), "unknown dtype '[]'"),
        (lambda: GemmProblem(1, 2, 3, dtype="flaot32"), "unknown dtype 'flaot32': did you mean"),
        (lambda: GemmProblem(1, 2, 3, dtype="FP8"), "did you mean fp8_e4m3 or fp8_e5m2?"),
        (lambda: GemmProblem(1, 2, 3, dtype="float8"), "mean float8_e4m3 or float8_e5m2?"),
        (lambda: GemmProblem(1, 2, 3, dtype="tf32"), "dtype 'tf32' is not supported for matrices"),
        (lambda: read_problem(None), "None is not a shape"),
        (lambda: find_board(None), "None is not a board"),
        (lambda: find_kernel(None), "None is not the name of a kernel"),
        (lambda: Kernel.from_file(None), "None is not a path"),
        (lambda: Kernel.from_ptx(3, args="", grid="1", block="1"), "3 is not a path"),
    ],
)
def test_what_has_another_type_is_one_clear_message(make, message):
    with pytest.raises(UnsupportedType, match=re.escape(message)):
        make()


@pytest.mark.parametrize("alignment", [0, 3, -8, 12])
def test_an_alignment_is_a_power_of_two(alignment):
    with pytest.raises(UsageError, match=f"alignment = {alignment} is not a power of two"):
        GemmProblem(1, 2, 3, alignment=alignment)


def test_what_means_the_same_is_accepted():
    plain = GemmProblem(3, 4, 5, alpha=2.0, dtype="float16", transa=True)
    numpys = GemmProblem(
        *np.array([3, 4, 5]),
        alpha=np.float32(2),
        dtype=np.float16,
        transa=np.True_,
        epilogue="none",
    )
    assert numpys == plain
    assert [type(each) for each in (numpys.m, numpys.alpha, numpys.transa)] == [int, float, bool]
    assert GemmProblem(4, 5, 6, epilogue="bias+relu").epilogue == Epilogue(True, "relu")
    assert read_problem([3, 4, 5]) == GemmProblem(3, 4, 5)
    assert choose([4, 5, 6], "h100", store=None) == choose(
        GemmProblem(4, 5, 6), find_board("h100"), store=None
    )


def test_case_does_not_matter_and_none_is_none():
    assert Epilogue(activation=" ReLU") == Epilogue(activation="relu")
    assert Epilogue("Row", None) == Epilogue("row")
    assert Epilogue(None) == Epilogue()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("__syncthreads(), x", "has a comma outside of parentheses"),
        ("(__syncthreads(), x)", "uses __syncthreads"),
        ("x + threadIdx.x", "uses threadIdx"),
        ("atomicAdd(&x, 1.0f)", "uses atomicAdd"),
        ("__shfl_down_sync(~0u, x, 1)", "uses __shfl_down_sync"),
    ],
)
def test_an_expression_is_of_one_element(expression, message):
    with pytest.raises(UsageError, match=message):
        Epilogue.custom(expression)


@pytest.mark.parametrize("name", ["__restrict__", "__x", "a__b", "_X"])
def test_names_that_are_the_compilers(name):
    with pytest.raises(UsageError, match=f"cannot be called '{name}'"):
        Epilogue.custom("x", **{name: 1.0})


@pytest.mark.parametrize(
    ("epilogue", "elements"),
    [
        (Epilogue(), 20),
        (Epilogue(residual=True), 40),
        (Epilogue(auxiliary=True), 40),
        (Epilogue("column", "relu", residual=True), 40 + 5),
        (Epilogue("row"), 20 + 4),
    ],
)
def test_what_an_epilogue_reads_and_writes_counts_in_the_type_of_c(epilogue, elements):
    one = GemmProblem(4, 5, 6, dtype="bfloat16", out_dtype="float32", epilogue=epilogue)
    assert one.minimal_bytes == 2 * (24 + 30) + 4 * elements
    grouped = GemmProblem.of_groups("4x5x6*3", epilogue=epilogue)
    assert grouped.minimal_bytes == 3 * 4 * (24 + 30 + elements)
