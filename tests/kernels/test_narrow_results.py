"""Results of 8 bits: rounded to nearest, saturating, stored whole, scaled by a number in memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from typed_run import SMALL, check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import PRODUCTION, find_kernel, kernels_for
from gemmkit.kernels.policy import policy, source_file
from gemmkit.problem import GemmProblem
from gemmkit.verify import Reference, make_inputs
from gemmkit.verify.bounds import Rounding
from gemmkit.verify.encoding import decode, encode
from gemmkit.verify.reference import compare, evaluate

E4M3, E5M2 = OPERAND_TYPES
H100, T4 = find_board("h100"), find_board("t4")
ONE = {"cluster_m": 1, "consumers": 1, "stages": 2}
# What is stored from shared memory by TMA, by the warps in words, in halves and in bytes.
ROWS = {"by TMA": (208, 208), "words": (203, 208), "pairs": (134, 134), "bytes": (131, 133)}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("keys", [{"BM": 64, "BN": 96}, {"BM": 16, "BN": 64}, {"BM": 8, "BN": 64}])
@pytest.mark.sample(6)
def test_tiles_and_leading_dimensions(device, keys, rows):
    n, ldc = ROWS[rows]
    problem = GemmProblem(70, n, 40, ldc=ldc, transb=True, dtype=E4M3, out_dtype=E5M2)
    config = find_kernel("gemm_fp8").configure({**keys, **ONE})
    check_exact(problem, run_typed(problem, device, kernel="gemm_fp8", config=config))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("kernel", ["gemm_fp8", "gemm_wgmma", "typed", "gemm_fp8_mma"])
@pytest.mark.sample(5)
def test_layouts_with_everything(device, kernel, layout):
    bias = "row" if layout[0] == "t" else "column"
    problem = GemmProblem(
        *(72, 33, 144, 0.5),
        dtype="float16" if kernel == "gemm_wgmma" else E4M3,
        out_dtype=E4M3,
        batch=2,
        epilogue=Epilogue(bias, "gelu_tanh", scale=0.75, scale_result=True),
    ).laid_out(layout)
    keys = (
        {"BM": 64, "BN": 32, **ONE} if kernel in ("gemm_fp8", "gemm_wgmma") else SMALL.get(kernel)
    )
    config = find_kernel(kernel).configure(keys or {})
    check(run_typed(problem, device, kernel=kernel, config=config, integers=False))


@pytest.mark.parametrize("dtype", OPERAND_TYPES)
@pytest.mark.parametrize("board", [H100, T4], ids=lambda board: board.key)
def test_numbers_are_rounded_as_by_the_reference(board, dtype):
    """At, beside and between what is halfway, below the smallest and above the largest number; by
    the instruction, and by bits where a board has none."""
    lowest = 0x3A00 if dtype == E4M3 else 0x3600
    upper = np.r_[np.arange(lowest, 0x4480, 4 if dtype == E4M3 else 16), 0, 0x7F7F, 0x7F80]
    lower, sign = np.array([0, 1, 0xFFFF], np.uint32), np.array([0, 1 << 31], np.uint32)
    bits = upper.astype(np.uint32)[:, None] << np.uint32(16) | lower | sign[:, None, None]
    numbers = np.append(bits.ravel().view(np.float32), np.float32("nan"))[:, None]
    problem = GemmProblem(*numbers.shape, 1, dtype="float32", out_dtype=dtype)
    given = numbers, np.ones((1, 1), np.float32)
    found = run_typed(problem, EmulatedDevice(board), given=given)
    check(found)
    with np.errstate(invalid="ignore"):
        rounded = decode(encode(numbers, dtype), dtype)
    assert np.array_equal(found.results[0], rounded, equal_nan=True)


def test_results_saturate_and_nan_stays():
    problem = GemmProblem(4, 1, 2, dtype="bfloat16", out_dtype=E5M2, alpha=4.0)
    a = np.array([[3e38, 3e38], [-1e6, 0], [np.inf, -np.inf], [-np.inf, 1]], np.float32)
    found = run_typed(problem, EmulatedDevice(H100), given=(a, np.ones((2, 1), np.float32)))
    check(found)
    assert np.array_equal(found.results[0].ravel(), [57344, -57344, np.nan, -57344], equal_nan=True)


def test_what_the_verifier_takes_for_wrong():
    """The next number, an infinity in place of the largest number, and what lies below an
    infinity."""
    problem = GemmProblem(3, 5, 1, dtype="bfloat16", out_dtype=E5M2)
    inputs = make_inputs(problem)
    rounding, expected = Rounding.of(problem, inputs), evaluate(problem, inputs)
    expected.values[0, 0], expected.values[1, 1] = np.inf, 1e6
    right = encode(expected.values, E5M2)
    assert np.array_equal(right[[0, 1], [0, 1]], [0x7B, 0x7B])
    assert compare(problem, rounding, decode(right, E5M2), expected).correct
    for place, bits in (((2, 3), right[2, 3] ^ 2), ((1, 1), 0x7C), ((1, 1), 0x7A), ((0, 0), 0x7A)):
        wrong = right.copy()
        wrong[place] = bits
        judged = compare(problem, rounding, decode(wrong, E5M2), expected)
        assert judged.wrong is not None
        assert np.argwhere(judged.wrong).tolist() == [list(place)]


def test_elements_that_nobody_writes_are_found():
    problem = GemmProblem(9, 7, 5, ldc=12, dtype=E4M3, out_dtype=E4M3)
    inputs = make_inputs(problem)
    reference = Reference(problem, inputs)
    assert "never written" in reference.check(inputs.c).detail
    right = inputs.c.copy()
    right.resize(9 * 12)
    numbers = reference.products[0].blocks[0][2].values
    right.reshape(9, 12)[:, :7] = encode(numbers, E4M3)
    right[8] = 0
    assert "padding" in reference.check(right[: inputs.c.size]).detail


def test_the_scale_counts_in_the_bound():
    own = Epilogue("column", scale_result=True)
    problem = GemmProblem(8, 8, 16, dtype=E4M3, out_dtype=E4M3, epilogue=own)
    inputs = make_inputs(problem, kind="integer")
    assert inputs.arrays["bias"].dtype == np.float32
    assert inputs.scale_of(problem) == inputs.scale_result[0]
    assert Rounding.of(problem, inputs).exact
    drawn = make_inputs(problem)
    assert drawn.scale_of(problem) not in (0, 1)
    exact, scaled = (evaluate(problem, drawn.for_epilogue(each)) for each in (Epilogue(True), own))
    assert np.array_equal(exact.values * float(drawn.scale_result[0]), scaled.values)
    assert Rounding.of(problem, drawn).scale == drawn.scale_result[0]


def test_how_the_scale_reaches_the_kernel():
    leaky = Epilogue.custom("x > 0 ? x : slope * x", slope=0.5)
    epilogue = Epilogue(activation=leaky.activation, scale_result=True)
    problem = GemmProblem(40, 24, 16, dtype=E4M3, out_dtype=E5M2, epilogue=epilogue)
    assert "SCALE | SCALE_IN_MEMORY, Float8E5M2, float" in policy(problem)
    kernel = find_kernel("typed")
    plan = kernel.plan(problem, kernel.configure(SMALL["typed"]), H100)
    assert plan.signature[-2:] == ("scale_result", "epilogue_0")
    assert source_file("typed", "", problem).options[1:3] == (
        "-DSCALE_RESULT_PARAMETER=, const float* scale_result",
        "-DSCALE_RESULT=, scale_result",
    )
    assert not run_typed(problem, EmulatedDevice(H100, sanitize=True)).findings
    assert str(Epilogue.parse("relu+scale_result")) == "relu+scale_result"


def test_which_kernels_write_them():
    def names(dtype):
        return [
            each.name for each in kernels_for([GemmProblem(8, 8, 8, dtype=dtype, out_dtype=E4M3)])
        ]

    assert set(names(E5M2)) == {"typed", "gemm_fp8", "gemm_fp8_mma"}
    assert names("bfloat16") == ["typed", "gemm_wgmma"]
    assert names("float32") == ["typed"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"beta": 1.0}, UsageError, "float8_e4m3 go without C, which would have that type"),
        ({"epilogue": "residual"}, UsageError, "go without a residual, which"),
        ({"epilogue": "gelu+aux"}, UsageError, "go without an auxiliary output, which"),
        (
            {"dtype": "float64"},
            UnsupportedType,
            "products of float64 have no results of float8_e4m3",
        ),
        (
            {"epilogue": "scale_result", "out_dtype": "bfloat16"},
            UsageError,
            "scale_result is of results of float8_e4m3 and float8_e5m2, not bfloat16",
        ),
    ],
)
def test_what_is_refused(given, error, message):
    with pytest.raises(error, match=re.escape(message)):
        GemmProblem(4, 5, 6, **{"dtype": E5M2, "out_dtype": E4M3, **given})


def test_groups_have_none():
    with pytest.raises(UsageError, match="groups of products have no results of float8_e5m2"):
        GemmProblem.of_groups("4x5x6*2", dtype=E4M3, out_dtype=E5M2)


@pytest.mark.parametrize("dtype", [E4M3, "bfloat16", "float32"])
def test_kernels_for_groups_refuse_them_for_one_product(dtype):
    problem = GemmProblem(16, 64, 64, dtype=dtype, out_dtype=E4M3, transb=True)
    for kernel in PRODUCTION:
        if (kernel.takes_groups or kernel.takes_ragged) and dtype in kernel.dtypes:
            assert "write" in (kernel.supports(problem, kernel.default, H100) or ""), kernel.name
