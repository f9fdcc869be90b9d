"""`gemm_small_k`: products whose k fits the registers of a lane, of every type and layout."""

from __future__ import annotations

import pytest
from typed_run import SMALL, check, check_shapes, run_typed

from gemmkit.bench.count import count
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

KERNEL = find_kernel("gemm_small_k")
H100 = find_board("h100")

ALIGNED = {
    "more than one tile": {"m": 72, "n": 136, "k": 16},
    "padded rows": {"m": 40, "n": 72, "k": 8, "lda": 80, "ldb": 88, "ldc": 96},
    "no products": {"m": 16, "n": 40, "k": 0, "beta": 0.5},
    "no rows": {"m": 0, "n": 40, "k": 8},
    "alpha 0": {"m": 16, "n": 8, "k": 16, "alpha": 0.0},
}
ODD = {
    "one more": {"m": 65, "n": 129, "k": 15},
    "padded rows": {"m": 35, "n": 67, "k": 13, "lda": 81, "ldb": 91, "ldc": 73, "beta": 1.0},
    "one element": {"m": 1, "n": 1, "k": 1, "alpha": -1.5},
    "row": {"m": 1, "n": 77, "k": 5},
    "column": {"m": 77, "n": 1, "k": 7},
    "alpha 0": {"m": 5, "n": 3, "k": 7, "alpha": 0.0, "beta": 0.5},
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize(
    ("dtype", "out", "layout", "shapes"),
    [
        ("float32", "float32", "nn", ALIGNED),
        ("float32", "float32", "tt", ODD),
        ("float16", "float32", "nt", ALIGNED),
        ("bfloat16", "bfloat16", "tn", ODD),
        ("float64", "float64", "nt", ODD),
        ("float32", "float32", "nt", ALIGNED),
    ],
    ids=lambda value: value if isinstance(value, str) else "odd" if value is ODD else "aligned",
)
@pytest.mark.sample(2)
def test_shapes(device, dtype, out, layout, shapes):
    check_shapes("gemm_small_k", device, dtype, out, layout, shapes)


def test_batches_and_epilogues(device):
    epilogue = Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True)
    problem = GemmProblem(
        *(40, 130, 9, 0.3, 0.5), epilogue=epilogue, batch=3, stride_b=BROADCAST, dtype="float32"
    )
    config = KERNEL.configure(SMALL["gemm_small_k"])
    check(run_typed(problem, device, kernel="gemm_small_k", config=config, integers=False))


@pytest.mark.parametrize("n", [256, 255], ids=["aligned", "odd"])
def test_stores_are_whole_sectors(n):
    counters = count(KERNEL, (64, n, 8))
    wanted = 64 * n / 8
    # A row of 255 floats begins anywhere in a sector, and each of its warps' stores with it.
    assert wanted <= counters.store_sectors <= wanted * (1.0 if n == 256 else 1.3)


@pytest.mark.parametrize(
    ("problem", "changes", "reason"),
    [
        (GemmProblem(64, 64, 33), {}, "k up to 32, not 33"),
        (GemmProblem(64, 64, 17), {"BK": 16}, "BK = 16 is less than k = 17"),
        (GemmProblem(64, 64, 8, dtype="float64"), {"WN": 64}, "registers of each lane"),
    ],
)
def test_refusals(problem, changes, reason):
    assert reason in KERNEL.supports(problem, KERNEL.configure(changes), H100)
