"""`typed`: types, layouts, alignments, batches and epilogues give what they must."""

from __future__ import annotations

import numpy as np
import pytest
from typed_run import KERNEL, Outcome, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.kernels.ladder import LADDER, find_kernel
from gemmkit.kernels.typed import access_widths
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.verify.typed import decoded, encoded

H100, T4 = find_board("h100"), find_board("t4")

# All sizes and pitches even, or all odd: each family is one kernel, compiled once.
ALIGNED = {
    "more than one tile": {"m": 72, "n": 40, "k": 56},
    "padded rows": {"m": 40, "n": 72, "k": 24, "lda": 80, "ldb": 88, "ldc": 96},
    "k below the tile": {"m": 8, "n": 104, "k": 8, "alpha": 0.5, "beta": -2.0},
    "no products": {"m": 16, "n": 40, "k": 0, "beta": 0.5},
    "no rows": {"m": 0, "n": 40, "k": 8},
    "alpha 0": {"m": 16, "n": 8, "k": 16, "alpha": 0.0},
}
ODD = {
    "one more": {"m": 65, "n": 33, "k": 49},
    "padded rows": {"m": 35, "n": 67, "k": 15, "lda": 81, "ldb": 91, "ldc": 73, "beta": 1.0},
    "one element": {"m": 1, "n": 1, "k": 1, "alpha": -1.5},
    "row": {"m": 1, "n": 77, "k": 5},
    "column": {"m": 77, "n": 1, "k": 17},
    "alpha 0": {"m": 5, "n": 3, "k": 7, "alpha": 0.0, "beta": 0.5},
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


def check(outcome: Outcome) -> None:
    """Within the bounds everywhere, nothing else written, no rule broken."""
    assert not outcome.findings
    assert outcome.untouched
    for result, expected in zip(outcome.results, outcome.expected, strict=True):
        assert np.all(abs(result - expected.values) <= expected.bounds)


def check_exact(problem: GemmProblem, outcome: Outcome) -> None:
    """Where sums are exact, results are those that a single rounding gives."""
    check(outcome)
    for result, expected in zip(outcome.results, outcome.expected, strict=True):
        once = encoded(expected.values.astype(float), problem.out_dtype)
        assert np.array_equal(result, decoded(once, problem.out_dtype))


@pytest.mark.parametrize(
    ("dtype", "out", "layout", "shapes"),
    [
        ("float64", "float64", "nn", ALIGNED),
        ("float64", "float64", "tt", ALIGNED),
        ("float64", "float64", "nt", ODD),
        ("float64", "float64", "tn", ODD),
        ("float16", "float16", "nn", ALIGNED),
        ("float16", "float16", "tt", ALIGNED),
        ("float16", "float16", "nt", ODD),
        ("bfloat16", "bfloat16", "nt", ALIGNED),
        ("bfloat16", "float32", "tn", ODD),
        ("float32", "float16", "tn", ALIGNED),
        ("float64", "float32", "tt", ODD),
        ("float16", "bfloat16", "tn", ALIGNED),
    ],
    ids=lambda value: value if isinstance(value, str) else "odd" if value is ODD else "aligned",
)
def test_shapes(device, dtype, out, layout, shapes):
    for name, sizes in shapes.items():
        problem = GemmProblem(
            **sizes,
            dtype=dtype,
            out_dtype=out,
            transa=layout[0] == "t",
            transb=layout[1] == "t",
        )
        try:
            check_exact(problem, run_typed(problem, device))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


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
def test_epilogues(device, dtype, out, epilogue):
    problem = GemmProblem(
        24, 40, 16, alpha=0.3, beta=0.5, epilogue=epilogue, dtype=dtype, out_dtype=out
    )
    outcome = run_typed(problem, device, integers=False)
    check(outcome)
    if epilogue.auxiliary:
        (expected,) = outcome.expected
        assert np.all(abs(outcome.auxiliary[0] - expected.before) <= expected.before_bounds)
    else:
        assert np.isnan(outcome.auxiliary).all()


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


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_the_default_configuration(device, dtype):
    problem = GemmProblem(136, 152, 24, dtype=dtype)
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
    assert access_widths(problem) == widths


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
    refused = find_kernel("async_copy").accepts(GemmProblem(8, 8, 8, dtype="float64"), H100)
    assert refused is not None
    assert "'typed' takes" in refused
    assert KERNEL not in LADDER
