"""`grouped_fp16x3`: groups of fp32 in three products of fp16, on the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gemmkit.bench.workload import Case
from gemmkit.devices.device import Scratch
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.devices.operands import bind_arguments
from gemmkit.dispatch.choose import choose
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.group_splitting import LINES_ALONG, SPLIT_GROUP
from gemmkit.problem import GemmProblem
from gemmkit.storage import placements
from gemmkit.verify.arithmetic import named_arithmetic
from split_model import split_product

KERNEL = find_kernel("grouped_fp16x3")
H100 = find_board("h100")
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1}
TURNS = {**NARROW, "BK": 32, "consumers": 2, "pingpong": 2}
SWAPPED = {**NARROW, "BM": 16, "BN": 64}
CLUSTER = {**NARROW, "cluster_m": 2}

# An odd number of panels, several tiles, some without rows, columns or k, more lines than an item.
SHAPES = "70x50x100,0x5x64,5x0x70,3x100x129,7x9x0,66x40x64"


@pytest.fixture(scope="module")
def device():
    # Few SMs, so that blocks go from tile to tile and from product to product.
    return EmulatedDevice(replace(H100, sm_count=4), sanitize=True)


@cache
def compiled(plan):
    return compile_plan(plan, H100.arch, assemble=False)


def run(problem, device, keys=NARROW, kind="normal", kernel=KERNEL):
    """A launch on poisoned output that breaks no rule and is within the contract's bound."""
    plan = kernel.plan(problem, kernel.configure(keys), device.spec)
    case = Case.make(problem, device, 0, kind).under(named_arithmetic(plan.compute_dtype, None))
    launch, verdict = case.run(problem, device, compiled(plan), plan)
    assert not launch.findings, launch.findings[0].message
    assert verdict.correct, verdict.detail
    return case


def of_groups(shapes=SHAPES, layout="nn", **rest):
    return GemmProblem.of_groups(shapes, layout, precision="fp32", **rest)


@pytest.mark.parametrize(
    ("keys", "layout", "rest"),
    [
        (NARROW, "nn", {"prepared": "b"}),
        (TURNS, "tn", {"epilogue": "row_bias+relu+residual", "beta": 0.5}),
        (CLUSTER, "nt", {"alpha": 2.0}),
        (SWAPPED, "tt", {"out_dtype": "float16"}),
    ],
)
@pytest.mark.sample(4)
def test_products_of_any_shape_are_within_the_bound(device, keys, layout, rest):
    problem = of_groups(layout=layout, **rest)
    run(problem, device, keys)
    if keys is NARROW:
        run(problem, device, keys, "integer")
        run(replace(problem, prepared=""), device, keys, "non-finite")
        run(replace(problem, alpha=0.0, beta=1.0, prepared=""), device, keys)


def test_results_are_those_of_the_model_to_the_bit(device):
    """The same as of single products, which `test_fp16x3` compares with it."""
    problem = of_groups("70x50x100,33x40x64")
    case = run(problem, device)
    operands = case.operands.with_results(device, problem, case.inputs.arrays)
    plan = KERNEL.plan(problem, KERNEL.configure(NARROW), device.spec)
    bound = bind_arguments(problem, operands)
    scratch = Scratch.of(device, plan, bound)
    device.execute(compiled(plan), plan, bound | scratch.arguments)
    c, _ = operands.results(device, case.inputs.arrays)
    arrays, placed = {**case.inputs.arrays, "c": c}, placements(problem)
    views = (placed[name].view(arrays[name]) for name in "cab")
    for found, a, b in zip(*views, strict=True):
        assert np.array_equal(found, split_product(a, b))


def test_what_is_split(device):
    """Lines that are read, once: none of empty products, and of prepared B none."""
    problem = of_groups()
    plan = KERNEL.plan(problem, KERNEL.configure(NARROW), H100)
    table = plan.table
    read = {"A": [70, 0, 0, 3, 0, 66], "B": [50, 0, 0, 100, 0, 40]}
    assert {name: table.lines(name).tolist() for name in "AB"} == read
    assert plan.before.workspace_bytes == plan.workspace_bytes
    constant = KERNEL.plan(replace(problem, prepared="b"), KERNEL.configure(NARROW), H100)
    assert constant.before.grid[0] == -(-70 // LINES_ALONG) + 1 + -(-66 // LINES_ALONG)
    assert constant.table.lines("B").tolist() == [50, 5, 0, 100, 9, 40]
    assert [each.operand for each in constant.prepared] == ["B"]
    assert constant.workspace_bytes < plan.workspace_bytes
    assert SPLIT_GROUP.itemsize == 128
    # What is made of B depends on the sizes of B alone.
    other = of_groups("1x50x100,9x5x64,9x0x70,9x100x129,9x9x0,9x40x64", prepared="b")
    again = KERNEL.plan(other, KERNEL.configure(SWAPPED), H100)
    assert again.prepared[0].form == constant.prepared[0].form


def test_there_is_no_map_of_c_to_store_by():
    for problem in (of_groups("64x64x64"), GemmProblem(64, 64, 64, batch=3, precision="fp32")):
        plan = KERNEL.plan(problem, KERNEL.default, H100)
        assert "WriteBack::FROM_SHARED" in plan.entry


def test_short_products_are_left_to_ffma():
    refused = KERNEL.supports(of_groups("64x64x64,64x64x63"), KERNEL.default, H100)
    assert refused.startswith("k = 63 is less than 64")
    assert KERNEL.supports(of_groups("64x64x64,64x64x0"), KERNEL.default, H100) is None
    lower = GemmProblem.of_groups("64x64x8", precision="tf32")
    assert KERNEL.supports(lower, KERNEL.default, H100) is None


def test_dispatch_takes_it_where_it_is_faster():
    experts = of_groups("512x4096x4096*8")
    choice = choose(experts, H100, store=None)
    assert choice.kernel is KERNEL
    assert KERNEL.supports(experts, choice.config, H100) is None
    assert (
        choose(replace(experts, precision="ieee"), H100, store=None).kernel.name == "gemm_grouped"
    )
    assert choose(of_groups("64x64x64*8"), H100, store=None).kernel.name == "gemm_grouped"
    few = of_groups("64x1408x2048*64")
    constant = choose(replace(few, prepared="b"), H100, store=None)
    assert constant.kernel is KERNEL
    assert constant.microseconds < choose(few, H100, store=None).microseconds
