"""`gemm_fp64`: products on tensor cores whose k is shared by slices and blocks, on the emulator
with its sanitizers, and on a GPU to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from sharing_k import bits_in_any_order
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

KERNEL = find_kernel("gemm_fp64")
BOARD = find_board("h100")
TILE = {"BM": 32, "BN": 32, "BK": 16, "WM": 16, "WN": 32, "stages": 3}
TILE |= {"split_k": 1, "slice_k": 1, "mma_k": 4}
CONFIGS = {
    "of whole k": TILE,
    "deep products": {**TILE, "stages": 2, "mma_k": 16},
    "slices": {**TILE, "slice_k": 2, "mma_k": 8},
    "slices and parts": {**TILE, "BM": 16, "BK": 32, "split_k": 3, "slice_k": 8},
}
PROBLEMS = {
    "aligned": GemmProblem(72, 40, 100, 0.5, 2.0, dtype="float64"),
    "transposed B": GemmProblem(40, 72, 52, dtype="float64", transb=True),
    "transposed A, a batch": GemmProblem(
        33, 70, 41, batch=2, stride_b=BROADCAST, dtype="float64", transa=True
    ),
    "both, unaligned": GemmProblem(67, 41, 75, dtype="float64", transa=True, transb=True),
}
# These are the same compiled kernels as others.
EDGES = {
    "one step": GemmProblem(8, 4, 2, dtype="float64"),
    "k 0": GemmProblem(40, 36, 0, beta=0.5, dtype="float64"),
    "alpha 0": GemmProblem(6, 4, 8, 0.0, 0.5, dtype="float64"),
    "no rows": GemmProblem(0, 8, 8, dtype="float64"),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(BOARD, sanitize=True)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.sample(5)
def test_shapes(device, keys, problem):
    config = KERNEL.configure(keys)
    check_exact(problem, run_typed(problem, device, kernel="gemm_fp64", config=config))


@pytest.mark.parametrize("problem", EDGES.values(), ids=EDGES.keys())
def test_edges(device, problem):
    config = KERNEL.configure(CONFIGS["slices and parts"])
    check_exact(problem, run_typed(problem, device, kernel="gemm_fp64", config=config))


def test_epilogues_of_sums_that_slices_and_parts_share(device):
    problem = GemmProblem(
        *(24, 41, 136, 0.3, 0.5),
        epilogue=Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True),
        batch=2,
        dtype="float64",
    )
    config = KERNEL.configure(CONFIGS["slices and parts"])
    check(run_typed(problem, device, kernel="gemm_fp64", config=config, integers=False))


def test_whichever_block_comes_last_the_bits_are_the_same():
    problem = GemmProblem(72, 40, 100, dtype="float64")
    config = KERNEL.configure(CONFIGS["slices and parts"])
    assert len(bits_in_any_order(KERNEL, config, problem, "h100", launches=3)) == 1


@pytest.mark.parametrize(
    ("changes", "board", "message"),
    [
        ({}, "a100", None),
        ({"mma_k": 8}, "a100", "before compute capability 9.0 an mma of fp64 has 4 steps"),
        ({"mma_k": 12}, "h100", "tensor cores multiply 4, 8, 16 steps"),
        ({}, "t4", "cp.async"),
        ({"slice_k": 8}, "h100", "multiple of slice_k·mma_k = 32"),
        ({"WN": 8, "slice_k": 8, "BK": 32}, "h100", "must divide the 2 pairs"),
        ({"BM": 48, "WM": 48}, "h100", "power of two"),
        ({"BM": 128, "WM": 128, "BN": 128, "WN": 128}, "h100", "registers"),
        ({"stages": 64}, "h100", "shared memory"),
        ({"BM": 16, "BN": 128, "WN": 16, "BK": 8}, "h100", "evenly"),
    ],
)
def test_rules(changes, board, message):
    problem = GemmProblem(64, 64, 64, dtype="float64")
    reason = KERNEL.supports(problem, KERNEL.configure({**TILE, **changes}), find_board(board))
    assert reason is None if message is None else message in reason


def test_parts_leave_their_sums_in_the_workspace():
    problem = GemmProblem(64, 64, 320, batch=3, dtype="float64")
    plan = KERNEL.plan(problem, KERNEL.configure({**TILE, "split_k": 5}), BOARD)
    assert plan.semaphores == 3 * 4
    assert plan.workspace_bytes == 8 * 3 * 4 * 5 * 32 * 32


def test_registers_hold_everything():
    problem = GemmProblem(4096, 4096, 4096, dtype="float64")
    largest = next(each for each in CANDIDATES if each.name == "gemm_fp64")
    resources = compile_plan(KERNEL.plan(problem, largest.config, BOARD), BOARD.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_gpu_has_the_same_bits(keys):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator, config = EmulatedDevice(gpu.spec), KERNEL.configure(keys)
    for name, problem in (PROBLEMS | EDGES).items():
        runs = [
            run_typed(problem, each, kernel="gemm_fp64", config=config, integers=False)
            for each in (gpu, emulator)
        ]
        check(runs[0])
        assert np.array_equal(runs[0].results, runs[1].results), name
