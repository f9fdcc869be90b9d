"""`skinny_mma`: few rows or columns of 16 bits whose rows begin anywhere, on the emulator with its
sanitizers, and on a GPU to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.choose import choose
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

NAME = "skinny_mma"
KERNEL = find_kernel(NAME)
BOARD = find_board("h100")
CONFIG = KERNEL.configure({"BN": 128, "BK": 128, "stages": 2, "split_k": 2})
# All of them are one compiled kernel.
ROW = {
    "rows across k": GemmProblem(1, 301, 333, dtype="bfloat16"),
    "rows far apart": GemmProblem(1, 129, 131, -0.5, 2.0, ldb=139, dtype="bfloat16"),
    "aligned": GemmProblem(1, 128, 256, dtype="bfloat16"),
    "less than a vector": GemmProblem(1, 17, 5, dtype="bfloat16"),
    "k 0": GemmProblem(1, 37, 0, beta=0.5, dtype="bfloat16"),
    "alpha 0": GemmProblem(1, 37, 9, 0.0, 0.5, dtype="bfloat16"),
}
OTHERS = {
    "rows along k, a batch": GemmProblem(
        3, 150, 301, batch=2, ldb=303, dtype="float16", out_dtype="float32", transb=True
    ),
    "columns, rows along k": GemmProblem(200, 11, 269, lda=271, dtype="float16", alignment=2),
    "columns, rows across k": GemmProblem(133, 2, 300, dtype="float16", transa=True, transb=True),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(BOARD, sanitize=True)


@pytest.mark.parametrize("problem", ROW.values(), ids=ROW.keys())
def test_a_row(device, problem):
    check_exact(problem, run_typed(problem, device, kernel=NAME, config=CONFIG))


@pytest.mark.parametrize("problem", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.sample(3)
def test_other_layouts_and_types(device, problem):
    check_exact(problem, run_typed(problem, device, kernel=NAME, config=CONFIG))


def test_neighbors_that_are_not_numbers_stay_outside(device):
    problem = GemmProblem(1, 129, 131, dtype="bfloat16")
    a, b = np.ones((1, 131)), np.ones((131, 129))
    b[:, 64], b[130, 3] = np.nan, np.inf
    outcome = run_typed(problem, device, kernel=NAME, config=CONFIG, given=(a, b))
    expected = np.full(129, 131.0)
    expected[64], expected[3] = np.nan, np.inf
    assert np.array_equal(outcome.results.ravel(), expected, equal_nan=True)


def test_epilogues_of_sums_that_blocks_share(device):
    problem = GemmProblem(
        *(5, 141, 136, 0.3, 0.5),
        epilogue=Epilogue("column", "gelu_tanh", residual=True, scale=0.75, auxiliary=True),
        dtype="bfloat16",
        transb=True,
    )
    check(run_typed(problem, device, kernel=NAME, config=CONFIG, integers=False))


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("rows", [1, 16])
def test_blocks_and_the_memory_that_they_share(rows, layout):
    problem = GemmProblem(rows, 4097, 4097, dtype="bfloat16", transb=layout == "nt")
    plan = KERNEL.plan(problem, KERNEL.default, BOARD)
    # Columns of rows across k begin up to seven before a block's own.
    tiles = -(-4097 // (128 if layout == "nt" else 120))
    assert plan.grid == (tiles, 8, 1)
    assert plan.semaphores == tiles
    assert plan.workspace_bytes == 4 * tiles * 8 * rows * 128


@pytest.mark.parametrize(
    ("keys", "rows", "layout", "message"),
    [
        ({"BN": 64}, 1, "nn", "must be 128 or more"),
        ({"BN": 192}, 1, "nn", "power of two"),
        ({"BK": 192}, 1, "nn", "not a multiple of 128"),
        ({"BN": 256}, 16, "nn", "leave no registers"),
        ({"BN": 256}, 16, "nt", None),
        ({"stages": 8}, 1, "nt", "shared memory"),
    ],
)
def test_rules(keys, rows, layout, message):
    problem = GemmProblem(rows, 512, 512, dtype="bfloat16", transb=layout == "nt")
    config = KERNEL.configure({**CONFIG.as_dict(), **keys})
    reason = KERNEL.supports(problem, config, BOARD)
    assert reason is None if message is None else message in reason


@pytest.mark.parametrize(
    ("problem", "board", "message"),
    [
        (GemmProblem(17, 17, 64, dtype="float16"), "h100", "at most 16 rows or columns"),
        (GemmProblem(1, 17, 64, dtype="float16"), "t4", "cp.async"),
        (GemmProblem(1, 17, 64), "h100", "not float32"),
    ],
)
def test_what_it_refuses(problem, board, message):
    with pytest.raises(UnsupportedProblem, match=message):
        KERNEL.plan(problem, KERNEL.default, find_board(board))


def test_dispatch_takes_it_where_rows_are_not_aligned():
    for rows in (1, 4, 16):
        for transb in (False, True):
            problem = GemmProblem(rows, 5001, 3001, dtype="float16", transb=transb)
            assert choose(problem, BOARD, store=None).kernel is KERNEL


@pytest.mark.gpu
def test_a_gpu_has_the_same_bits():
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator = EmulatedDevice(gpu.spec)
    for name, problem in (ROW | OTHERS).items():
        runs = [
            run_typed(problem, each, kernel=NAME, config=CONFIG, integers=False)
            for each in (gpu, emulator)
        ]
        check(runs[0])
        assert np.array_equal(runs[0].results, runs[1].results), name
