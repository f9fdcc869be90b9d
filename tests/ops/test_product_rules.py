"""BLAS's rules for numbers that matter, epilogues, and everything that is refused."""

import threading
from itertools import product
from math import erf, sqrt

import numpy as np
import pytest

import gemmkit
from gemmkit.devices.choose import gpu_problem
from gemmkit.errors import CompileError, DeviceError, UnsupportedProblem, UsageError

A, B = (np.random.default_rng(seed).standard_normal((9, 9)).astype(np.float32) for seed in range(2))
LONG = np.broadcast_to(np.float32(1), (1, 2**31))
NAN = np.full((9, 9), np.nan, np.float32)


def matmul(*arrays, **rest):
    return gemmkit.matmul(*arrays, device="emulator", **rest)


def grouped(a, b, **rest):
    return gemmkit.grouped_matmul([a], [b], device="emulator", **rest)[0]


def gemm(*arrays, **rest):
    return gemmkit.gemm(*arrays, device="emulator", **rest)


# --- BLAS ---------------------------------------------------------------------------------------


def test_beta_zero_does_not_read_c():
    c = NAN.copy()
    assert gemm(A, B, c) is c
    np.testing.assert_allclose(c, A @ B, rtol=1e-5, atol=1e-5)


def test_alpha_zero_reads_neither_a_nor_b():
    c = B.copy()
    gemm(NAN, NAN, c, alpha=0, beta=3)
    np.testing.assert_array_equal(c, 3 * B)
    np.testing.assert_array_equal(gemm(NAN, NAN, alpha=0), np.zeros((9, 9)))


def test_nan_and_infinity_go_where_they_belong():
    a = A.copy()
    a[3, 4], a[5, 6] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        wanted = a @ B
    result = matmul(a, B)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(wanted))
    np.testing.assert_array_equal(np.isposinf(result), np.isposinf(wanted))
    assert np.isnan(matmul(a, B, epilogue="relu")[3]).all()


def test_without_k_only_c_is_left():
    a, b = np.empty((4, 0), np.float32), np.empty((0, 5), np.float32)
    c = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_array_equal(matmul(a, b), np.zeros((4, 5)))
    np.testing.assert_array_equal(matmul(a, b, c=c, beta=2), 2 * c)


