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
from gemmkit.gpu import MathPipe, find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.group_maps import MAPPED_GROUP
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.production import ragged_wgmma
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
@pytest.mark.sample(3)
def test_products_of_any_shape(device, keys, layout, rest):
    shapes = SHAPES if layout[0] == "n" else "72x56x104,0x8x64,8x0x72,8x104x264,8x16x0,136x72x8"
    problem = of_groups(shapes, layout, **rest)
    run(problem, device, keys, "integer")
    if keys in (NARROW, TURNS):
        run(problem, device, keys, "non-finite")
        run(replace(problem, alpha=0.0, beta=1.0), device, keys)


def test_results_are_those_of_single_products_to_the_bit(device):
    """And these are the model's, see `test_wgmma`."""
    for shapes, out, keys in (
        ("70x56x264,33x40x64,0x8x8", "bfloat16", NARROW),
        ("70x56x264,9x40x64", "float32", SWAPPED),
    ):
        problem = of_groups(shapes, out_dtype=out)
        plan = KERNEL.plan(problem, KERNEL.configure(keys), device.spec)
        case = Case.make(problem, device, 0, "normal")
        operands = case.operands.with_results(device, problem, case.inputs.arrays)
        bound = bind_arguments(problem, operands)
        scratch = Scratch.of(device, plan, bound)
        device.execute(compiled(plan), plan, bound | scratch.arguments)
        c, _ = operands.results(device, case.inputs.arrays)
        placed = placements(problem)
        for number in range(problem.count):
            single = problem.product(number)
            if not single.results:
                continue
            arrays = {name: placed[name].part(case.inputs.arrays[name], number) for name in "abc"}
            own = Operands.upload(device, single, arrays)
            other = SINGLE.plan(single, SINGLE.configure({**keys, "cluster_m": 1}), device.spec)
            device.execute(compiled(other), other, bind_arguments(single, own))
            alone, _ = own.results(device, arrays)
            (expected,) = placements(single)["c"].view(alone)
            found = placed["c"].view(c)[number]
            np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


def test_a_batch_is_groups_of_one_shape(device):
    problem = GemmProblem(40, 24, 72, batch=3, dtype="bfloat16", beta=1.0)
    run(problem, device, NARROW)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (KERNEL, {"dtype": "bfloat16"}),
        (find_kernel("grouped_fp16x3"), {"precision": "fp32"}),
        (ragged_wgmma.KERNEL, {"dtype": "bfloat16"}),
    ],
    ids=lambda each: each.name if isinstance(each, Kernel) else "",
)
def test_a_launch_has_as_many_clusters_as_a_board_holds(kernel, problem):
    """One at least; of the SMs of an H100, larger clusters leave some over."""
    config = kernel.configure({**NARROW, "BN": 64, "cluster_m": 4, "cluster_n": 1})
    problem = GemmProblem.of_groups("ragged:2000x512x128*8", **problem)
    for sms, blocks in ((2, 4), (132, 124)):
        plan = kernel.plan(problem, config, replace(H100, sm_count=sms))
        assert (plan.blocks, plan.cluster[0]) == (blocks, 4)


def test_an_empty_product_whose_rows_tma_cannot_store_does_no_harm(device):
    """It is the widest, and no map is made of its C."""
    run(of_groups("64x40x72,0x67x64,5x8x64"), device)


def test_how_results_leave():
    def way(shapes, keys=NARROW, **rest):
        entry = KERNEL.plan(of_groups(shapes, **rest), KERNEL.configure(keys), H100).entry
        return entry.partition("WriteBack::")[2].partition(",")[0]

    assert way("64x64x64,3x8x64") == "BY_TMA"
    # One row of C that TMA cannot store is enough; an empty C has none.
    assert way("64x64x64,3x8x64:64:8:9") == way("64x64x64,3x12x64:64:16:12") == "FROM_SHARED"
    assert way("64x64x64,0x12x64:64:16:12") == "BY_TMA"
    assert way("64x64x64", SWAPPED) == "BY_TMA"
    assert way("64x64x64", SWAPPED, out_dtype="float32") == "FROM_REGISTERS"


