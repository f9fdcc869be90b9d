"""`gemm_fp8_mma`: products of 8 bits by mma.sync, on the emulator with its sanitizers, and on a GPU
to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typed_run import check, check_exact, run_typed

from gemmkit.bench.check import check as check_kernel
from gemmkit.bench.workload import Case
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.scales import BLOCK
from gemmkit.storage import layouts, scale_layouts
from gemmkit.verify import make_inputs

KERNEL = find_kernel("gemm_fp8_mma")
ADA, BLACKWELL = find_board("rtx4090"), find_board("rtx5090")
CONFIGS = {
    # Tiles begin and end within blocks of 128 columns.
    "two steps to a chunk": {"BM": 32, "BN": 64, "BK": 64, "WM": 16, "WN": 32, "stages": 3},
    "a chunk in each step": {"BM": 32, "BN": 32, "BK": 128, "WM": 32, "WN": 16, "stages": 2},
}
WORDS = (
    *("", "tensor", "rows", "blocks", "1x128,1x128", "128x128,1x128", "128x128,128x128"),
    *("rows,tensor", "none,columns", "1x128,none", "tensor,128x128"),
)
E4M3, E5M2 = OPERAND_TYPES
PROBLEMS = {
    "more than one tile": GemmProblem(72, 200, 400, dtype=E4M3, transb=True),
    "residues along k": GemmProblem(
        *(40, 136, 208), lda=224, dtype=E4M3, transb=True, out_dtype="bfloat16"
    ),
    "rows that are copied": GemmProblem(
        *(33, 131, 131, 0.5, -2.0), lda=133, ldb=137, dtype=E5M2, transb=True
    ),
    "both turned": GemmProblem(36, 40, 272, dtype=E4M3, out_dtype="bfloat16", transa=True),
    "a batch": GemmProblem(
        *(35, 40, 136), transa=True, transb=True, batch=3, dtype=E5M2, out_dtype="float16"
    ),
    "a batch of one B": GemmProblem(33, 48, 160, batch=2, stride_b=BROADCAST, dtype=E4M3),
    "one element": GemmProblem(1, 1, 1, dtype=E4M3),
    "k 0": GemmProblem(33, 17, 0, beta=0.5, dtype=E5M2),
    "alpha 0": GemmProblem(16, 24, 16, 0.0, 0.5, dtype=E4M3, out_dtype="float16"),
    "no rows": GemmProblem(0, 24, 16, dtype=E4M3),
}
CASES = [(keys, problem, word) for word in WORDS for keys in CONFIGS for problem in PROBLEMS]


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(ADA, sanitize=True)


@pytest.mark.parametrize(("keys", "problem", "word"), CASES)
@pytest.mark.sample(37)
def test_shapes(device, keys, problem, word):
    scaled, config = replace(PROBLEMS[problem], scales=word), KERNEL.configure(CONFIGS[keys])
    check_exact(scaled, run_typed(scaled, device, kernel=KERNEL.name, config=config))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(3)
def test_layouts(device, layout):
    problem = GemmProblem(36, 33, 144, dtype=E4M3).laid_out(layout)
    config = KERNEL.configure(CONFIGS["a chunk in each step"])
    plan = KERNEL.plan(problem, config, ADA)
    turned = ", ".join(str(layout[i] != "nt"[i]).lower() for i in range(2))
    assert (plan.before is None) == (layout == "nt")
    assert plan.copied == tuple("AB"[i] for i in range(2) if layout[i] != "nt"[i])
    assert plan.before is None or plan.before.entry == f"copy_operands<unsigned char, {turned}>"
    check_exact(problem, run_typed(problem, device, kernel=KERNEL.name, config=config))


@pytest.mark.parametrize("word", ["", "rows", "blocks"])
@pytest.mark.parametrize("precision", ["ieee", "fast"])
@pytest.mark.sample(3)
def test_epilogues(device, precision, word):
    """They come after the scales, which round."""
    problem = GemmProblem(
        *(40, 41, 300, 0.3, 0.5),
        epilogue=Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True),
        batch=2,
        dtype=E4M3,
        out_dtype="bfloat16",
        precision=precision,
        scales=word,
    )
    config = KERNEL.configure(CONFIGS["two steps to a chunk"])
    check(run_typed(problem, device, kernel=KERNEL.name, config=config, integers=False))


def test_the_order_of_tiles_makes_no_difference():
    """In groups of rows, with and without scales."""
    small = EmulatedDevice(replace(ADA, sm_count=100), sanitize=True)
    config = KERNEL.configure({"BM": 16, "BN": 16, "BK": 64, "WM": 16, "WN": 16, "stages": 2})
    for word in ("", "rows"):
        problem = GemmProblem(130, 1030, 16, dtype=E4M3, transb=True, scales=word)
        assert KERNEL.plan(problem, config, small.spec).rasterized
        check_exact(problem, run_typed(problem, small, kernel=KERNEL.name, config=config))


@pytest.mark.parametrize("dtype", OPERAND_TYPES)
@pytest.mark.sample(2)
def test_sums_are_promoted_every_128_of_k(device, dtype):
    """Sums of like signs, of which tensor cores alone lose ever more the longer they are."""
    problem, rng = GemmProblem(32, 64, 1024, dtype=dtype), np.random.default_rng(1)
    config = KERNEL.configure(CONFIGS["two steps to a chunk"])
    drawn = rng.uniform(0.5, 1, (32, 1024)), rng.uniform(0.5, 1, (1024, 64))
    errors = []
    for precision in ("ieee", "fast"):
        asked = replace(problem, precision=precision)
        found = run_typed(asked, device, kernel=KERNEL.name, config=config, given=drawn)
        check(found)
        errors.append(np.abs(found.results / found.expected[0].values - 1).max())
    assert 3 * errors[0] < errors[1]


@pytest.mark.parametrize("word", ["blocks", "", "1x128,1x128"])
@pytest.mark.sample(2)
def test_tiles_make_no_difference_to_bits(device, word):
    problem = GemmProblem(40, 72, 336, dtype=E4M3, transb=True, scales=word)
    found = [
        run_typed(problem, device, kernel=KERNEL.name, config=config, integers=False).results
        for config in map(KERNEL.configure, CONFIGS.values())
    ]
    assert np.array_equal(*found)


def test_rtx_blackwell_has_them_too():
    problem = GemmProblem(40, 70, 300, dtype=E4M3, transb=True, scales="blocks")
    config = KERNEL.configure(CONFIGS["a chunk in each step"])
    device = EmulatedDevice(BLACKWELL, sanitize=True)
    check(run_typed(problem, device, kernel=KERNEL.name, config=config, integers=False))


def test_scales_that_are_not_finite_are_seen(device):
    """A scale makes NaN or infinite what it is a scale of, and nothing else."""
    problem = GemmProblem(40, 200, 300, dtype=E4M3, transb=True, scales="blocks")
    inputs, places = make_inputs(problem, 0), scale_layouts(problem)
    places["scale_a"].view(inputs.scale_a)[0][39, 1] = np.nan
    places["scale_b"].view(inputs.scale_b)[0][2, 1] = np.inf
    plan = KERNEL.plan(problem, KERNEL.configure(CONFIGS["two steps to a chunk"]), ADA)
    case = Case.of(problem, inputs, device)
    _, (c, _) = case.result(problem, device, compile_plan(plan, ADA.arch, assemble=False), plan)
    finite = np.isfinite(layouts(problem)[2].view(c)[0])
    assert not finite[:, BLOCK:].any()
    assert not finite[39].any()
    assert finite[:39, :BLOCK].all()


def test_the_checker_knows_its_arithmetic():
    config = CONFIGS["two steps to a chunk"]
    for precision, told in (("ieee", "over 128 of k, added in fp32"), ("fast", "tensor cores")):
        problem = GemmProblem(33, 24, 200, dtype=E4M3, precision=precision)
        (record,) = check_kernel(KERNEL.name, [problem], config=config, gpu="rtx4090")
        assert record.verdict == "ok", record.detail
        assert record.arithmetic.endswith(told)


@pytest.mark.parametrize(
    ("changes", "board", "keys", "message"),
    [
        ({"dtype": "float16"}, "rtx4090", {}, "is for float8_e4m3, float8_e5m2, not float16"),
        ({"out_dtype": "float64"}, "rtx4090", {}, "writes C as float32, float16, bfloat16"),
        ({}, "a100", {}, r"float8_e4m3 from compute capability 8.9 on; A100 has 8.0"),
        ({}, "rtx4090", {"BK": 32}, "BK = 32: use 64 or 128, as sums are promoted every 128"),
        ({}, "rtx4090", {"BM": 192, "WM": 64}, "powers of two"),
        ({}, "rtx4090", {"stages": 1}, "stages must be 2 or more"),
        (
            {},
            "rtx4090",
            {"WN": 64},
            "take 256 registers of each lane: it has 128 for them; use a smaller WM or",
        ),
        ({"scales": "1x128,1x128"}, "rtx4090", {}, "with their scales, take 192 registers"),
        ({}, "rtx4090", {"BM": 16, "BN": 256, "WM": 16, "WN": 16}, "evenly"),
        ({}, "rtx4090", {"BK": 128}, "131072 bytes of shared memory"),
    ],
)
def test_what_it_refuses_is_told(changes, board, keys, message):
    problem = GemmProblem(**{"m": 72, "n": 40, "k": 136, "dtype": E4M3, **changes})
    with pytest.raises(UnsupportedProblem, match=message):
        KERNEL.plan(problem, KERNEL.configure(keys), find_board(board))


def test_fast_accumulation_leaves_room_for_larger_tiles():
    problem, large = GemmProblem(512, 512, 512, dtype=E4M3), KERNEL.configure({"WN": 64})
    assert KERNEL.supports(problem, large, ADA)
    assert KERNEL.supports(replace(problem, precision="fast"), large, ADA) is None


@pytest.mark.slow
@pytest.mark.parametrize("board", [ADA, BLACKWELL], ids=lambda each: each.key)
@pytest.mark.parametrize("word", ["", "rows", "blocks", "1x128,1x128"])
def test_registers_hold_everything(board, word):
    for precision in ("ieee", "fast"):
        problem = GemmProblem(
            *(512, 512, 512),
            epilogue="bias+relu",
            dtype=E4M3,
            out_dtype="bfloat16",
            transb=True,
            precision=precision,
            scales=word,
        )
        for each in (each.config for each in CANDIDATES if each.name == KERNEL.name):
            if KERNEL.supports(problem, each, board):
                continue
            resources = compile_plan(KERNEL.plan(problem, each, board), board.arch).resources
            assert resources.spill_bytes == resources.local_bytes == 0, (str(each), precision)


@pytest.mark.gpu
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_gpu_has_the_same_bits(keys, word):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator, config = EmulatedDevice(gpu.spec), KERNEL.configure(keys)
    for name, problem in PROBLEMS.items():
        for precision in ("ieee", "fast"):
            asked = replace(problem, precision=precision, scales=word)
            runs = [
                run_typed(asked, each, kernel=KERNEL.name, config=config, integers=False)
                for each in (gpu, emulator)
            ]
            check(runs[0])
            assert np.array_equal(runs[0].results, runs[1].results), (name, precision)
