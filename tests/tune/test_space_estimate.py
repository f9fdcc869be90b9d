import math
from pathlib import Path

import numpy as np
import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.gpu import BOARDS
from gemmkit.kernels.kernel import TileConfig
from gemmkit.kernels.ladder import LADDER, find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.tune.estimate import estimate

H100 = BOARDS["h100"]
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def measured():
    """Kernel, estimated and measured microseconds of what was measured on an H100."""
    found = []
    for name in ("h100-ladder.json", "h100-sweep.json"):
        for line in (RESULTS / name).read_text().splitlines():
            record = Record.from_json(line)
            kernel = find_kernel(record.kernel)
            problem = GemmProblem(record.problem.m, record.problem.n, record.problem.k)
            config = kernel.configure(record.config)
            if record.problem.epilogue == "none" and kernel.supports(problem, config, H100) is None:
                time = estimate(kernel, config, problem, H100).microseconds
                found.append((kernel.name, time, record.time_us.median))
    return found


def test_estimates_order_what_was_measured(measured):
    ours, theirs = np.array([row[1] for row in measured]), np.array([row[2] for row in measured])
    ranks = np.corrcoef(np.argsort(np.argsort(ours)), np.argsort(np.argsort(theirs)))[0, 1]
    assert len(measured) > 100
    assert ranks > 0.97


@pytest.mark.parametrize(
    ("kernel", "off"), [("async_copy", 0.3), ("warp_tiled", 0.3), ("naive", 0.6)]
)
def test_estimates_are_near_what_was_measured(measured, kernel, off):
    ratios = [math.log(ours / theirs) for name, ours, theirs in measured if name == kernel]
    assert ratios
    assert max(map(abs, ratios)) < off


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_more_work_takes_longer(kernel):
    problem, deeper = GemmProblem(16, 2048, 1024), GemmProblem(16, 2048, 8192)
    if kernel.supports(problem, kernel.default, H100) is not None:
        pytest.skip("the kernel does not take 16 rows")
    times = [estimate(kernel, kernel.default, each, H100) for each in (problem, deeper)]
    assert 0 < times[0].microseconds < times[1].microseconds < math.inf
    assert times[0].blocks_per_sm >= 1


def test_registers_that_the_compiler_told_count():
    kernel = find_kernel("async_copy")
    few, many = (
        estimate(kernel, kernel.default, GemmProblem(4096, 4096, 64), H100, registers=registers)
        for registers in (64, 255)
    )
    assert few.blocks_per_sm > many.blocks_per_sm


def test_a_block_that_fits_no_sm_takes_for_ever():
    kernel = find_kernel("naive")
    found = estimate(kernel, TileConfig(BM=64, BN=64), GemmProblem(64, 64, 64), H100)
    assert found.microseconds == math.inf
    assert found.blocks_per_sm == 0


def test_nothing_is_faster_than_its_matrices_come_from_memory():
    problem = GemmProblem(1, 8192, 8192, epilogue=Epilogue(bias=True))
    for kernel in LADDER:
        if kernel.supports(problem, kernel.default, H100) is None:
            found = estimate(kernel, kernel.default, problem, H100)
            assert found.microseconds > problem.minimal_bytes / (H100.dram_gb_per_s * 1e3)


def test_threads_take_no_more_registers_than_let_one_block_run():
    config = {"BM": 192, "BN": 96, "BK": 32, "WM": 96, "WN": 32, "TM": 12, "TN": 8, "stages": 2}
    kernel = find_kernel("split_k")
    config = kernel.configure({**config, "split_k": 1, "slice_k": 2})
    assert estimate(kernel, config, GemmProblem(1536, 1536, 1024), H100).blocks_per_sm == 1
