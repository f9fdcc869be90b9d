"""`typed_mma`: what `typed` computes, on the tensor cores of boards that have them."""

from __future__ import annotations

import pytest
from typed_run import ALIGNED, ODD, check, check_exact, check_shapes, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

KERNEL = find_kernel("typed_mma")
H100, A100, T4 = (find_board(name) for name in ("h100", "a100", "t4"))


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize(
    ("dtype", "out", "layout", "shapes"),
    [
        ("float16", "float16", "nn", ALIGNED),
        ("float16", "float32", "tt", ALIGNED),
        ("bfloat16", "bfloat16", "nt", ODD),
        ("bfloat16", "float64", "tn", ODD),
        ("float64", "float64", "nn", ALIGNED),
        ("float64", "bfloat16", "tt", ODD),
    ],
    ids=lambda value: value if isinstance(value, str) else "odd" if value is ODD else "aligned",
)
@pytest.mark.sample(4)
def test_shapes(device, dtype, out, layout, shapes):
    check_shapes("typed_mma", device, dtype, out, layout, shapes)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_rounding_stays_within_the_bounds(device, dtype):
    problem = GemmProblem(40, 48, 200, 1 / 3, -0.7, dtype=dtype)
    check(run_typed(problem, device, kernel="typed_mma", integers=False))


def test_batches_and_epilogues(device):
    epilogue = Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True)
    problem = GemmProblem(
        40,
        24,
        16,
        alpha=0.3,
        beta=0.5,
        epilogue=epilogue,
        batch=3,
        stride_b=BROADCAST,
        dtype="bfloat16",
    )
    outcome = run_typed(problem, device, kernel="typed_mma", integers=False)
    check(outcome)


@pytest.mark.parametrize(("board", "dtype"), [(T4, "float16"), (A100, "float64")])
def test_older_boards_multiply_in_smaller_pieces(board, dtype):
    problem = GemmProblem(40, 48, 56, dtype=dtype)
    older = EmulatedDevice(board, sanitize=True)
    check_exact(problem, run_typed(problem, older, kernel="typed_mma"))


@pytest.mark.parametrize(
    ("problem", "changes", "board", "reason"),
    [
        (GemmProblem(8, 8, 8, out_dtype="float16"), {}, H100, "not float32"),
        (GemmProblem(8, 8, 8, dtype="bfloat16"), {}, T4, "from compute capability 8.0"),
        (GemmProblem(8, 8, 8, dtype="float64", alignment=4), {}, H100, "multiples of 8 bytes"),
        (GemmProblem(8, 8, 8, dtype="float16"), {"WM": 24}, H100, "not a multiple of 16"),
        (GemmProblem(8, 8, 8, dtype="float16"), {"WN": 4}, H100, "not a multiple of 8"),
        (GemmProblem(8, 8, 8, dtype="float16"), {"BK": 8}, H100, "not a multiple of 16"),
        (GemmProblem(8, 8, 8, dtype="float64"), {"WM": 64, "WN": 64}, H100, "take 256 registers"),
        (GemmProblem(8, 8, 8, dtype="float16"), {"BN": 48, "WN": 48}, H100, "cannot share the B"),
        (GemmProblem(8, 8, 8, dtype="float16"), {"BK": 512}, H100, "of shared memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(problem, changes, board, reason):
    refused = KERNEL.supports(problem, KERNEL.configure(changes), board)
    assert refused is not None
    assert reason in refused
    assert KERNEL not in LADDER
