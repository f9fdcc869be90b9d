"""Groups of 8 bits with scales: `ragged_fp8`, `grouped_fp8` and `grouped_typed`, on the emulator
with its sanitizers, and on a GPU to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typed_run import SMALL

from gemmkit.bench.check import check as check_kernel
from gemmkit.bench.workload import Case
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.alike import GroupsClass
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.groups import Groups
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.group_table import SCALED_GROUP
from gemmkit.problem import GemmProblem
from gemmkit.storage import placements
from gemmkit.verify import make_inputs
from gemmkit.verify.arithmetic import named_arithmetic

H100, T4 = find_board("h100"), find_board("t4")
E4M3, E5M2 = OPERAND_TYPES
ALONE = {"cluster_m": 1, "consumers": 1, "stages": 2}
CONFIGS = {
    # Tiles begin and end within blocks of 128 columns.
    "one consumer": {"BM": 64, "BN": 48, **ALONE},
    "cluster along M": {"BN": 64, "stages": 2, "cluster_m": 2},
    "ping-pong": {"BM": 64, "BN": 48, "pingpong": 2, "stages": 3, "cluster_m": 1},
    "few rows": {"BM": 16, "BN": 64, **ALONE},
    "overlapped": {"BM": 64, "BN": 48, **ALONE, "accumulators": 2},
    "overlapped, ping-pong": {
        "BM": 64,
        "BN": 64,
        "pingpong": 2,
        "stages": 3,
        "cluster_m": 1,
        "accumulators": 2,
    },
    "any type": SMALL["typed"],
}
WORDS = ("blocks", "rows", "", "tensor", "1x128,1x128", "none,columns", "rows,128x128")
OF_GROUPS = ("128x128,128x128", "128x128,columns")
KERNELS = ("ragged_fp8", "grouped_fp8", "grouped_typed")
# Without rows at both ends and between, of a row, of more than a tile and of less.
M = (0, 1, 65, 0, 130, 3, 0)
CASES = [
    (kernel, keys, word)
    for kernel in KERNELS
    for word in (*WORDS, *(OF_GROUPS if kernel != "ragged_fp8" else ()))
    for keys in CONFIGS
    if (keys == "any type") == (kernel == "grouped_typed")
]


@pytest.fixture(scope="module")
def device():
    # Few SMs, so that blocks go from tile to tile and from group to group.
    return EmulatedDevice(replace(H100, sm_count=4), sanitize=True)


def problem_of(kernel, word, **rest):
    """Groups that a kernel takes; those of a table differ in all sizes, and one has no k."""
    terms = {"dtype": E4M3, "out_dtype": "bfloat16", "scales": word, **rest}
    if kernel == "ragged_fp8":
        return GemmProblem.of_groups(Groups.of(M, 136, 272, ragged=True), "nt", **terms)
    sizes = [(m, 136, 272) for m in M]
    return GemmProblem.of_groups([*sizes, (16, 24, 16), (5, 16, 0), (70, 48, 400)], "nt", **terms)


def run(kernel, keys, problem, device, kind="integer", inputs=None):
    """What a launch leaves, which breaks no rule, and the verdict on it."""
    found = find_kernel(kernel)
    config = found.configure(CONFIGS[keys])
    plan = found.plan(problem, config, device.spec)
    case = Case.of(problem, inputs or make_inputs(problem, 3, kind), device)
    named = named_arithmetic(plan.compute_dtype, plan.tolerance)
    case = case if named is None else case.under(named)
    binary = compile_plan(plan, device.spec.arch, assemble=not isinstance(device, EmulatedDevice))
    launch, results = case.result(problem, device, binary, plan)
    assert not launch.findings, launch.findings[0].message
    return results, case.reference.check(*results)


@pytest.mark.parametrize(("kernel", "keys", "word"), CASES)
@pytest.mark.sample(52)
def test_groups_of_any_sizes(device, kernel, keys, word):
    """Where sums are exact, results are; results that nothing writes hold NaN."""
    problem = problem_of(kernel, word)
    _, verdict = run(kernel, keys, problem, device)
    assert verdict.correct, verdict.detail


@pytest.mark.parametrize("kernel", KERNELS[::-1])
@pytest.mark.parametrize("word", ["rows", "blocks"])
@pytest.mark.sample(6)
def test_scales_that_round(device, kernel, word):
    """With an epilogue, which comes after them."""
    epilogue = {"epilogue": "bias+gelu+residual", "alpha": 0.3, "beta": 0.5, "dtype": E5M2}
    keys = "any type" if kernel == "grouped_typed" else "one consumer"
    _, verdict = run(kernel, keys, problem_of(kernel, word, **epilogue), device, "normal")
    assert verdict.correct, verdict.detail


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.sample(3)
def test_the_scales_of_another_group_are_seen(device, kernel):
    keys = "any type" if kernel == "grouped_typed" else "one consumer"
    problem = problem_of(kernel, "blocks")
    inputs = make_inputs(problem, 3, "integer")
    right, verdict = run(kernel, keys, problem, device, inputs=inputs)
    assert verdict.correct
    moved = replace(inputs, scale_b=np.roll(inputs.scale_b, 1))
    wrong, _ = run(kernel, keys, problem, device, inputs=moved)
    case = Case.of(problem, inputs, device)
    assert not case.reference.check(*wrong).correct
    assert case.reference.check(*right).correct


def test_how_scales_of_groups_lie():
    ragged = placements(problem_of("ragged_fp8", "blocks"))
    # One matrix of all rows, in columns, of which each group has some.
    assert [each.ld for each in ragged["scale_a"].matrices] == [sum(M)] * len(M)
    assert ragged["scale_a"].starts == (0, 0, 1, 66, 66, 196, 199)
    assert ragged["scale_a"].size == 3 * sum(M)
    assert ragged["scale_b"].starts == tuple(range(0, 6 * len(M), 6))
    problem = problem_of("grouped_fp8", "blocks")
    assert problem.scale_bytes == sum(problem.product(i).scale_bytes for i in range(problem.count))
    assert SCALED_GROUP.itemsize == 128


def test_which_kernels_take_them():
    for ragged, kernel in (("ragged:", "ragged_fp8"), ("", "grouped_fp8")):
        for word in ("", "rows", "blocks"):
            shape = f"{ragged}128x1408x2048*8,3x1408x2048"
            problem = GemmProblem.of_groups(shape, "nt", dtype=E4M3, scales=word)
            assert Dispatcher(H100, None).choose(problem).kernel.name == kernel
            assert Dispatcher(T4, None).choose(problem).kernel.name == "grouped_typed"
            # Of B in rows, or of rows that TMA cannot load.
            odd = GemmProblem.of_groups(f"{ragged}8x24x40*3", "nt", dtype=E4M3, scales=word)
            for other in (problem.laid_out("nn"), odd):
                assert Dispatcher(H100, None).choose(other).kernel.name == "grouped_typed"
            plain = GroupsClass.of(replace(problem, scales=""))
            assert (GroupsClass.of(problem) == plain) == (word == "")
    with pytest.raises(UsageError, match="use 1x128"):
        problem_of("ragged_fp8", "128x128,tensor")


def test_the_checker_knows_scales_of_groups():
    shape, types = "ragged:33x16x144,0x16x144,8x16x144", {"dtype": E4M3, "out_dtype": "bfloat16"}
    groups = GemmProblem.of_groups(shape, "nt", **types)
    (record,) = check_kernel(
        "ragged_fp8", [groups], config=CONFIGS["one consumer"], gpu="h100", scales="blocks"
    )
    assert record.verdict == "ok", record.detail
    assert record.problem.types == "e4m3 to bf16 (scales blocks)"


@pytest.mark.parametrize("word", ["", "rows", "blocks", "1x128,1x128"])
@pytest.mark.parametrize("kernel", ["ragged_fp8", "grouped_fp8"])
@pytest.mark.slow
def test_registers_hold_everything(kernel, word):
    rest = {"epilogue": "bias+relu", "dtype": E4M3, "out_dtype": "bfloat16", "scales": word}
    ragged = "ragged:" if kernel == "ragged_fp8" else ""
    problem = GemmProblem.of_groups(f"{ragged}512x512x512*2,100x512x512", "nt", **rest)
    found = find_kernel(kernel)
    for config in (each.config for each in CANDIDATES if each.name == kernel):
        if found.supports(problem, config, H100) is None:
            resources = compile_plan(found.plan(problem, config, H100), H100.arch).resources
            assert resources.spill_bytes == resources.local_bytes == 0, str(config)


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "keys", "word"), CASES)
def test_a_gpu_has_the_same_bits(kernel, keys, word):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    if find_kernel(kernel).rule(find_kernel(kernel).configure(CONFIGS[keys]), gpu.spec):
        pytest.skip("a kernel for other boards")
    for precision in ("ieee", "fast") if word in ("", "rows") else ("ieee",):
        if precision == "fast" and "overlapped" in keys:
            continue
        problem = problem_of(kernel, word, precision=precision)
        inputs = make_inputs(problem, 5, "normal")
        devices = (gpu, EmulatedDevice(gpu.spec))
        runs = [run(kernel, keys, problem, each, inputs=inputs) for each in devices]
        assert all(verdict.correct for _, verdict in runs)
        assert np.array_equal(runs[0][0][0], runs[1][0][0])
