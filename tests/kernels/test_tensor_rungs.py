"""The rungs for tensor cores: types, boards, bank conflicts and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typed_run import ALIGNED, ODD, check, check_exact, check_shapes, run_typed

from gemmkit.bench.run import run_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.problem import GemmProblem
from rung_boards import BY_TMA, SMALL_H100, SMALL_HOPPER, STORED_BY_TMA

H100, T4 = find_board("h100"), find_board("t4")
A100, HALF = find_board("a100"), GemmProblem(8, 8, 8, dtype="bfloat16")
RUNGS = [each for each in LADDER if "float32" not in each.dtypes]
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
each_rung = pytest.mark.parametrize("kernel", RUNGS, ids=lambda each: each.name)


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(SMALL_H100, sanitize=True)


@each_rung
@pytest.mark.parametrize(
    ("dtype", "out", "shapes"),
    [
        ("float16", "float16", ALIGNED),
        ("float16", "float32", ODD),
        ("bfloat16", "float32", ALIGNED),
        ("bfloat16", "bfloat16", ODD),
    ],
    ids=lambda value: value if isinstance(value, str) else "odd" if value is ODD else "aligned",
)
@pytest.mark.sample
def test_shapes(device, kernel, dtype, out, shapes):
    check_shapes(kernel.name, device, dtype, out, "nn", shapes)


@each_rung
@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.sample(14)
def test_rounding_stays_within_the_bounds(device, kernel, out):
    problem = GemmProblem(40, 48, 200, 1 / 3, -0.7, dtype="float16", out_dtype=out)
    check(run_typed(problem, device, kernel=kernel.name, integers=False))


# One rung of each way back: from fragments of wmma, of mma and of wgmma, and through TMA.
WRITES_BACK = ("wmma", "mma_sync", "wgmma", "persistent")


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(each, marks=() if each.name in WRITES_BACK else pytest.mark.slow)
        for each in RUNGS
    ],
    ids=lambda each: each.name,
)
@pytest.mark.sample(3)
def test_a_row_bias_and_an_activation(device, kernel):
    columns = 24 if kernel.name in BY_TMA else 25
    # The largest tile has so much code of this activation that it compiles for seconds.
    activation = "relu" if kernel.name in STORED_BY_TMA else "gelu_tanh"
    problem = GemmProblem(40, columns, 16, epilogue=Epilogue("row", activation), dtype="bfloat16")
    check(run_typed(problem, device, kernel=kernel.name, integers=False))


@pytest.mark.parametrize("name", SMALL_HOPPER)
@pytest.mark.sample(3)
def test_more_tiles_than_blocks_and_more_steps_than_stages(device, name):
    problem = GemmProblem(520, 272, 330, lda=336, dtype="bfloat16", beta=1.0)
    check_exact(problem, run_typed(problem, device, kernel=name))


@pytest.mark.parametrize("name", ["wmma", "mma_sync"])
def test_boards_of_7_5_multiply_float16(name):
    problem = GemmProblem(40, 48, 56, dtype="float16")
    check(run_typed(problem, EmulatedDevice(T4, sanitize=True), kernel=name))


@pytest.mark.parametrize("BK", [16, 32, 64])
@pytest.mark.parametrize("name", ["mma_sync", "mma_pipelined"])
@pytest.mark.sample
def test_swizzled_tiles_have_no_bank_conflicts(name, BK):
    kernel = find_kernel(name)
    config = kernel.configure({"BM": 64, "BN": 64, "BK": BK, "WM": 32, "WN": 32})
    problem = GemmProblem(64, 64, 128, dtype="float16")
    seen = run_kernel(kernel, problem, EmulatedDevice(H100), config=config, assemble=False).counters
    # Each of 4 warps reads 64 lines of 128 steps of k, in phases of 8 lines by 8 steps.
    assert seen["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 4 * 64 * 128 // 64
    assert seen[CONFLICTS.format("ld")] == seen[CONFLICTS.format("st")] == 0


@pytest.mark.parametrize("name", SMALL_HOPPER)
@pytest.mark.sample(2)
def test_operands_of_wgmma_pass_through_no_register(name):
    kernel = find_kernel(name)
    problem = GemmProblem(256, 256, 128, dtype="bfloat16")
    config = kernel.configure(SMALL_HOPPER[name])
    seen = run_kernel(kernel, problem, EmulatedDevice(H100), config=config, assemble=False).counters
    assert seen["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 0
    # Each result is stored once, in pairs: by TMA they pass through shared memory.
    pairs = 256 * 256 // 2 // 32
    by_tma = name == "persistent"
    assert seen["l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"] == (0 if by_tma else pairs)
    assert seen["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] == pairs * by_tma
    copied = seen["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
    assert (copied > 0) == (name == "wgmma")


def test_padding_keeps_fragments_of_wmma_apart_but_not_its_stores():
    kernel = find_kernel("wmma")
    config = kernel.configure({"BM": 64, "BN": 64, "WM": 32, "WN": 32})
    device = EmulatedDevice(H100)
    seen = [
        run_kernel(
            kernel,
            GemmProblem(64, 64, k, dtype="float16"),
            device,
            config=config,
            assemble=False,
        ).counters
        for k in (128, 256)
    ]
    # The conflicts of loads are those of the results, whatever k is.
    assert seen[0][CONFLICTS.format("ld")] == seen[1][CONFLICTS.format("ld")] > 0
    assert 0 < seen[0][CONFLICTS.format("st")] < seen[1][CONFLICTS.format("st")]


def test_ldmatrix_reads_fragments_of_float16_only_in_wmma():
    """NVRTC leaves the loads of bfloat16 fragments generic, which have no ldmatrix."""
    counted = {
        dtype: run_kernel(
            find_kernel("wmma"),
            GemmProblem(64, 64, 64, dtype=dtype),
            EmulatedDevice(H100),
            assemble=False,
        ).counters["smsp__sass_inst_executed_op_ldsm.sum"]
        for dtype in ("float16", "bfloat16")
    }
    assert counted["float16"] > 0 == counted["bfloat16"]


@pytest.mark.parametrize(
    ("name", "problem", "changes", "board", "reason"),
    [
        ("wmma", GemmProblem(8, 8, 8), {}, H100, "is for bfloat16, float16, not float32"),
        (
            "wmma",
            GemmProblem(8, 8, 8, dtype="float16", out_dtype="float64"),
            {},
            H100,
            "writes C as bfloat16, float16, float32, not float64",
        ),
        ("mma_sync", GemmProblem(8, 8, 8, dtype="bfloat16"), {}, T4, "from compute capability 8.0"),
        ("mma_pipelined", GemmProblem(8, 8, 8, dtype="float16"), {}, T4, "cp.async needs"),
        (
            "mma_sync",
            GemmProblem(8, 8, 8, dtype="float16", transb=True),
            {},
            H100,
            "'mma_sync' takes NN, not NT",
        ),
        (
            "wmma",
            GemmProblem(8, 8, 8, dtype="float16", alignment=1),
            {},
            H100,
            "multiples of 2 bytes",
        ),
        ("wmma", GemmProblem(8, 8, 8, dtype="float16"), {"WN": 8}, H100, "not a multiple of 16"),
        (
            "mma_sync",
            GemmProblem(8, 8, 8, dtype="float16"),
            {"BN": 96},
            H100,
            "BN = 96 is not a power of two",
        ),
        (
            "mma_sync",
            GemmProblem(8, 8, 8, dtype="float16"),
            {"BM": 32, "BN": 32, "BK": 16, "WM": 16, "WN": 16},
            H100,
            "128 threads cannot share the A tile evenly",
        ),
        ("wmma", GemmProblem(8, 8, 8, dtype="float16"), {"BK": 64}, H100, "more than 48 KiB"),
        (
            "mma_pipelined",
            GemmProblem(8, 8, 8, dtype="float16"),
            {"stages": 1},
            H100,
            "stages must be 2 or more",
        ),
        (
            "mma_pipelined",
            GemmProblem(8, 8, 8, dtype="float16"),
            {"stages": 10},
            H100,
            "its stages take 245760 bytes",
        ),
        (
            "mma_pipelined",
            GemmProblem(8, 8, 8, dtype="float16"),
            {"WM": 128},
            H100,
            "256 results per lane do not fit",
        ),
        ("wgmma", HALF, {}, A100, "wgmma is for compute capability 9.0 (--gpu h100); A100 has 8.0"),
        ("wgmma", HALF, {"stages": 2}, H100, "a pipeline needs 3 stages or more"),
        ("wgmma", HALF, {"BK": 32}, H100, "a line of the swizzle has 64 elements of k"),
        ("wgmma", HALF, {"BM": 256}, H100, "128 results per thread do not fit the registers"),
        ("wgmma", HALF, {"BN": 192}, H100, "BN = 192 is not a power of two"),
        ("tma", HALF, {"BN": 512}, H100, "wgmma has at most 256 columns"),
        ("tma", HALF, {"stages": 5}, H100, "its stages take 246784 bytes"),
        ("tma", replace(HALF, k=9, lda=9), {}, H100, "multiple of 16 bytes apart: those of A"),
        ("tma", replace(HALF, ldb=12), {}, H100, "multiple of 16 bytes apart: those of B lie 24"),
        ("tma", replace(HALF, alignment=2), {}, H100, "addresses that are multiples of 16 bytes"),
        ("warp_specialized", HALF, {"BM": 64}, H100, "BM = 64: two consumers have 128 rows"),
        ("cluster_multicast", HALF, {"BN": 192}, H100, "BN = 192 is not a multiple of 128"),
        ("persistent", replace(HALF, ldc=9), {}, H100, "long and apart: these are 16 and 18"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(name, problem, changes, board, reason):
    kernel = find_kernel(name)
    refused = kernel.supports(problem, kernel.configure(changes), board)
    assert refused is not None
    assert reason in refused
