"""`gemm_wgmma`: types of 16 bits on Hopper's tensor cores, on the emulator with its sanitizers, and
on a GPU to the bit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from typed_run import check, check_exact, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

KERNEL = find_kernel("gemm_wgmma")
H100 = find_board("h100")
CONFIGS = {
    "two consumers": {"BN": 64, "cluster_m": 1},
    "cluster along M": {"BN": 64, "cluster_m": 2},
    "cluster along N": {"BN": 64, "cluster_m": 1, "cluster_n": 2},
    "one consumer": {"BM": 64, "BN": 96, "consumers": 1, "stages": 2, "cluster_m": 1},
    "deep steps": {"BM": 64, "BN": 32, "BK": 128, "consumers": 1, "stages": 3, "cluster_m": 1},
    "cluster along both": {"BM": 64, "BN": 64, "consumers": 1, "cluster_m": 2, "cluster_n": 4},
    "cluster of four along M": {"BN": 96, "cluster_m": 4, "pingpong": 2, "stages": 3},
    "cluster, rows in finer steps": {
        "BM": 80,
        "BN": 64,
        "consumers": 1,
        "stages": 3,
        "cluster_m": 2,
        "cluster_n": 2,
    },
    "odd boxes of C": {"BN": 144, "cluster_m": 1},
    "k over a cluster": {"BM": 64, "BN": 64, "consumers": 1, "cluster_m": 1, "cluster_k": 2},
    "ping-pong": {"BM": 64, "BN": 96, "pingpong": 2, "stages": 3, "cluster_m": 1},
    "ping-pong along M": {"BN": 64, "pingpong": 2, "cluster_m": 2},
    "three consumers": {
        "BM": 192,
        "BN": 48,
        "consumers": 3,
        "stages": 3,
        "cluster_m": 1,
        "cluster_n": 2,
    },
    "three tiles of rows": {"BM": 192, "BN": 32, "consumers": 1, "cluster_m": 1},
    "rows in finer steps": {"BM": 80, "BN": 64, "consumers": 1, "stages": 3, "cluster_m": 1},
    "rows in finer steps, ping-pong": {"BM": 80, "BN": 128, "pingpong": 2, "cluster_m": 1},
    "eight rows": {"BM": 8, "BN": 64, "consumers": 1, "stages": 8, "cluster_m": 1},
    "few rows, two consumers": {"BM": 32, "BN": 128, "cluster_m": 1},
    "few rows, k over a cluster": {
        "BM": 16,
        "BN": 64,
        "BK": 128,
        "consumers": 1,
        "cluster_m": 1,
        "cluster_k": 2,
    },
}
PROBLEMS = {
    "more than one tile": GemmProblem(200, 264, 136, dtype="bfloat16"),
    "rows of C that TMA cannot store": GemmProblem(
        136, 131, 72, 0.5, -2.0, lda=136, ldb=136, dtype="bfloat16"
    ),
    "fp32 results": GemmProblem(72, 264, 200, dtype="float16", out_dtype="float32", transb=True),
    "transposed": GemmProblem(136, 40, 72, dtype="bfloat16", transa=True),
    "a batch": GemmProblem(72, 40, 136, transa=True, transb=True, batch=3, dtype="float16"),
    "alpha 0": GemmProblem(16, 24, 16, 0.0, 0.5, dtype="float16"),
    "rows that TMA cannot load": GemmProblem(72, 131, 75, dtype="bfloat16", out_dtype="float32"),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.sample(23)
def test_shapes(device, keys, problem):
    config = KERNEL.configure(keys)
    check_exact(problem, run_typed(problem, device, kernel="gemm_wgmma", config=config))


def test_blocks_go_from_tile_to_tile():
    """A board with few SMs, so that there are more tiles than blocks, in several groups of rows."""
    small = EmulatedDevice(replace(H100, sm_count=3), sanitize=True)
    problem = GemmProblem(520, 200, 72, dtype="bfloat16", out_dtype="float32")
    config = KERNEL.configure({"BM": 64, "BN": 64, "consumers": 1, "cluster_m": 1})
    assert KERNEL.plan(problem, config, small.spec).blocks == 3
    check_exact(problem, run_typed(problem, small, kernel="gemm_wgmma", config=config))


@pytest.mark.parametrize("keys", [CONFIGS["deep steps"], CONFIGS["k over a cluster"]], ids=str)
@pytest.mark.sample(2)
def test_epilogues(device, keys):
    epilogue = Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True)
    problem = GemmProblem(
        *(72, 40, 136, 0.3, 0.5),
        epilogue=epilogue,
        batch=2,
        stride_b=BROADCAST,
        dtype="bfloat16",
    )
    config = KERNEL.configure(keys)
    check(run_typed(problem, device, kernel="gemm_wgmma", config=config, integers=False))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pingpong": 3}, "pingpong = 3: use 1, or 2 for a tile of each of 2 consumers' own"),
        ({"consumers": 1, "pingpong": 2}, "pingpong = 2: use 1, or 2 for a tile of each"),
        ({"consumers": 4}, "consumers = 4: the registers of a block are for 1, 2 or 3"),
        ({"cluster_m": 3}, "cluster_m × cluster_n = 3: operands are shared by 1, 2, 4 or 8 blocks"),
        ({"BM": 80, "cluster_n": 4, "cluster_m": 1}, "A is shared by 4 blocks .* load 20 lines"),
        ({"cluster_k": 2}, "cluster_k = 2: .* only with cluster_m = cluster_n = 1"),
        ({"BM": 256}, "256 sums per thread .* have room for 192: choose a smaller BM or BN"),
    ],
)
def test_a_refused_configuration_is_told_with_its_key(keys, message):
    problem = GemmProblem(72, 40, 136, dtype="bfloat16")
    refused = KERNEL.supports(problem, KERNEL.configure(keys), find_board("h100"))
    assert re.search(message, str(refused)), refused


@pytest.mark.parametrize(
    ("changes", "board", "message"),
    [
        ({"k": 0, "lda": 0}, "h100", "nothing to load"),
        ({"dtype": "float32"}, "h100", "is for bfloat16, float16, not float32"),
        ({}, "a100", r"compute capability 9.0 .*; A100 has 8.0"),
    ],
)
def test_what_it_refuses_is_told_with_what_takes_it(changes, board, message):
    sizes = {"m": 72, "n": 40, "k": 136, "dtype": "bfloat16"} | changes
    with pytest.raises(UnsupportedProblem, match=message) as caught:
        KERNEL.plan(GemmProblem(**sizes), KERNEL.default, find_board(board))
    assert re.search(r"; '\w+'.* takes? it$", str(caught.value))


@pytest.mark.slow
def test_registers_hold_everything():
    problem = GemmProblem(512, 512, 512, dtype="bfloat16", epilogue="bias+relu")
    largest = next(each for each in CANDIDATES if each.name == "gemm_wgmma")
    resources = compile_plan(KERNEL.plan(problem, largest.config, H100), H100.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [*CONFIGS.values(), {}, {"BM": 256, "BN": 128}], ids=str)
def test_a_gpu_has_the_same_bits(keys):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator, config = EmulatedDevice(gpu.spec), KERNEL.configure(keys)
    for name, problem in PROBLEMS.items():
        if reason := KERNEL.supports(problem, config, gpu.spec):
            pytest.skip(reason)
        runs = [
            run_typed(problem, each, kernel="gemm_wgmma", config=config, integers=False)
            for each in (gpu, emulator)
        ]
        check(runs[0])
        assert np.array_equal(runs[0].results, runs[1].results), name
