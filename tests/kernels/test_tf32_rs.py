"""`gemm_tf32_rs`: TF32 products with one operand in registers, on the emulator with its
sanitizers, and on a GPU to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typed_run import check, check_exact, run_typed

from gemmkit.bench.run import run_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

NAME = "gemm_tf32_rs"
KERNEL, TURNING = find_kernel(NAME), find_kernel("gemm_tf32")
H100 = find_board("h100")
# Few kernels: most cases differ from others in their layout or in how results leave.
ONE = {"BM": 64, "BN": 64, "consumers": 1, "stages": 3}
FEW_ROWS = {**ONE, "BM": 16, "BK": 64, "cluster_k": 2}
PING_PONG = {"BM": 32, "BN": 128, "pingpong": 2, "stages": 3}
TWO_CONSUMERS = {"BM": 128, "BN": 32, "cluster_n": 2, "stages": 3}
MULTICAST = {**ONE, "BM": 16, "cluster_m": 2}
TF32 = {"precision": "tf32"}
# Configuration, problem, and the operands that are copied.
CASES = {
    "B in registers": (ONE, GemmProblem(72, 136, 100, **TF32), ""),
    "A in registers": (ONE, GemmProblem(72, 136, 100, transa=True, transb=True, **TF32), ""),
    "A turned": (ONE, GemmProblem(72, 104, 40, transa=True, **TF32), "A"),
    "B turned": (ONE, GemmProblem(104, 72, 40, transa=True, **TF32), "B"),
    "padded rows": (ONE, GemmProblem(72, 100, 68, 0.5, lda=76, ldb=112, ldc=104, **TF32), ""),
    "rows that TMA can neither load nor store": (
        ONE,
        GemmProblem(70, 67, 75, 0.5, -2.0, lda=77, ldb=79, ldc=81, **TF32),
        "AB",
    ),
    "a batch of one B": (ONE, GemmProblem(68, 72, 44, batch=3, stride_b=BROADCAST, **TF32), ""),
    "alpha 0": (ONE, GemmProblem(16, 24, 16, 0.0, 0.5, **TF32), ""),
    "one element": (ONE, GemmProblem(1, 1, 1, **TF32), ""),
    "few rows, blocks share k": (FEW_ROWS, GemmProblem(24, 136, 200, **TF32), ""),
    "ping-pong, fp16 results": (
        PING_PONG,
        GemmProblem(40, 264, 72, out_dtype="float16", **TF32),
        "",
    ),
    "two consumers, a cluster shares A, bf16 results": (
        TWO_CONSUMERS,
        GemmProblem(264, 40, 72, transa=True, transb=True, out_dtype="bfloat16", **TF32),
        "",
    ),
    "a cluster shares B": (MULTICAST, GemmProblem(40, 136, 100, beta=1.0, **TF32), ""),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


def run(device, problem, keys=ONE, kernel=KERNEL, **options):
    return run_typed(problem, device, kernel=kernel.name, config=kernel.configure(keys), **options)


# Others have batches of one B and clusters that share an operand.
SLOW = {"a batch of one B", "a cluster shares B"}


@pytest.mark.parametrize(
    ("keys", "problem", "copied"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, case in CASES.items()
    ],
)
def test_shapes(device, keys, problem, copied):
    check_exact(problem, run(device, problem, keys))
    assert "".join(KERNEL.plan(problem, KERNEL.configure(keys), H100).copied) == copied


def test_epilogues(device):
    epilogue = Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True)
    problem = GemmProblem(72, 40, 135, 0.3, 0.5, epilogue=epilogue, **TF32)
    check(run(device, problem, integers=False))


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_bits_are_those_of_turned_operands(device, layout):
    problem = GemmProblem(72, 136, 100, **TF32).laid_out(layout)
    found = [
        run(device, problem, ONE | {"cluster_m": 1}, kernel, integers=False)
        for kernel in (KERNEL, TURNING)
    ]
    check(found[0])
    assert np.array_equal(found[0].results, found[1].results)


def test_operands_are_rounded_to_nearest(device):
    """Numbers between two of TF32, in either operand: truncation would be off to one side."""
    step = 2.0**-10
    between, ones = np.full((64, 64), 1 + 0.75 * step), np.ones((64, 64))
    for given in ((between, ones), (ones, between)):
        found = run(device, GemmProblem(64, 64, 64, **TF32), given=given)
        assert (found.results == 64 * (1 + step)).all()


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_fragments_are_read_without_bank_conflicts(layout):
    problem = GemmProblem(128, 128, 96, **TF32).laid_out(layout)
    seen = run_kernel(
        KERNEL, problem, EmulatedDevice(H100), config=KERNEL.configure(ONE), assemble=False
    ).counters
    # Each of four tiles reads its share of an operand once, a word for each of 32 banks.
    wavefronts = 4 * 64 * 96 // 32
    assert seen["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == wavefronts
    assert seen["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"] == 0
    if layout == "nn":  # the transposes of tiles leave word by word
        assert seen["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"] == 0


@pytest.mark.parametrize(
    ("changes", "turned"),
    [
        ({}, "A"),
        ({"m": 200}, "B"),
        ({"m": 200, "prepared": "a"}, "A"),
        ({"lda": 73}, "A"),
        ({"ldb": 105}, "B"),
        ({"batch": 4, "stride_b": BROADCAST}, "B"),
    ],
)
def test_of_two_operands_across_k_the_cheaper_one_is_turned(changes, turned):
    problem = GemmProblem(**{"m": 72, "n": 104, "k": 40, "transa": True, **TF32, **changes})
    plan = KERNEL.plan(problem, KERNEL.configure(ONE), H100)
    copies = {each.rule.operand: each.copy for each in plan.tensor_maps if each.copy is not None}
    assert {name for name, copy in copies.items() if copy.turned} == {turned}


@pytest.mark.parametrize(
    ("keys", "layout", "reason"),
    [
        (ONE, "nt", "takes NN, TN, TT, not NT"),
        ({**ONE, "BN": 96}, "nn", "BN = 96 is not a multiple of 64"),
        ({**ONE, "BM": 96}, "tt", "BM = 96 is not a multiple of 64"),
        (
            {**ONE, "BM": 192, "BN": 128, "consumers": 2, "pingpong": 2},
            "nn",
            "192 sums and 32 registers of",
        ),
    ],
)
def test_what_is_refused(keys, layout, reason):
    problem = GemmProblem(64, 64, 64, **TF32).laid_out(layout)
    with pytest.raises(UnsupportedProblem, match=reason):
        KERNEL.plan(problem, KERNEL.configure(keys), H100)


@pytest.mark.slow
def test_registers_hold_everything():
    """Of the candidate with the most sums, beside whose epilogue there is little room: that of
    transposed tiles has an address for each line of a box."""
    problem = GemmProblem(512, 512, 512, epilogue="bias+relu", **TF32)
    configs = [each.config for each in CANDIDATES if each.name == NAME]
    fitting = [each for each in configs if KERNEL.supports(problem, each, H100) is None]
    most = max(
        fitting, key=lambda each: each["BM"] * each["BN"] * each["pingpong"] // each["consumers"]
    )
    resources = compile_plan(KERNEL.plan(problem, most, H100), H100.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0


@pytest.mark.parametrize("keys", [ONE, PING_PONG], ids=["one consumer", "ping-pong"])
def test_blocks_compute_several_tiles_in_more_steps_than_stages(keys):
    few = EmulatedDevice(replace(H100, sm_count=2), sanitize=True)
    problem = GemmProblem(200, 264, 168, beta=0.5, **TF32)
    check(run_typed(problem, few, kernel=NAME, config=KERNEL.configure(keys)))


def test_dispatch_weighs_registers_against_a_turned_copy():
    def chosen(layout, size):
        problem = GemmProblem(size, size, size, **TF32).laid_out(layout)
        return Dispatcher(H100, None).choose(problem).kernel

    assert [chosen(layout, 2048) for layout in ("nn", "tt", "tn")] == [KERNEL] * 3
    assert chosen("tn", 512) == TURNING  # one of the two is turned anyway
    assert chosen("nt", 2048) == TURNING


@pytest.mark.gpu
@pytest.mark.parametrize(("keys", "problem", "copied"), CASES.values(), ids=CASES.keys())
def test_a_gpu_has_the_same_bits(keys, problem, copied):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    if reason := KERNEL.supports(problem, KERNEL.configure(keys), gpu.spec):
        pytest.skip(reason)
    found = [run(each, problem, keys, integers=False) for each in (gpu, EmulatedDevice(gpu.spec))]
    check(found[0])
    assert np.array_equal(found[0].results, found[1].results)
