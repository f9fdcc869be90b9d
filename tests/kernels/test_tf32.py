"""`gemm_tf32`: float32 rounded to TF32 on Hopper's tensor cores, on the emulator with its
sanitizers, and on a GPU to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

KERNEL = find_kernel("gemm_tf32")
H100 = find_board("h100")
ONE = {"BM": 64, "BN": 64, "consumers": 1, "stages": 3, "cluster_m": 1}
CONFIGS = {
    "one consumer": ONE,
    "deep steps": ONE | {"BN": 32, "BK": 64},
    "k over a cluster": ONE | {"cluster_k": 2},
    "cluster along M": {"BN": 64, "cluster_m": 2},
    "ping-pong": {"BM": 64, "BN": 96, "pingpong": 2, "stages": 3, "cluster_m": 1},
    "few rows": ONE | {"BM": 16},
}
TF32 = {"precision": "tf32"}
PROBLEMS = {
    "both along k": (GemmProblem(72, 136, 100, transb=True, **TF32), ""),
    "B turned": (GemmProblem(130, 72, 68, **TF32), "B"),
    "A turned": (GemmProblem(72, 40, 76, transa=True, transb=True, **TF32), "A"),
    "both turned": (GemmProblem(72, 104, 40, transa=True, **TF32), "AB"),
    "rows that TMA cannot load": (
        GemmProblem(70, 67, 75, 0.5, -2.0, lda=77, ldb=79, ldc=81, transb=True, **TF32),
        "AB",
    ),
    "a batch of one B": (GemmProblem(67, 70, 41, batch=3, stride_b=BROADCAST, **TF32), "AB"),
    "bf16 results": (GemmProblem(72, 40, 52, out_dtype="bfloat16", transb=True, **TF32), ""),
    "alpha 0": (GemmProblem(16, 24, 16, 0.0, 0.5, **TF32), "B"),
    "one element": (GemmProblem(1, 1, 1, **TF32), "B"),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize(("problem", "copied"), PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.sample(11)
def test_shapes(device, keys, problem, copied):
    config = KERNEL.configure(keys)
    check_exact(problem, run_typed(problem, device, kernel="gemm_tf32", config=config))
    assert "".join(KERNEL.plan(problem, config, H100).copied) == copied


def test_operands_are_rounded_to_nearest(device):
    """Numbers between two of TF32: truncation would be off by twice as much, and to one side."""
    problem = GemmProblem(64, 64, 64, transb=True, **TF32)
    config = KERNEL.configure(ONE)
    step = 2.0**-10
    a = np.full((64, 64), 1 + 0.75 * step)
    found = run_typed(
        problem, device, kernel="gemm_tf32", config=config, given=(a, np.ones((64, 64)))
    )
    assert (found.results == 64 * (1 + step)).all()
    check(found)


def test_numbers_and_epilogues(device):
    epilogue = Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True)
    problem = GemmProblem(72, 40, 135, 0.3, 0.5, epilogue=epilogue, **TF32)
    config = KERNEL.configure(ONE)
    check(run_typed(problem, device, kernel="gemm_tf32", config=config, integers=False))


def test_it_takes_nothing_of_a_higher_precision():
    with pytest.raises(UnsupportedProblem, match="--precision tf32 allows that"):
        KERNEL.plan(GemmProblem(64, 64, 64), KERNEL.default, H100)
    with pytest.raises(UnsupportedProblem, match="--precision tf32 allows that"):
        KERNEL.plan(GemmProblem(64, 64, 64, precision="fp32"), KERNEL.default, H100)


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("gemm_tf32", {"precision": "tf32"}),
        ("gemm_fp8", {"dtype": "float8_e4m3", "out_dtype": "bfloat16"}),
        ("gemm_fp16x3", {"precision": "fp32"}),
    ],
)
@pytest.mark.slow
def test_registers_hold_everything(name, types):
    problem = GemmProblem(512, 512, 512, epilogue="bias+relu", **types)
    candidates = (each.config for each in CANDIDATES if each.name == name)
    largest = next(
        each for each in candidates if not find_kernel(name).supports(problem, each, H100)
    )
    plan = find_kernel(name).plan(problem, largest, H100)
    resources = compile_plan(plan, H100.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0


@pytest.mark.parametrize(
    ("precision", "kernel"),
    [("tf32", "gemm_tf32"), ("fp32", "gemm_fp16x3"), ("ieee", "gemm_tiled|gemm_stream_k")],
)
def test_dispatch_takes_what_the_precision_allows(precision, kernel):
    problem = GemmProblem(4096, 4096, 4096, transb=True, precision=precision)
    assert Dispatcher(H100, None).choose(problem).kernel.name in kernel.split("|")


@pytest.mark.gpu
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_gpu_has_the_same_bits(keys):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator, config = EmulatedDevice(gpu.spec), KERNEL.configure(keys)
    for name, (problem, _) in PROBLEMS.items():
        if reason := KERNEL.supports(problem, config, gpu.spec):
            pytest.skip(reason)
        runs = [
            run_typed(problem, each, kernel="gemm_tf32", config=config, integers=False)
            for each in (gpu, emulator)
        ]
        check(runs[0])
        assert np.array_equal(runs[0].results, runs[1].results), name
