"""Boxes in which results leave kernels of wgmma, and the rest that is no box, on the emulator with
its sanitizers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from typed_run import check, run_typed

from gemmkit.bench.workload import Case
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
# Few SMs, so that blocks go from tile to tile.
SMALL = replace(H100, sm_count=2)
SINGLE = {"BM": 64, "consumers": 1, "cluster_m": 1, "stages": 3}
CONFIGS = {
    "64 and 16": {**SINGLE, "BN": 80},
    "64 and 48": {**SINGLE, "BN": 112},
    "64, 64 and 48": {**SINGLE, "BN": 176},
    "two row tiles, cluster": {**SINGLE, "BM": 128, "BN": 112, "cluster_m": 2},
    "ping-pong": {**SINGLE, "BN": 112, "consumers": 2, "pingpong": 2},
    "narrow lines": {**SINGLE, "BN": 176, "consumers": 2, "pingpong": 2, "stages": 7},
    "k over a cluster": {**SINGLE, "BN": 160, "cluster_k": 2},
}
# Rows that end with whole vectors of results, with words, and anywhere.
SIDES = {"vectors": (200, 240), "words": (136, 182), "elements": (72, 333)}
NARROW = ("narrow lines", "float32")


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(SMALL, sanitize=True)


def problem_of(sides, out_dtype="bfloat16", **further):
    return GemmProblem(*sides, 72, dtype="bfloat16", out_dtype=out_dtype, transb=True, **further)


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32", "float8_e4m3"])
@pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES.keys())
@pytest.mark.parametrize("named", CONFIGS)
@pytest.mark.sample(8)
def test_results_with_a_rest(device, named, sides, out_dtype):
    kernel, problem = find_kernel("gemm_wgmma"), problem_of(sides, out_dtype)
    config = kernel.configure(CONFIGS[named])
    if (named, out_dtype) == NARROW:
        assert "shared memory" in kernel.supports(problem, config, SMALL)
        return
    way = "BY_TMA" if sides == SIDES["vectors"] else "FROM_SHARED"
    assert f"WriteBack::{way}" in kernel.plan(problem, config, SMALL).entry
    check(run_typed(problem, device, kernel="gemm_wgmma", config=config, integers=False))


@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.sample(3)
def test_a_bias_in_the_rest(device, keys):
    problem = problem_of(SIDES["vectors"], epilogue="bias+gelu_tanh", batch=2)
    config = find_kernel("gemm_wgmma").configure(keys)
    check(run_typed(problem, device, kernel="gemm_wgmma", config=config, integers=False))


@pytest.mark.parametrize("named", ["64 and 48", "narrow lines"])
@pytest.mark.parametrize("kernel", ["ragged_wgmma", "grouped_wgmma"])
@pytest.mark.sample(2)
def test_groups_whose_rows_end_inside_a_tile(device, kernel, named):
    """Of ragged ones TMA stores some tiles, and the threads copy those that others' rows follow."""
    ragged = "ragged:" if kernel == "ragged_wgmma" else ""
    shapes = f"{ragged}70x240x72,0x240x72,1x240x72,130x240x72"
    rest = {"dtype": "bfloat16", "epilogue": "bias+relu", "beta": 0.5}
    problem = GemmProblem.of_groups(shapes, "nt", **rest)
    found = find_kernel(kernel)
    plan = found.plan(problem, found.configure(CONFIGS[named]), SMALL)
    assert (".line = 32" in plan.entry) == (named == "narrow lines")
    binary = compile_plan(plan, SMALL.arch, assemble=False)
    launch, verdict = Case.make(problem, device, 0, "normal").run(problem, device, binary, plan)
    assert not launch.findings
    assert verdict.correct, verdict.detail


@pytest.mark.parametrize(
    ("keys", "out_dtype", "told", "box"),
    [
        ({"BN": 176, "stages": 6}, "bfloat16", {}, (64, 64)),
        ({"BN": 176, "stages": 6}, "float32", {}, (32, 64)),
        ({"BN": 176, "stages": 7}, "bfloat16", {"line": 32}, (16, 64)),
        # A box less is not worth a rest.
        ({"BN": 144, "stages": 6}, "bfloat16", {}, (48, 64)),
        ({"BN": 96, "stages": 6}, "bfloat16", {}, (48, 64)),
        ({"BN": 64, "stages": 6}, "bfloat16", {}, (64, 64)),
    ],
    ids=str,
)
def test_boxes_are_as_wide_as_shared_memory_allows(keys, out_dtype, told, box):
    kernel = find_kernel("gemm_wgmma")
    config = kernel.configure({"BM": 64, "consumers": 2, "pingpong": 2, "cluster_m": 2, **keys})
    problem = GemmProblem(4096, 4096, 4096, dtype="bfloat16", out_dtype=out_dtype, transb=True)
    launch = kernel.launch(problem, config, H100)
    named = dict(re.findall(r"\.(\w+) = (\d+)", " ".join(launch.template)))
    assert {key: int(named[key]) for key in ("line",) if key in named} == told
    assert next(each for each in launch.tensor_maps if each.operand == "C").box == box
