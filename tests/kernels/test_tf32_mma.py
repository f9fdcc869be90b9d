"""`gemm_tf32_mma` and `gemm_tf32x3`: float32 by mma.sync of TF32, in one product and in three, on the
emulator with its sanitizers, and on a GPU to the bit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES, candidates_for
from gemmkit.dispatch.choose import choose
from gemmkit.dispatch.which import which
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import BOARDS, find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.report.decision import decision_text
from gemmkit.split_products import LEAST_K
from split_model import FAMILIES, tf32_product, tf32x3_product

PRECISIONS = {"gemm_tf32_mma": "tf32", "gemm_tf32x3": "fp32"}
A100, H100 = find_board("a100"), find_board("h100")
CONFIGS = {
    "eight warps": {"BM": 64, "BN": 64, "BK": 16, "WM": 32, "WN": 16, "stages": 3},
    "two stages": {"BM": 32, "BN": 32, "BK": 32, "WM": 16, "WN": 32, "stages": 2},
}
SMALL = CONFIGS["two stages"]
PROBLEMS = {
    "more than one tile": {"m": 136, "n": 72, "k": 200},
    "residues along k": {"m": 72, "n": 40, "k": 76, "lda": 80},
    "transposed B": {"m": 72, "n": 40, "k": 136, "transb": True},
    "transposed A": {"m": 72, "n": 40, "k": 68, "alpha": 0.5, "beta": -2.0, "transa": True},
    "both": {"m": 40, "n": 72, "k": 104, "transa": True, "transb": True},
    "unaligned": {"m": 67, "n": 41, "k": 75, "alpha": 0.5, "beta": 2.0},
    "unaligned, both transposed": {
        **{"m": 33, "n": 70, "k": 81, "transa": True, "transb": True, "alignment": 4}
    },
    "a batch": {"m": 67, "n": 41, "k": 80, "batch": 3, "stride_b": BROADCAST},
    "bf16 results": {"m": 72, "n": 40, "k": 68, "transb": True, "out_dtype": "bfloat16"},
    "alpha 0": {"m": 5, "n": 3, "k": 70, "alpha": 0.0, "beta": 0.5},
    "no rows": {"m": 0, "n": 8, "k": 64},
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(A100, sanitize=True)


def problem_for(name, **fields):
    return GemmProblem(**fields, precision=PRECISIONS[name])


def multiplied(device, name, a, b, keys=SMALL, **fields):
    """A·B of float32 matrices, which breaks no rule and is within the bounds."""
    problem = problem_for(name, m=a.shape[0], n=b.shape[1], k=a.shape[1], **fields)
    config = find_kernel(name).configure(keys)
    numbers = (a.astype(float), b.astype(float))
    if problem.transa or problem.transb:
        numbers = tuple(
            x.T if turned else x
            for x, turned in zip(numbers, (problem.transa, problem.transb), strict=True)
        )
    outcome = run_typed(problem, device, kernel=name, config=config, given=numbers)
    check(outcome)
    return outcome.results[0].astype(np.float32)


@pytest.mark.parametrize("fields", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.sample(5)
def test_shapes(device, name, keys, fields):
    problem, config = problem_for(name, **fields), find_kernel(name).configure(keys)
    check_exact(problem, run_typed(problem, device, kernel=name, config=config))
