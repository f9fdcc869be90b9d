"""Every kernel gives the right result on the emulator, for every shape that has hurt a kernel."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmkit.bench.run import run_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, PRODUCTION, find_kernel
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem
from rung_boards import SMALL_HOPPER, device_for

# Small tiles: quick to compile for the emulator, and many blocks even of a small problem.
SMALL = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}
SMALL_WARPS = {"BM": 64, "BN": 64, "BK": 8, "WM": 32, "WN": 32, "TM": 8, "TN": 4}
SMALL_LANES = {"WM": 16, "WN": 32}
TILED = {**SMALL_WARPS, "stages": 3}
SPLIT = {**SMALL, **SMALL_LANES, "BK": 16, "stages": 3, "split_k": 3}
SKINNY = {"BN": 32, "BK": 32, "stages": 2, "split_k": 3}
STREAM = {**SMALL, **SMALL_LANES, "stages": 3}
TENSOR = {"BM": 32, "BN": 32, "BK": 16, "WM": 32, "WN": 16}
CONFIGS = {
    "naive_uncoalesced": {"BM": 16, "BN": 8},
    "naive": {"BM": 8, "BN": 16},
    "shared_tiling": {"BM": 16, "BN": 16, "BK": 16},
    "coarsening_1d": {"stride": 4},
    **dict.fromkeys(("coarsening_2d", "vectorized", "conflict_free", "double_buffered"), SMALL),
    "warp_tiled": SMALL_WARPS,
    **dict.fromkeys(("async_copy", "gemm_tiled", "gemm_grouped"), TILED),
    **dict.fromkeys(("split_k", "gemm_split_k"), SPLIT),
    "warp_reduce": {"BN": 32, "BK": 64, "stages": 3},
    "gemm_skinny": SKINNY,
    **dict.fromkeys(("stream_k", "gemm_stream_k"), STREAM),
    **dict.fromkeys(("wmma", "mma_sync"), TENSOR),
    "mma_pipelined": {**TENSOR, "stages": 3},
    **SMALL_HOPPER,
}

# The rungs, each with matrices of its own type, and the production kernels for fp32 of IEEE.
IEEE = (("float32",), "ieee")
KERNELS = (*LADDER, *(each for each in PRODUCTION if (each.dtypes, each.precision) == IEEE))

PROBLEMS = {
    "tile multiples": GemmProblem(128, 64, 64),
    "one more": GemmProblem(65, 129, 33),
    "one less": GemmProblem(63, 127, 31),
    "one more vector": GemmProblem(68, 132, 36),
    "primes": GemmProblem(61, 103, 37),
    "one element": GemmProblem(1, 1, 1),
    "row": GemmProblem(1, 200, 50),
    "column": GemmProblem(200, 1, 50),
    "no rows": GemmProblem(0, 64, 64),
    "no columns": GemmProblem(64, 0, 64),
    "no products": GemmProblem(65, 66, 0, beta=0.5),
    "no products, no C": GemmProblem(65, 66, 0),
    "k below the tile": GemmProblem(70, 80, 3),
    "padded rows": GemmProblem(70, 76, 36, lda=40, ldb=84, ldc=80),
    "odd rows": GemmProblem(64, 64, 32, lda=33, ldb=67, ldc=65),
    "padded, beta": GemmProblem(70, 80, 34, -0.5, 2.0, lda=37, ldb=81, ldc=83),
    "alpha 0": GemmProblem(50, 45, 40, alpha=0.0, beta=0.5),
    "alpha and beta 0": GemmProblem(50, 45, 40, alpha=0.0),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(find_board("rtx3090"))


def run(kernel, problem, device, seed=0):
    config, device = kernel.configure(CONFIGS[kernel.name]), device_for(kernel, device)
    problem = fitting(kernel, in_types_of(kernel, problem), device.spec, config)
    return run_kernel(kernel, problem, device, config=config, seed=seed, assemble=False)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.sample
def test_shape(device, kernel, problem):
    record = run(kernel, problem, device)
    assert record.correct, record.check


# Bias or ReLU alone is other code; of most rungs `bias+relu` tells as much.
ALONE = ("naive", "gemm_split_k")
FUSED = [
    pytest.param(
        kernel,
        epilogue,
        id=f"{kernel.name}-{epilogue}",
        marks=() if epilogue == "bias+relu" or kernel.name in ALONE else pytest.mark.slow,
    )
    for kernel in KERNELS[1:]
    for epilogue in ("bias", "relu", "bias+relu")
]


@pytest.mark.parametrize(("kernel", "epilogue"), FUSED)
@pytest.mark.sample(8)
def test_fused_epilogue(device, kernel, epilogue):
    problem = GemmProblem(66, 70, 18, 1.5, 0.5, epilogue=Epilogue.parse(epilogue))
    record = run(kernel, problem, device)
    assert record.correct, record.check


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
def test_every_stride(device, stride):
    kernel = find_kernel("coarsening_1d")
    config = kernel.configure({"stride": stride})
    record = run_kernel(kernel, GemmProblem(35, 50, 40), device, config=config, assemble=False)
    assert record.correct, record.check


def test_more_row_tiles_than_the_grid_has_rows(device):
    kernel = find_kernel("naive")
    config = kernel.configure({"BM": 1, "BN": 32})
    record = run_kernel(
        kernel, GemmProblem(65_536 + 3, 3, 2), device, config=config, assemble=False
    )
    assert record.correct, record.check


# Each shape is another instance of `gemm_skinny`, which test_skinny.py takes one by one.
ANY_SHAPE = [
    pytest.param(each, marks=pytest.mark.slow if each.name == "gemm_skinny" else ())
    for each in KERNELS
]


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("kernel", ANY_SHAPE, ids=lambda kernel: kernel.name)
@pytest.mark.sample(5)
def test_any_shape(device, kernel, data):
    extent = st.integers(0, 140)
    m, n, k = data.draw(extent), data.draw(extent), data.draw(st.integers(0, 40))
    pads = [data.draw(st.integers(0, 5)) for _ in range(3)]
    problem = GemmProblem(
        m,
        n,
        k,
        alpha=data.draw(st.sampled_from([1.0, -1.5, 0.0])),
        beta=data.draw(st.sampled_from([0.0, 1.0, 0.25])),
        lda=max(k, 1) + pads[0],
        ldb=max(n, 1) + pads[1],
        ldc=max(n, 1) + pads[2],
    )
    record = run(kernel, problem, device, seed=data.draw(st.integers(0, 9)))
    assert record.correct, record.check
