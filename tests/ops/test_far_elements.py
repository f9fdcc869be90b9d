"""Elements that lie further from the first one than 32 bits can tell are read and written right.

Of memory that large only the pages that a product touches are ever there.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import gemmkit
from emulated_gpu import GpuArray, install
from gemmkit.errors import DeviceError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.ops import product

ROWS = 64
# From the 61st row on, offsets in elements take more than 31 bits.
APART = 2**31 // 60 + 4

TILES = {"BM": 32, "BN": 32, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4}
RING = {**TILES, "stages": 2, "interleave": 1, "order": 2}
CONFIGS = {
    "gemm_tiled": RING,
    "gemm_split_k": {**RING, "split_k": 2, "slice_k": 1},
    "gemm_stream_k": RING,
    "typed": TILES,
    "typed_mma": {"BM": 32, "BN": 32, "BK": 16, "WM": 16, "WN": 16},
}


@pytest.fixture(scope="module")
def gpu():
    with pytest.MonkeyPatch.context() as patch:
        yield install(patch)[0]


@pytest.fixture(scope="module")
def memory(gpu):
    """Memory for rows so far apart, of elements of 4 bytes; zeros that take no room yet."""
    try:
        piece = gpu.device.memory.allocate(4 * (ROWS - 1) * APART + 4096)
    except DeviceError as error:
        pytest.skip(str(error))
    return GpuArray(gpu.device.memory.view(piece.address, piece.nbytes), piece)


def choose(name, gpu, monkeypatch):
    """Have a kernel compute everything; the problems that it is chosen for."""
    kernel = find_kernel(name)
    config, problems = kernel.configure(CONFIGS[name]), []

    def chosen(problem, spec):
        problems.append(problem)
        assert kernel.supports(problem, config, spec) is None
        return SimpleNamespace(kernel=kernel, config=config)

    monkeypatch.setattr("gemmkit.ops.prepared.choose", chosen)
    monkeypatch.setattr(product, "_ready", product._Ready())
    return problems


def columns(memory, first, count, dtype):
    """A matrix of all rows, so many columns from the first one on."""
    dtype = np.dtype(dtype)
    steps = APART * dtype.itemsize, dtype.itemsize
    values = memory.values.view(dtype)[first:]
    return GpuArray(np.lib.stride_tricks.as_strided(values, (ROWS, count), steps), memory.buffer)


def filled(matrix, seed):
    shape = matrix.shape
    matrix.values[...] = np.random.default_rng(seed).integers(-4, 5, shape)
    return matrix


@pytest.mark.parametrize(
    ("name", "by_columns"),
    [*((name, False) for name in CONFIGS), ("gemm_tiled", True), ("typed_mma", True)],
)
@pytest.mark.sample(4)
def test_rows_far_apart(gpu, memory, monkeypatch, name, by_columns):
    dtype = "float16" if name.startswith("typed") else "float32"
    problems = choose(name, gpu, monkeypatch)
    a, b = (filled(columns(memory, 64 * place, ROWS, dtype), place) for place in range(2))
    if by_columns:
        a, b = a.T, b.T
    out = columns(memory, 128, ROWS, dtype)
    out.values[...] = 1
    assert gemmkit.matmul(a, b, out=out, c=out, beta=2, alpha=0.5) is out
    (problem,) = problems
    assert (problem.lda, problem.ldb, problem.ldc) == (APART, APART, APART)
    wanted = 0.5 * (a.values.astype("f8") @ b.values.astype("f8")) + 2
    np.testing.assert_array_equal(out.values, wanted)


def test_products_of_a_batch_far_apart(gpu, memory, monkeypatch):
    problems = choose("gemm_tiled", gpu, monkeypatch)

    def stack(first, rows, count):
        flat = columns(memory, first, rows * count, "float32")
        return GpuArray(flat.values.reshape(ROWS, rows, count), flat.buffer)

    a, b = filled(stack(0, 5, 6), 0), filled(stack(64, 6, 7), 1)
    out = stack(128, 5, 7)
    gemmkit.matmul(a, b, out=out)
    assert problems[0].strides == (APART, APART, APART)
    np.testing.assert_array_equal(out.values, a.values @ b.values)
