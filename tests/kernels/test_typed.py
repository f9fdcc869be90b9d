"""`typed`: types, layouts, alignments, batches and epilogues give what they must."""

from __future__ import annotations

import numpy as np
import pytest
from typed_run import ALIGNED, ODD, check, check_exact, check_shapes, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, find_kernel, instead_of
from gemmkit.kernels.production.typed import access_widths
from gemmkit.problem import BROADCAST, GemmProblem

KERNEL = find_kernel("typed")
H100, T4 = find_board("h100"), find_board("t4")


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize(
    ("dtype", "out", "layout", "shapes"),
    [
        ("float64", "float64", "nn", ALIGNED),
        ("float64", "float64", "nt", ODD),
        ("float64", "float64", "tn", ODD),
        ("float16", "float16", "nn", ALIGNED),
        ("float16", "float16", "tt", ALIGNED),
        ("float16", "float16", "nt", ODD),
        ("bfloat16", "bfloat16", "nt", ALIGNED),
        ("bfloat16", "float32", "tn", ODD),
        ("float32", "float16", "tn", ALIGNED),
        ("float64", "float32", "tt", ODD),
    ],
    ids=lambda value: value if isinstance(value, str) else "odd" if value is ODD else "aligned",
)
@pytest.mark.sample(4)
def test_shapes(device, dtype, out, layout, shapes):
    check_shapes("typed", device, dtype, out, layout, shapes)


@pytest.mark.parametrize(("dtype", "transb"), [("float64", 0), ("float16", 0), ("bfloat16", 1)])
def test_rounding_stays_within_the_bounds(device, dtype, transb):
    problem = GemmProblem(40, 48, 504, 1 / 3, -0.7, transb=bool(transb), dtype=dtype)
    check(run_typed(problem, device, integers=False))


def test_fp64_problems_have_fp64_factors(device):
    problem = GemmProblem(8, 8, 8, alpha=2.0**300, beta=2.0**299, dtype="float64")
    outcome = run_typed(problem, device)
    check(outcome)
    assert abs(outcome.results).max() > 2.0**300


def test_batches(device):
    problem = GemmProblem(
        40, 24, 16, batch=3, stride_b=BROADCAST, stride_c=24, ldc=80, beta=1.0, dtype="float16"
    )
    check_exact(problem, run_typed(problem, device))
    odd = GemmProblem(33, 5, 7, batch=4, stride_a=BROADCAST, stride_b=37, dtype="float64")
    check_exact(odd, run_typed(odd, device))


EPILOGUES = [
    ("float64", None, Epilogue("row", "gelu", residual=True, scale=0.75, auxiliary=True)),
    ("float64", None, Epilogue("column", "gelu_tanh", scale=1 / 3)),
    ("float64", None, Epilogue(activation="silu", residual=True)),
    ("float16", None, Epilogue("column", "gelu", auxiliary=True)),
    ("bfloat16", None, Epilogue("row", "gelu_tanh", residual=True)),
    ("bfloat16", "float32", Epilogue("column", "silu", True, 0.1, True)),
]


@pytest.mark.parametrize(
    ("dtype", "out", "epilogue"), EPILOGUES, ids=lambda value: str(value or "same")
)
@pytest.mark.sample(3)
def test_epilogues(device, dtype, out, epilogue):
    problem = GemmProblem(
        24, 40, 16, alpha=0.3, beta=0.5, epilogue=epilogue, dtype=dtype, out_dtype=out
    )
    outcome = run_typed(problem, device, integers=False)
    check(outcome)


def test_custom_activation(device):
    epilogue = Epilogue.custom("x > 0 ? x : slope * x", slope=0.125)
    problem = GemmProblem(24, 40, 16, epilogue=epilogue, dtype="float64")
    outcome = run_typed(problem, device)
    plain = outcome.expected[0].values
    assert (plain < 0).any()
    assert np.array_equal(outcome.results[0], np.where(plain > 0, plain, plain / 8))


