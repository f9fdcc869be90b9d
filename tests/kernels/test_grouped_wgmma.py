"""`grouped_wgmma`: groups of 16 bits by wgmma, on the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gemmkit.bench.workload import Case
from gemmkit.devices.device import Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.dispatch.choose import choose
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.group_maps import MAPPED_GROUP
from gemmkit.problem import GemmProblem
from gemmkit.storage import placements

KERNEL, SINGLE = find_kernel("grouped_wgmma"), find_kernel("gemm_wgmma")
H100 = find_board("h100")
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1, "pingpong": 1}
TURNS = {**NARROW, "stages": 3, "consumers": 2, "pingpong": 2}
TOGETHER = {**NARROW, "BM": 128, "consumers": 2, "cluster_m": 2}
SWAPPED = {**NARROW, "BM": 16, "BN": 64}
ROW = {**SWAPPED, "BM": 8}

# Several tiles with edges both ways, some without rows, columns or k, more steps than stages, and a
# single row whose pitch TMA could not load.
SHAPES = "70x56x104,0x8x64,5x0x72,3x104x264,8x16x0,66x40x64,130x72x8"


@pytest.fixture(scope="module")
def device():
    # Few SMs, so that blocks go from tile to tile and from product to product.
    return EmulatedDevice(replace(H100, sm_count=4), sanitize=True)


@cache
def compiled(plan):
    return compile_plan(plan, H100.arch, assemble=False)


def of_groups(shapes=SHAPES, layout="nn", **rest):
    return GemmProblem.of_groups(shapes, layout, **{"dtype": "bfloat16", **rest})


def run(problem, device, keys=NARROW, kind="normal"):
    """A launch on poisoned output that breaks no rule, with results within the bound."""
    plan = KERNEL.plan(problem, KERNEL.configure(keys), device.spec)
    binary = compiled(replace(plan, grid=(1, 1, 1), table=None))
    case = Case.make(problem, device, 0, kind)
    launch, verdict = case.run(problem, device, binary, plan)
    assert not launch.findings, launch.findings[0].message
    assert verdict.correct, verdict.detail
    return plan


@pytest.mark.parametrize(
    ("keys", "layout", "rest"),
    [
        (NARROW, "nn", {}),
        (TURNS, "tn", {"epilogue": "row_bias+relu+residual", "beta": 0.5, "dtype": "float16"}),
        (TOGETHER, "nt", {"alpha": 2.0, "out_dtype": "float32", "epilogue": "bias+gelu"}),
        (SWAPPED, "tt", {"beta": 1.0}),
        (ROW, "nt", {"out_dtype": "float32"}),
    ],
)
@pytest.mark.sample(2)
def test_products_of_any_shape(device, keys, layout, rest):
    shapes = SHAPES if layout[0] == "n" else "72x56x104,0x8x64,8x0x72,8x104x264,8x16x0,136x72x9"
    problem = of_groups(shapes, layout, **rest)
    run(problem, device, keys, "integer")
    if keys in (NARROW, TURNS):
        run(problem, device, keys, "non-finite")
        run(replace(problem, alpha=0.0, beta=1.0), device, keys)