def test_maps_are_of_what_is_loaded_and_stored(device):
    assert MAPPED_GROUP.itemsize == 512
    problem = of_groups("72x8x64,5x8x0,0x8x64,72x16x64")
    table = KERNEL.plan(problem, KERNEL.configure(NARROW), H100).table
    addresses = {name: np.arange(1, 5, dtype=np.uint64) * 4096 for name in "ABC"}
    found = table.filled(addresses, device.maps)
    there = {name: found[f"map_{name}"].any(axis=1) for name in "abc"}
    # In the order of the table, the longest k first.
    assert table.order.tolist() == [0, 2, 3, 1]
    assert there["a"].tolist() == there["b"].tolist() == [True, False, True, False]
    assert there["c"].tolist() == [True, False, True, True]
    none = KERNEL.plan(replace(problem, alpha=0.0), KERNEL.configure(NARROW), H100).table
    assert not none.filled(addresses, device.maps)["map_a"].any()


def test_rows_that_tma_cannot_load_are_left_to_others():
    def refused(shapes, **rest):
        return KERNEL.supports(of_groups(shapes, **rest), KERNEL.default, H100)

    assert refused("64x64x64,8x64x68").startswith(
        "product 1: TMA needs rows that lie a multiple of 16 bytes apart: those of A lie 136"
    )
    assert "those of B lie 120" in refused("64x64x64,8x60x64")
    # A single row has no next one, and what is not read has no rows.
    assert refused("64x64x64,1x64x67,0x60x60,5x0x3,5x64x0") is None
    assert refused("64x64x63,64x64x63", alpha=0.0) is None
    assert "addresses that are multiples of 16 bytes" in refused("64x64x64", alignment=8)
    assert "cluster_k" in KERNEL.rule(KERNEL.configure({"cluster_k": 2}), H100)
    assert "wgmma is for" in KERNEL.supports(of_groups("8x8x8"), KERNEL.default, find_board("a100"))


MIXTURES = {
    "8 experts": "512x14336x4096*8",
    "64 experts": "64x1408x2048*64",
    "few rows": ",".join(f"{1 + 7 * number % 16}x2048x768" for number in range(128)),
    "all to one": "4096x1408x2048," + "0x1408x2048," * 62 + "0x1408x2048",
}


@pytest.mark.parametrize("text", MIXTURES.values(), ids=MIXTURES.keys())
def test_dispatch_takes_it_for_experts(text):
    problem = of_groups(text)
    choice = choose(problem, H100, store=None)
    assert choice.kernel is KERNEL
    assert choice.config["BM"] <= 64 or text != MIXTURES["few rows"]
    # No estimate is faster than the board.
    per_clock = H100.sm_count * H100.pipes.multiply_adds(MathPipe("bfloat16", tensor=True))
    assert choice.microseconds > problem.flops / (2 * per_clock * H100.clock_mhz)
    odd = of_groups(text.replace("2048", "2047").replace("4096", "4095"))
    assert choose(odd, H100, store=None).kernel.name == "grouped_mma"
    other = of_groups(text, dtype="float64")
    assert choose(other, H100, store=None).kernel.name == "grouped_mma"


def bits(problem, device, keys):
    """C of all products, as the launch of a configuration leaves it."""
    plan = KERNEL.plan(problem, KERNEL.configure(keys), device.spec)
    case = Case.make(problem, device, 0, "normal")
    operands = case.operands.with_results(device, problem, case.inputs.arrays)
    bound = bind_arguments(problem, operands)
    scratch = Scratch.of(device, plan, bound)
    binary = compile_plan(plan, device.spec.arch, assemble=device.kind == "cuda")
    device.launch(binary, plan, bound | scratch.arguments)
    c, _ = operands.results(device, case.inputs.arrays)
    return [each.copy() for each in placements(problem)["c"].view(c)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "keys",
    [NARROW, TURNS, TOGETHER, SWAPPED, ROW, {}, {"BN": 192, "pingpong": 2}],
    ids=lambda keys: KERNEL.label(KERNEL.configure(keys)),
)
def test_a_gpu_has_the_same_bits(keys):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    if KERNEL.rule(KERNEL.default, gpu.spec) is not None:
        pytest.skip("this board has no wgmma")
    # More tiles than SMs have places, and tiles of several products for each.
    many = SHAPES + ",200x520x136" * 10 + ",9x1032x200" * 20
    for problem in (
        of_groups(many),
        of_groups(SHAPES, "nt", epilogue="bias+relu", beta=0.5, dtype="float16"),
        of_groups("72x56x104,8x8x264,136x72x9", "tn", out_dtype="float32"),
        of_groups("70x51x264:264:56:51,3x40x64", beta=1.0),
    ):
        found, expected = (bits(problem, each, keys) for each in (gpu, EmulatedDevice(gpu.spec)))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
