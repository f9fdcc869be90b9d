"""Epilogues of kernels of wgmma whose matrices TMA moves, on the emulator with its sanitizers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from typed_run import check, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
# Few SMs, so that blocks go from tile to tile.
SMALL = replace(H100, sm_count=2)
CONFIGS = {
    "two consumers": {"BN": 64, "cluster_m": 1},
    "half lines": {"BM": 256, "BN": 192, "stages": 3, "cluster_m": 1},
    "cluster along M": {"BN": 32, "cluster_m": 2},
    "more boxes than buffers": {"BM": 64, "BN": 240, "consumers": 1, "stages": 5, "cluster_m": 1},
    "k over a cluster": {"BM": 64, "BN": 64, "consumers": 1, "cluster_m": 1, "cluster_k": 2},
    "ping-pong": {"BM": 64, "BN": 96, "pingpong": 2, "stages": 3, "cluster_m": 1},
    "three consumers": {"BM": 192, "BN": 48, "consumers": 3, "stages": 3, "cluster_m": 1},
    "three tiles of rows": {"BM": 192, "BN": 32, "consumers": 1, "cluster_m": 1},
    "rows in finer steps": {"BM": 80, "BN": 64, "consumers": 1, "stages": 3, "cluster_m": 1},
    "finer steps, ping-pong": {"BM": 48, "BN": 128, "pingpong": 2, "cluster_m": 1},
}
PROBLEMS = {
    "old C": {"alpha": 0.5, "beta": -2.0},
    "residual": {"epilogue": "residual", "batch": 2},
    "residual and old C": {"beta": 0.5, "epilogue": "bias+relu+residual"},
    "auxiliary": {"epilogue": "bias+gelu_tanh+aux"},
    "auxiliary and residual": {"epilogue": "row_bias+relu+aux+residual"},
    "all": {"beta": 0.5, "epilogue": "bias+silu+aux+scale=0.75", "dtype": "float16", "batch": 2},
    "alpha 0": {"alpha": 0.0, "beta": 0.5},
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(SMALL, sanitize=True)


@pytest.mark.parametrize("given", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.sample(13)
def test_boxes(device, keys, given):
    kernel = find_kernel("gemm_wgmma")
    problem = GemmProblem(200, 264, 136, **{"dtype": "bfloat16", **given})
    config = kernel.configure(keys)
    assert "FUSED_BY_TMA" in kernel.plan(problem, config, SMALL).entry
    check(run_typed(problem, device, kernel="gemm_wgmma", config=config, integers=False))


@pytest.mark.parametrize("given", [{}, {"scales": "rows"}], ids=str)
def test_boxes_of_products_of_8_bits(device, given):
    kernel = find_kernel("gemm_fp8")
    problem = GemmProblem(
        *(136, 200, 272),
        dtype="float8_e4m3",
        out_dtype="bfloat16",
        beta=0.5,
        epilogue="bias+relu+aux",
        **given,
    )
    config = kernel.configure({"BN": 64, "cluster_m": 1})
    assert "FUSED_BY_TMA" in kernel.plan(problem, config, SMALL).entry
    check(run_typed(problem, device, kernel="gemm_fp8", config=config, integers=False))


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"epilogue": "residual"}, True),
        ({"epilogue": "residual", "further_aligned": False}, False),
        ({"epilogue": "aux", "beta": 1.0, "further_aligned": False}, False),
        ({"beta": 1.0, "further_aligned": False}, True),
        ({"beta": 1.0, "n": 132}, False),
        ({"epilogue": "bias+relu"}, False),
        ({"beta": 1.0, "out_dtype": "float32"}, False),
    ],
)
def test_boxes_are_moved_where_tensor_maps_tell_of_all(changes, moved):
    kernel = find_kernel("gemm_wgmma")
    problem = GemmProblem(**{"m": 136, "n": 264, "k": 72, "dtype": "bfloat16", **changes})
    entry = kernel.plan(problem, kernel.default, H100).entry
    assert ("WriteBack::FUSED_BY_TMA" in entry) == moved


@pytest.mark.parametrize(
    ("keys", "given", "planned"),
    [
        # All four boxes of a consumer take a stage of four, but not one of three.
        ({"BN": 256, "stages": 4}, {"beta": 1.0}, {"stages": 3, "buffers": 4}),
        ({"BN": 256, "stages": 3}, {"beta": 1.0}, {"stages": 3, "buffers": 4}),
        ({"BN": 128, "stages": 4}, {"beta": 1.0}, {"stages": 4, "buffers": 2}),
        # Those of two matrices are half as wide. Where nothing is read they take no stage.
        (
            {"BN": 256, "stages": 4},
            {"epilogue": "relu+aux"},
            {"stages": 4, "buffers": 2, "line": 64},
        ),
        (
            {"BN": 256, "stages": 4},
            {"epilogue": "relu+aux+residual"},
            {"stages": 3, "buffers": 5, "line": 64},
        ),
        # There is no room for all.
        ({"BM": 256, "BN": 192, "stages": 3}, {"beta": 1.0}, {"stages": 3, "buffers": 3}),
        (
            {"BM": 256, "BN": 192, "stages": 3},
            {"epilogue": "relu+aux"},
            {"stages": 3, "buffers": 3, "line": 64},
        ),
        # Others keep their stages.
        ({"BN": 256, "stages": 4}, {"epilogue": "relu"}, {"stages": 4, "buffers": 2}),
    ],
)
def test_boxes_of_a_tile_take_a_stage(keys, given, planned):
    kernel = find_kernel("gemm_wgmma")
    problem = GemmProblem(512, 512, 512, dtype="bfloat16", **given)
    config = kernel.configure({"BM": 128, "cluster_m": 1, **keys})
    plan = kernel.plan(problem, config, H100)
    told = dict(re.findall(r"\.(\w+) = (\d+)", plan.entry.partition("}")[0]))
    assert {key: int(told[key]) for key in ("stages", "buffers", "line") if key in told} == planned
    assert plan.shared_bytes <= H100.capability.max_shared_per_block
    assert kernel.work(problem, config, H100).shared_bytes == plan.shared_bytes
    taken = planned["stages"] < config["stages"]
    assert (plan.fewer_stages is not None) == taken
    if plan.fewer_stages is not None:
        assert plan.fewer_stages.number == planned["stages"]
