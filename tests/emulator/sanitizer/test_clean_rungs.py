"""Rungs have no findings; with sanitizers they compute and count the same as without."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.devices.device import Launch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

BOARD = find_board("rtx3090")
_SMALL = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}
# Small tiles, which compile quickly; every way to move data is included.
CONFIGS = {
    "naive_uncoalesced": {},
    "shared_tiling": {"BM": 16, "BN": 16, "BK": 16},
    "conflict_free": _SMALL,
    "async_copy": {**_SMALL, "BM": 64, "BN": 64, "WM": 32, "WN": 32, "TM": 8, "stages": 3},
}
PROBLEMS = (
    GemmProblem(64, 64, 64),
    GemmProblem(100, 70, 36, alpha=1.5, beta=0.5),
    GemmProblem(129, 65, 33),
    GemmProblem(1, 1, 1, beta=2.0),
)


def launched(name: str, problem: GemmProblem, *, sanitize: bool) -> tuple[Launch, bytes]:
    kernel = find_kernel(name)
    plan = kernel.plan(problem, kernel.configure(CONFIGS[name]), BOARD)
    device = EmulatedDevice(BOARD, sanitize=sanitize)
    rng = np.random.default_rng(0)
    a, b, c = (
        rng.standard_normal(shape, np.float32)
        for shape in (
            (problem.m, problem.lda),
            (problem.k, problem.ldb),
            (problem.m, problem.ldc),
        )
    )
    # If β is 0, C must not be read.
    result = device.upload(c, initialized=problem.beta != 0)
    left, right = device.upload(a), device.upload(b)
    arguments = bind_arguments(problem, Operands(left, right, result))
    launch = device.launch(compile_plan(plan, BOARD.arch, assemble=False), plan, arguments)
    device.download(result, c)
    return launch, c.tobytes()


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_found_and_nothing_changes(name: str) -> None:
    for problem in PROBLEMS:
        plain, result = launched(name, problem, sanitize=False)
        watched, same = launched(name, problem, sanitize=True)
        assert watched.findings == ()
        assert same == result
        assert watched.counters == plain.counters
        assert watched.line_counters == plain.line_counters


def test_c_that_counts_as_never_written_is_found() -> None:
    kernel, problem = find_kernel("naive"), GemmProblem(8, 8, 8, beta=1.0)
    plan = kernel.plan(problem, kernel.configure({}), BOARD)
    device = EmulatedDevice(BOARD, sanitize=True)
    ones = np.ones((8, 8), np.float32)
    a, b, c = (device.upload(ones, initialized=each != "C") for each in "ABC")
    arguments = bind_arguments(problem, Operands(a, b, c))
    (found,) = device.launch(
        compile_plan(plan, BOARD.arch, assemble=False), plan, arguments
    ).findings
    assert (found.check, found.array, found.offset) == ("initcheck", "C", 0)
