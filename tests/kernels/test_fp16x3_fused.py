"""`gemm_fp16x3_fused`: fp32 in three products of fp16 parts that the kernel itself makes, on the
emulator with its sanitizers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.split_products import LEAST_K
from split_model import FAMILIES, fused_chain, split_product, split_product_by_chunk

NAME = "gemm_fp16x3_fused"
KERNEL = find_kernel(NAME)
H100 = find_board("h100")
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1}
SHORT = {**NARROW, "BK": 32, "stages": 3, "cluster_k": 2}
SWAPPED = {**NARROW, "BM": 32, "BN": 64, "cluster_k": 4}
TWO_CONSUMERS = {**NARROW, "BM": 128, "consumers": 2}
MULTICAST = {**NARROW, "BN": 64, "cluster_m": 2}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


def run(device, problem, keys=NARROW, **options):
    return run_typed(problem, device, kernel=NAME, config=KERNEL.configure(keys), **options)


def multiplied(device, a, b, keys=NARROW, **fields):
    """A·B of float32 matrices, which breaks no rule and is within the bounds."""
    problem = GemmProblem(a.shape[0], b.shape[1], a.shape[1], precision="fp32", **fields)
    stored = tuple(
        np.ascontiguousarray(x.T if turned else x)
        for x, turned in ((a, problem.transa), (b, problem.transb))
    )
    outcome = run(device, problem, keys, given=stored)
    check(outcome)
    return outcome.results[0].astype(np.float32)


# All layouts, chunks of both lengths, tiles and transposed ones, rows that begin anywhere.
EXACT = {
    "ragged, unaligned rows": (NARROW, GemmProblem(100, 70, 77, precision="fp32")),
    "padded rows, alpha and beta, blocks share k": (
        SHORT,
        GemmProblem(
            70, 66, 100, 0.5, -2.0, lda=104, ldb=104, ldc=72, precision="fp32", transb=True
        ),
    ),
    "a batch with its own strides, few rows, epilogue": (
        SWAPPED,
        GemmProblem(
            *(20, 70, 68),
            transa=True,
            batch=2,
            stride_a=20 * 68 + 4,
            out_dtype="float16",
            epilogue=Epilogue("row", "relu", residual=True),
            precision="fp32",
        ),
    ),
    "a batch that shares B": (
        TWO_CONSUMERS,
        GemmProblem(
            *(140, 40, 132),
            transa=True,
            transb=True,
            batch=3,
            stride_b=BROADCAST,
            beta=1.0,
            out_dtype="bfloat16",
            precision="fp32",
        ),
    ),
    "blocks share tiles": (MULTICAST, GemmProblem(120, 72, 140, precision="fp32")),
}


@pytest.mark.parametrize(("keys", "problem"), EXACT.values(), ids=EXACT.keys())
@pytest.mark.sample(2)
def test_integers_are_exact(device, keys, problem):
    check_exact(problem, run(device, problem, keys))


@pytest.mark.parametrize(
    ("layout", "keys", "model"),
    [
        ("nn", NARROW, (64, 1)),
        ("tn", NARROW, (64, 1)),
        ("nt", SHORT, (32, 2)),
        ("tt", SWAPPED, (64, 4)),
    ],
)
def test_results_are_those_of_the_model_to_the_bit(device, layout, keys, model):
    """So that what holds of the model in tests of the bound holds of the kernel."""
    rng = np.random.default_rng(1)
    transposed = {"transa": layout[0] == "t", "transb": layout[1] == "t"}
    for family in ("normal", "graded", "log-uniform"):
        a, b = FAMILIES[family](rng, 32, 52, 200)
        found = multiplied(device, a, b, keys, **transposed)
        wanted = split_product_by_chunk(a, b, *model, swapped=keys is SWAPPED)
        assert np.array_equal(found, wanted)