def test_c_broadcasts_and_stays_as_it_is():
    c = np.arange(9, dtype=np.float32)
    result = matmul(A, B, alpha=2, c=c, beta=-1)
    np.testing.assert_allclose(result, 2 * (A @ B) - c, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(c, np.arange(9))


@pytest.mark.parametrize(("transa", "transb"), [*product((False, True), repeat=2)])
def test_gemm_transposes(transa, transb):
    a, b = (A[:7, :5].T if transa else A[:7, :5]), (B[:5, :8].T if transb else B[:5, :8])
    result = gemm(a, b, transa=transa, transb=transb)
    np.testing.assert_allclose(result, A[:7, :5] @ B[:5, :8], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types(dtype):
    a, b = (np.rint(2 * x).astype(dtype) for x in (A, B))
    result = matmul(a, b)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, a @ b)


def test_the_type_of_the_result():
    a, b = A.astype(np.float16), B.astype(np.float16)
    for out_dtype in ("float32", np.float32, np.dtype("float32")):
        result = matmul(a, b, out_dtype=out_dtype)
        assert result.dtype == np.float32
    np.testing.assert_allclose(result, a.astype(float) @ b, rtol=1e-5, atol=1e-5)


# --- epilogues ----------------------------------------------------------------------------------

ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize(
    ("bias", "activation", "residual", "scale"),
    [
        ("row", "gelu", True, 0.5),
        ("column", "silu", False, -2.0),
    ],
)
def test_epilogues(bias, activation, residual, scale):
    a, b = A[:8, :7], B[:7, :6]
    vector = np.linspace(-1, 1, {"row": 8, "column": 6}[bias], dtype=np.float32)
    added = np.cos(np.arange(48)).astype(np.float32).reshape(8, 6) if residual else None
    kept = np.empty((8, 6), np.float32)
    epilogue = gemmkit.Epilogue(bias=bias, activation=activation, scale=scale, residual=residual)
    result = matmul(
        a, b, epilogue=epilogue, bias=vector, residual=added, auxiliary=kept, out=kept.T.copy().T
    )
    argument = a.astype(float) @ b + (vector[:, None] if bias == "row" else vector)
    wanted = scale * ACTIVATIONS[activation](argument)
    if residual:
        wanted = wanted + added
    np.testing.assert_allclose(kept, argument, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_arrays_imply_their_epilogue():
    bias, residual = A[0], B
    result = matmul(A, B, bias=bias, residual=residual)
    np.testing.assert_allclose(result, A @ B + bias + residual, rtol=1e-5, atol=1e-5)


def test_a_custom_expression():
    leaky = gemmkit.Epilogue.custom("x > 0 ? x : slope * x", slope=0.25)
    x = A @ B
    np.testing.assert_allclose(
        matmul(A, B, epilogue=leaky), np.where(x > 0, x, x / 4), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("expression", "line", "caret", "words"),
    [
        ("x + slope", "x + slope", "slope", r"'slope' is neither x .*custom\(\.\.\., slope=1\.0\)"),
        ("x * foo(x)", "x * foo(x)", "foo", "'foo' is not a CUDA function"),
        ("x +* 2.0f", "x +* 2.0f", "2.0f", "operand of"),
        ("x > 0 ? x", "x > 0 ? x;", ";", 'expected a ":"'),
        ("x +\n  x[1]", "  x[1]", "x[1]", "pointer-to-object"),
    ],
)
def test_what_is_wrong_in_a_custom_expression_is_shown_there(expression, line, caret, words):
    for multiply in (matmul, grouped):
        with pytest.raises(CompileError, match=words) as raised:
            multiply(A, B, epilogue=gemmkit.Epilogue.custom(expression))
        text = str(raised.value)
        assert text.startswith(f"the custom epilogue '{expression}' does not compile:\n")
        shown = next(each for each in text.split("\n") if each.startswith(">"))
        marked = text.split("\n")[text.split("\n").index(shown) + 1]
        assert shown.partition(" | ")[2].startswith(line)
        assert shown[marked.index("^") :].startswith(caret)


# --- what is refused ----------------------------------------------------------------------------

READ_ONLY = np.zeros((9, 9), np.float32)
READ_ONLY.flags.writeable = False
WHOLE = np.zeros((9, 18), np.float32)


@pytest.mark.parametrize(
    ("arguments", "rest", "words"),
    [
        ((A, B[:8]), {}, "9 columns and b of shape .* has 8 rows"),
        ((np.float32(1), B), {}, "a is a number"),
        ((np.stack([A] * 2), np.stack([B] * 3)), {}, "do not broadcast"),
        ((A, [[1.0]]), {}, "b has type list"),
        ((A.astype(int), B), {}, "a has type int64"),
        ((A.astype(complex), B), {}, "real and imaginary"),
        ((A, B.astype(float)), {}, "b has type float64 and a has type float32"),
        ((A, B), {"out": np.empty((9, 8), np.float32)}, r"out has the shape \(9, 8\)"),
        ((A, B), {"out": np.empty((9, 9)), "c": A, "beta": 1}, "the result has type float64"),
        ((A, B), {"out": READ_ONLY}, "read-only"),
        ((A, B), {"out": A}, "out overlaps a"),
        ((WHOLE[:, :9], B), {"out": WHOLE[:, 8:17]}, "out overlaps a"),
        ((A, B), {"out": np.broadcast_to(A[0], (9, 9))}, "read-only"),
        ((A, B), {"c": A[:, :4], "beta": 1}, "c has the shape"),
        ((A, B), {"beta": 1}, "beta = 1.0 needs c"),
        ((A, B), {"alpha": float("nan")}, "alpha = nan"),
        ((A, B), {"alpha": "two"}, "alpha = 'two' is not a number"),
        ((A, B), {"epilogue": "bias"}, "needs the array bias"),
        ((A, B), {"epilogue": "relu6"}, "unknown epilogue"),
        ((A, B), {"epilogue": 3}, "give an Epilogue"),
        ((A, B), {"bias": A[0, :8]}, "n = 9 elements"),
        ((A[:5], B), {"bias": A[0], "epilogue": "row_bias"}, "m = 5 elements"),
        ((A, B), {"residual": A[:4]}, "residual has the shape"),
        ((A, B), {"auxiliary": A[:4]}, "auxiliary has the shape"),
        ((A, B), {"auxiliary": B}, "auxiliary overlaps b"),
        ((A, B), {"out": WHOLE[:, :9], "auxiliary": WHOLE[:, :9]}, "both are written"),
        ((A, B), {"out_dtype": "int8"}, "out_dtype = 'int8' is not a type"),
        ((A, B), {"out_dtype": 3}, "out_dtype = 3 is not a type"),
        ((A, B), {"alpha": "2"}, "alpha = '2' is not a number"),
        ((A, B), {"alpha": 10**400}, "alpha is larger than any float"),
        ((None, B), {}, "a has type NoneType"),
        ((A, None), {}, "b has type NoneType"),
        ((np.ma.array(A, mask=A > 0), B), {}, "a is a masked array"),
        ((A, B), {"stream": 0}, "stream is for arrays on a GPU"),
    ],
)
def test_bad_calls_are_one_clear_sentence(arguments, rest, words):
    with pytest.raises(UsageError, match=words):
        matmul(*arguments, **rest)


def test_sides_beyond_32_bits_are_named():
    words = "k = 2,147,483,648: the kernels' indices are 32-bit"
    with pytest.raises(UnsupportedProblem, match=words):
        matmul(LONG, LONG.T)
    assert matmul(LONG[:0], LONG.T).shape == (0, 1)


def test_gemm_takes_matrices():
    with pytest.raises(UsageError, match=r"b has 1 dimension: use matmul"):
        gemm(A, B[0])


@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize(
    ("c", "words"),
    [
        (READ_ONLY, "^c cannot be written"),
        (A[:5], r"^c has the shape \(5, 9\)"),
        (A, "^c overlaps a"),
    ],
)
def test_gemm_tells_of_c_what_it_refuses(c, words, beta):
    with pytest.raises(UsageError, match=words):
        gemm(A, B, c, beta=beta)


@pytest.mark.parametrize("letter", ["n", "t", None, 2])
def test_gemm_takes_no_letters_for_transposes(letter):
    with pytest.raises(UsageError, match="use True or False"):
        gemm(A, B, transb=letter)


def test_devices_that_are_none():
    with pytest.raises(UsageError, match="use 'auto', 'cuda', 'emulator'"):
        gemmkit.matmul(A, B, device="tpu")
    if gpu_problem() is not None:
        with pytest.raises(DeviceError, match="no usable GPU"):
            gemmkit.matmul(A, B, device="cuda")


def test_columns_side_by_side_do_not_overlap():
    whole = np.random.default_rng(2).standard_normal((9, 18)).astype(np.float32)
    wanted = whole[:, :9] @ B
    matmul(whole[:, :9], B, out=whole[:, 9:])
    np.testing.assert_allclose(whole[:, 9:], wanted, rtol=1e-5, atol=1e-5)


def test_a_sanitized_device_may_compute():
    device = gemmkit.open_device("emulator", "h100", sanitize=True)
    result = gemmkit.matmul(A, B, device=device)
    np.testing.assert_allclose(result, A @ B, rtol=1e-5, atol=1e-5)


def test_threads_at_once():
    results = {}

    def work(seed):
        results[seed] = matmul(A + seed, B)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, result in results.items():
        np.testing.assert_allclose(result, (A + seed) @ B, rtol=1e-4, atol=1e-4)