def test_fp64_sums_become_bfloat16_in_one_rounding(device):
    """1 + 2**-8 lies in the middle between two numbers; what is added decides."""
    problem = GemmProblem(8, 8, 8, dtype="float64", out_dtype="bfloat16")
    for added, wanted in ((0.0, 1.0), (2.0**-40, 1 + 2.0**-7), (-(2.0**-40), 1.0)):
        a = np.zeros((8, 8))
        a[:, 0] = 1 + 2.0**-8 + added
        outcome = run_typed(problem, device, given=(a, np.ones((8, 8))))
        assert np.all(outcome.results == wanted)


def test_boards_without_bfloat16_conversions_round_alike():
    problem = GemmProblem(24, 40, 56, dtype="bfloat16")
    device = EmulatedDevice(T4, sanitize=True)
    check(run_typed(problem, device, integers=False))
    check_exact(problem, run_typed(problem, device))


def test_float32_where_no_rung_takes_it():
    """Boards without cp.async have no rung for transposed matrices."""
    epilogue = Epilogue("row", "relu", residual=True)
    problem = GemmProblem(40, 72, 24, beta=2.0, epilogue=epilogue, transa=True)
    check_exact(problem, run_typed(problem, EmulatedDevice(T4, sanitize=True)))


def test_the_default_configuration(device):
    problem = GemmProblem(136, 152, 24, dtype="float16")
    check_exact(problem, run_typed(problem, device, config=KERNEL.default))


@pytest.mark.parametrize(
    ("problem", "widths"),
    [
        (GemmProblem(8, 8, 8, dtype="float64"), (2, 2, 2)),
        (GemmProblem(8, 8, 8, dtype="float16"), (8, 8, 4)),
        (GemmProblem(8, 12, 10, dtype="float16"), (2, 4, 4)),
        (GemmProblem(9, 12, 10, dtype="float16", transa=True, lda=12), (1, 4, 4)),
        (GemmProblem(8, 8, 8, dtype="float16", alignment=4), (2, 2, 1)),
        (GemmProblem(8, 8, 8, dtype="float16", alignment=8), (4, 4, 4)),
        (GemmProblem(8, 8, 8, dtype="float64", out_dtype="float16", alignment=8), (1, 1, 2)),
        (GemmProblem(8, 8, 8, batch=2, stride_b=68, stride_c=65, dtype="float16"), (8, 4, 1)),
        (GemmProblem(8, 8, 8, dtype="bfloat16", out_dtype="float64", alignment=8), (4, 4, 1)),
    ],
)
def test_access_widths(problem, widths):
    assert access_widths(problem, 16 // ITEM_BYTES[problem.sum_dtype]) == widths


@pytest.mark.parametrize(
    ("problem", "changes", "board", "reason"),
    [
        (GemmProblem(8, 8, 8, dtype="float64", alignment=4), {}, H100, "multiples of 8 bytes"),
        (GemmProblem(8, 8, 8, dtype="float64"), {"TM": 16, "WM": 64}, H100, "sums take 256 regis"),
        (GemmProblem(8, 8, 8, dtype="float64"), {"BK": 16}, T4, "bytes of shared memory"),
        (GemmProblem(8, 8, 8, dtype="float64"), {"WM": 64}, H100, "a warp has 32"),
        (GemmProblem(8, 8, 8, dtype="float16"), {"BK": 12}, H100, "cannot share the A tile"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(problem, changes, board, reason):
    refused = KERNEL.supports(problem, KERNEL.configure(changes), board)
    assert refused is not None
    assert reason in refused


def test_rungs_send_other_types_to_it():
    problem, kernel = GemmProblem(8, 8, 8, dtype="float64"), find_kernel("gemm_tiled")
    assert kernel.accepts(problem, H100) == "'gemm_tiled' is for float32, not float64"
    assert "'typed' " in instead_of(kernel, problem, H100)
    assert KERNEL not in LADDER
