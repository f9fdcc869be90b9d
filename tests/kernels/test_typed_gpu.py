"""`typed` and `typed_mma` on a real GPU: types, layouts, edges, epilogues, deep sums."""

from __future__ import annotations

import pytest
from typed_run import ALIGNED, ODD, check, check_shapes, run_typed

from gemmkit.devices.cuda import CudaDevice
from gemmkit.dispatch.choose import choose
from gemmkit.epilogue import Epilogue
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

pytestmark = pytest.mark.gpu

PAIRS = [
    ("float64", "float64"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float16", "float64"),
    ("float32", "float16"),
    ("float64", "bfloat16"),
]


@pytest.fixture(scope="module")
def device():
    return CudaDevice()


@pytest.mark.parametrize("shapes", [ALIGNED, ODD], ids=["aligned", "odd"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("dtype", "out"), PAIRS, ids="-".join)
@pytest.mark.parametrize("kernel", ["typed", "typed_mma"])
def test_shapes(device, kernel, dtype, out, layout, shapes):
    problem = GemmProblem(1, 1, 1, dtype=dtype, out_dtype=out)
    reason = find_kernel(kernel).accepts(problem, device.spec)
    if reason is not None:
        pytest.skip(reason)
    check_shapes(kernel, device, dtype, out, layout, shapes)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("size", [100, 520, 1000, 2055])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_what_dispatch_chooses(device, dtype, size, layout):
    transa, transb = (letter == "t" for letter in layout)
    problem = GemmProblem(size, size + 8, 300, -0.7, 0.3, dtype=dtype, transa=transa, transb=transb)
    choice = choose(problem, device.spec, store=None)
    check(
        run_typed(problem, device, kernel=choice.kernel.name, config=choice.config, integers=False)
    )


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("bias", ["column", "row"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_epilogues(device, dtype, bias, activation):
    epilogue = Epilogue(bias, activation, residual=True, scale=0.75, auxiliary=True)
    problem = GemmProblem(
        200, 136, 72, 0.3, 0.5, epilogue=epilogue, batch=3, stride_b=BROADCAST, dtype=dtype
    )
    for kernel in ("typed", "typed_mma"):
        check(run_typed(problem, device, kernel=kernel, integers=False))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_deep_sums_stay_within_the_bounds(device, dtype):
    problem = GemmProblem(64, 72, 20_000, dtype=dtype)
    for kernel in ("typed", "typed_mma"):
        check(run_typed(problem, device, kernel=kernel, integers=False))
