"""`gemm_mma`: products by cp.async and mma.sync, on the emulator with its sanitizers, and on a GPU
to the bit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.dispatch.choose import choose
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

KERNEL = find_kernel("gemm_mma")
BOARD = find_board("rtx3090")
CONFIGS = {
    "eight warps": {"BM": 64, "BN": 64, "BK": 32, "WM": 32, "WN": 16, "stages": 3},
    "two stages": {"BM": 32, "BN": 32, "BK": 32, "WM": 16, "WN": 32, "stages": 2},
}
PROBLEMS = {
    "more than one tile": GemmProblem(136, 72, 200, dtype="bfloat16"),
    "residues along k": GemmProblem(72, 40, 76, lda=80, dtype="bfloat16", out_dtype="float32"),
    "transposed B": GemmProblem(72, 40, 136, dtype="float16", transb=True),
    "transposed A": GemmProblem(72, 40, 56, 0.5, -2.0, dtype="bfloat16", transa=True),
    "both": GemmProblem(40, 72, 104, dtype="float16", transa=True, transb=True),
    "unaligned": GemmProblem(67, 41, 75, 0.5, 2.0, dtype="bfloat16"),
    "unaligned, both transposed": GemmProblem(
        33, 70, 41, dtype="float16", transa=True, transb=True, alignment=2
    ),
    "a batch": GemmProblem(67, 41, 40, batch=3, stride_b=BROADCAST, dtype="bfloat16"),
    "k 0": GemmProblem(67, 41, 0, beta=0.5, dtype="bfloat16"),
    "alpha 0": GemmProblem(5, 3, 7, 0.0, 0.5, dtype="float16"),
    "no rows": GemmProblem(0, 8, 8, dtype="bfloat16"),
    "fp64": GemmProblem(72, 40, 50, 0.5, 2.0, dtype="float64"),
    "fp64, both transposed": GemmProblem(72, 40, 52, dtype="float64", transa=True, transb=True),
    "fp64, unaligned": GemmProblem(67, 41, 39, batch=2, dtype="float64"),
    "fp64, rows far apart": GemmProblem(7, 5, 9, lda=11, ldb=7, dtype="float64", transb=False),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(BOARD, sanitize=True)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.sample(9)
def test_shapes(device, keys, problem):
    config = KERNEL.configure(keys)
    if reason := KERNEL.supports(problem, config, BOARD):
        pytest.skip(reason)
    check_exact(problem, run_typed(problem, device, kernel="gemm_mma", config=config))


def test_epilogues(device):
    problem = GemmProblem(
        *(72, 41, 136, 0.3, 0.5),
        epilogue=Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True),
        batch=2,
        dtype="bfloat16",
    )
    config = KERNEL.configure(CONFIGS["two stages"])
    check(run_typed(problem, device, kernel="gemm_mma", config=config, integers=False))


@pytest.mark.parametrize(
    ("changes", "board", "message"),
    [
        ({"dtype": "float32"}, "rtx3090", "is for bfloat16, float16, float64, not float32"),
        ({}, "t4", "cp.async"),
    ],
)
def test_what_it_refuses_is_told_with_what_takes_it(changes, board, message):
    problem = GemmProblem(**{"m": 72, "n": 40, "k": 136, "dtype": "float16"} | changes)
    with pytest.raises(UnsupportedProblem, match=message) as caught:
        KERNEL.plan(problem, KERNEL.default, find_board(board))
    assert re.search(r"; '\w+'.* takes? it$", str(caught.value))


@pytest.mark.parametrize(
    ("keys", "dtype", "message"),
    [
        ({"BK": 16}, "float16", "multiple of 32"),
        ({"BN": 128, "BK": 16, "WN": 32, "stages": 2}, "float64", None),
        ({"BM": 192, "WM": 64}, "float16", "powers of two"),
        ({"stages": 1}, "float16", "stages must be 2 or more"),
        ({"BM": 32, "BN": 32, "BK": 32, "WM": 16, "WN": 16, "stages": 8}, "float16", None),
        ({"BM": 16, "BN": 256, "BK": 32, "WM": 16, "WN": 16}, "float16", "evenly"),
        ({}, "float64", "256 registers"),
        ({"stages": 6}, "float16", "shared memory"),
    ],
)
def test_rules(keys, dtype, message):
    problem = GemmProblem(64, 64, 64, dtype=dtype)
    reason = KERNEL.supports(problem, KERNEL.configure(keys), BOARD)
    assert reason is None if message is None else message in reason


@pytest.mark.parametrize("board", ["rtx3090", "a100", "rtx4090"])
@pytest.mark.parametrize("size", [512, 2048, 4096])
def test_boards_without_wgmma_are_given_it(board, size):
    problem = GemmProblem(size, size, size, dtype="bfloat16")
    assert choose(problem, find_board(board), store=None).kernel is KERNEL


def test_registers_hold_everything():
    problem = GemmProblem(512, 512, 512, dtype="bfloat16")
    own = [each for each in CANDIDATES if each.name == "gemm_mma"]
    assert len(own) > 1
    resources = compile_plan(KERNEL.plan(problem, own[0].config, BOARD), BOARD.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_gpu_has_the_same_bits(keys):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator, config = EmulatedDevice(gpu.spec), KERNEL.configure(keys)
    for name, problem in PROBLEMS.items():
        runs = [
            run_typed(problem, each, kernel="gemm_mma", config=config, integers=False)
            for each in (gpu, emulator)
        ]
        check(runs[0])
        assert np.array_equal(runs[0].results, runs[1].results), name
