"""`stream_k_mma`: even shares of k for products by mma.sync, on the emulator with its sanitizers,
and on a GPU to the bit."""

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

KERNEL = find_kernel("stream_k_mma")
# Of 28 SMs, so that small products have several waves.
BOARD, H200 = find_board("rtx3060"), find_board("h200")
# One block per SM: 80 KB of its 100 KB are taken.
ONE_PER_SM = {"BM": 64, "BN": 64, "BK": 16, "WM": 32, "WN": 32, "stages": 4}
SMALL = {"BM": 32, "BN": 32, "BK": 32, "WM": 16, "WN": 32, "stages": 2}
PROBLEMS = {
    "tiles of several blocks": (SMALL, GemmProblem(72, 40, 410, 0.5, 2.0, dtype="float64")),
    "whole tiles too": (ONE_PER_SM, GemmProblem(520, 500, 40, dtype="float64")),
    "fewer tiles than SMs": (ONE_PER_SM, GemmProblem(130, 120, 200, dtype="float64")),
    "transposed B": (ONE_PER_SM, GemmProblem(130, 72, 200, dtype="float64", transb=True)),
    "transposed A": (ONE_PER_SM, GemmProblem(130, 72, 200, dtype="float64", transa=True)),
    "both": (SMALL, GemmProblem(40, 72, 300, dtype="float64", transa=True, transb=True)),
    "copies in the workspace": (SMALL, GemmProblem(67, 41, 299, 0.5, 2.0, dtype="float64")),
    "a batch": (
        SMALL,
        GemmProblem(67, 40, 200, batch=3, stride_b=BROADCAST, dtype="float64"),
    ),
    "k 0": (SMALL, GemmProblem(67, 40, 0, beta=0.5, dtype="float64")),
    "alpha 0": (SMALL, GemmProblem(40, 40, 400, 0.0, 0.5, dtype="float64")),
    "no rows": (SMALL, GemmProblem(0, 8, 400, dtype="float64")),
    "bf16": (SMALL, GemmProblem(72, 40, 600, dtype="bfloat16", out_dtype="float32")),
    "fp16, unaligned": (
        SMALL,
        GemmProblem(33, 70, 601, dtype="float16", transa=True, transb=True, alignment=2),
    ),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(BOARD, sanitize=True)


@pytest.mark.parametrize(("keys", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.sample(4)
def test_shapes(device, keys, problem):
    config = KERNEL.configure(keys)
    check_exact(problem, run_typed(problem, device, kernel="stream_k_mma", config=config))


def test_epilogues(device):
    problem = GemmProblem(
        *(72, 41, 300, 0.3, 0.5),
        epilogue=Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True),
        batch=2,
        dtype="float64",
    )
    config = KERNEL.configure(SMALL)
    check(run_typed(problem, device, kernel="stream_k_mma", config=config, integers=False))


def plan(*sizes, keys=ONE_PER_SM, board=BOARD, dtype="float64", **changes):
    problem = GemmProblem(*sizes, dtype=dtype, **changes)
    return KERNEL.plan(problem, KERNEL.configure(keys), board)


def test_tiles_that_whole_waves_leave_over_are_shared_with_those_of_a_wave_more():
    whole, uneven = plan(64 * 4, 64 * 14, 64), plan(64 * 4, 64 * 14 + 2, 64)
    assert whole.grid == uneven.grid == (28, 1, 1)
    assert whole.semaphores == whole.workspace_bytes == 0
    assert uneven.semaphores == 4 + 28
    # Two parts of a block, of 8 bytes a sum.
    assert uneven.workspace_bytes == 2 * 28 * 64 * 64 * 8


def test_sums_of_16_bits_are_of_fp32():
    found = plan(64, 64, 4096, keys=SMALL, dtype="bfloat16")
    assert found.workspace_bytes == 2 * found.blocks * 32 * 32 * 4


def test_partial_sums_come_after_copies_of_operands():
    odd, even = plan(67, 67, 299), plan(67, 68, 300)
    assert odd.copied == ("A", "B")
    assert not even.copied
    start = max(int(each.split("+")[1]) for each in odd.signature if "workspace +" in each)
    assert start >= 8 * 299 * (67 + 67)
    assert start % 256 == 0
    assert odd.workspace_bytes - start == even.workspace_bytes


def test_whoever_comes_last_the_bits_are_the_same():
    problem = GemmProblem(70, 100, 330, dtype="float64")
    config = KERNEL.configure(SMALL)
    assert len(bits_in_any_order(KERNEL, config, problem, BOARD.name, launches=3)) == 1


def test_parts_are_added_in_the_order_of_k(device):
    """1 is lost in a sum with 2^60, unless the parts that cancel out meet first."""
    problem, config = GemmProblem(32, 32, 3 * 4 * 32, dtype="float64"), KERNEL.configure(SMALL)
    assert KERNEL.plan(problem, config, BOARD).blocks == 3
    a, b = np.zeros((32, problem.k)), np.ones((problem.k, 32))
    a[:, 0], a[:, problem.k // 2], a[:, -1] = 2.0**60, 1.0, -(2.0**60)
    outcome = run_typed(problem, device, kernel="stream_k_mma", config=config, given=(a, b))
    assert not outcome.findings
    assert not outcome.results.any()


def test_registers_hold_everything():
    problem = GemmProblem(1536, 1536, 1536, dtype="float64")
    own = [each for each in CANDIDATES if each.name == "stream_k_mma"]
    assert own
    for each in own:
        found = compile_plan(KERNEL.plan(problem, each.config, H200), H200.arch).resources
        assert found.spill_bytes == found.local_bytes == 0


@pytest.mark.gpu
def test_a_gpu_has_the_same_bits():
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator = EmulatedDevice(gpu.spec)
    for name, (keys, problem) in PROBLEMS.items():
        runs = [
            run_typed(
                problem,
                each,
                kernel="stream_k_mma",
                config=KERNEL.configure(keys),
                integers=False,
            )
            for each in (gpu, emulator)
        ]
        check(runs[0])
        assert np.array_equal(runs[0].results, runs[1].results), name
