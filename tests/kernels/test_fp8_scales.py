"""Scales of operands of 8 bits: `gemm_fp8`, which promotes scaled chunks, and `typed`; on the
emulator with its sanitizers, and on a GPU to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typed_run import SMALL, check, check_exact, run_typed

from gemmkit.bench.check import check as check_kernel
from gemmkit.bench.workload import Case
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel, kernels_for
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.scales import Scales
from gemmkit.storage import layouts, scale_layouts
from gemmkit.verify import make_inputs
from gemmkit.verify.arithmetic import named_arithmetic

KERNEL = find_kernel("gemm_fp8")
H100, T4 = find_board("h100"), find_board("t4")
ALONE = {"cluster_m": 1, "consumers": 1, "stages": 2}
CONFIGS = {
    # Tiles begin and end within blocks of 128 columns.
    "one consumer": {"BM": 64, "BN": 48, **ALONE},
    "two tiles of rows": {"BM": 128, "BN": 64, **ALONE},
    "cluster along M": {"BN": 64, "stages": 3},
    "cluster along N": {"BN": 64, "stages": 2, "cluster_m": 1, "cluster_n": 2},
    "ping-pong": {"BM": 64, "BN": 48, "pingpong": 2, "stages": 3, "cluster_m": 1},
    "k over a cluster": {"BM": 64, "BN": 64, **ALONE, "cluster_k": 2},
    "rows in finer steps": {"BM": 80, "BN": 64, **ALONE},
    "eight rows": {"BM": 8, "BN": 64, **ALONE},
    "few rows, k over a cluster": {"BM": 16, "BN": 64, **ALONE, "cluster_k": 2},
    "overlapped": {"BM": 64, "BN": 48, **ALONE, "accumulators": 2},
    "overlapped, ping-pong": {
        "BM": 64,
        "BN": 64,
        "pingpong": 2,
        "stages": 3,
        "cluster_m": 1,
        "accumulators": 2,
    },
    "overlapped, two tiles of rows": {"BM": 128, "BN": 64, **ALONE, "accumulators": 2},
    "overlapped, few rows": {"BM": 16, "BN": 64, **ALONE, "cluster_k": 2, "accumulators": 2},
}
WORDS = (
    *("tensor", "rows", "blocks", "1x128,1x128", "128x128,1x128", "128x128,128x128"),
    *("rows,tensor", "none,columns", "1x128,none", "tensor,128x128"),
)
E4M3, E5M2 = OPERAND_TYPES
PROBLEMS = {
    "more than one tile": GemmProblem(200, 136, 264, dtype=E4M3, transb=True),
    "rows that TMA cannot load": GemmProblem(
        *(72, 131, 131, 0.5, -2.0), lda=133, ldb=137, dtype=E5M2, transb=True
    ),
    "turned": GemmProblem(136, 40, 400, dtype=E4M3, out_dtype="bfloat16", transa=True),
    "a batch": GemmProblem(
        *(72, 40, 136), transa=True, transb=True, batch=3, dtype=E5M2, out_dtype="float16"
    ),
    "a batch of one B": GemmProblem(33, 48, 160, batch=2, stride_b=BROADCAST, dtype=E4M3),
    "one element": GemmProblem(1, 1, 1, dtype=E4M3),
    "alpha 0": GemmProblem(16, 24, 16, 0.0, 0.5, dtype=E4M3, out_dtype="float16"),
}
CASES = [(keys, problem, word) for word in WORDS for keys in CONFIGS for problem in PROBLEMS]


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize(("keys", "problem", "word"), CASES)
@pytest.mark.sample(215)
def test_shapes(device, keys, problem, word):
    scaled = replace(PROBLEMS[problem], scales=word)
    config = KERNEL.configure(CONFIGS[keys])
    if reason := KERNEL.supports(scaled, config, H100):
        pytest.skip(reason)
    check_exact(scaled, run_typed(scaled, device, kernel="gemm_fp8", config=config))


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.sample(23)
def test_widened(device, problem, word):
    scaled = replace(problem, scales=word)
    check_exact(scaled, run_typed(scaled, device))


@pytest.mark.parametrize("kernel", ["gemm_fp8", "typed"])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("precision", ["ieee", "fast"])
@pytest.mark.sample(23)
def test_scales_that_round(device, kernel, word, precision):
    """With an epilogue, which comes after them."""
    epilogue = Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True)
    problem = GemmProblem(
        *(72, 40, 300, 0.3, 0.5),
        epilogue=epilogue,
        dtype=E4M3,
        out_dtype="bfloat16",
        precision=precision,
        scales=word,
    )
    config = KERNEL.configure(CONFIGS["one consumer"]) if kernel == "gemm_fp8" else None
    check(run_typed(problem, device, kernel=kernel, config=config, integers=False))


def test_boards_without_such_tensor_cores():
    problem = GemmProblem(40, 24, 300, dtype=E4M3, out_dtype="bfloat16", scales="blocks")
    check(run_typed(problem, EmulatedDevice(T4, sanitize=True), integers=False))
    assert Dispatcher(T4, None).choose(problem).kernel.name == "typed"


@pytest.mark.parametrize("word", ["", "rows", "blocks", "1x128,1x128"])
@pytest.mark.parametrize("keys", [each for each in CONFIGS if "overlapped" in each])
@pytest.mark.sample(11)
def test_overlapping_promotion_with_products_changes_no_bits(device, keys, word):
    """Whatever the number of chunks, which take turns in two sets of accumulators."""
    overlapped = KERNEL.configure(CONFIGS[keys])
    plain = replace(overlapped, accumulators=1)
    for k in (100, 300, 400):
        problem = GemmProblem(130, 72, k, dtype=E4M3, transb=True, scales=word)
        if KERNEL.supports(problem, overlapped, H100):
            continue
        runs = [
            run_typed(problem, device, kernel="gemm_fp8", config=each, integers=False)
            for each in (overlapped, plain)
        ]
        check(runs[0])
        assert np.array_equal(runs[0].results, runs[1].results)


def test_fast_sums_have_one_set_of_accumulators():
    problem = GemmProblem(64, 64, 300, dtype=E4M3, precision="fast")
    with pytest.raises(UnsupportedProblem, match="accumulators=1 serves"):
        KERNEL.plan(problem, KERNEL.configure({"BN": 64, "accumulators": 2}), H100)
    with pytest.raises(UnsupportedProblem, match="3 sets of accumulators"):
        KERNEL.plan(problem, KERNEL.configure({"BN": 64, "accumulators": 3}), H100)


def test_transposed_tiles_have_the_same_bits(device):
    """Which operand's lines are a wgmma's rows makes no difference."""
    problem = GemmProblem(64, 64, 300, dtype=E4M3, transb=True, scales="blocks")
    found = []
    for keys in ("one consumer", "rows in finer steps"):
        config = KERNEL.configure(CONFIGS[keys])
        run = run_typed(problem, device, kernel="gemm_fp8", config=config, integers=False)
        found.append(run.results)
    assert np.array_equal(*found)


def test_scales_that_are_not_finite_are_seen(device):
    """A scale makes NaN or infinite what it is a scale of, and nothing else."""
    problem = GemmProblem(72, 200, 300, dtype=E4M3, transb=True, scales="blocks")
    inputs = make_inputs(problem, 0)
    places = scale_layouts(problem)
    places["scale_a"].view(inputs.scale_a)[0][70, 1] = np.nan
    places["scale_b"].view(inputs.scale_b)[0][2, 1] = np.inf
    plan = KERNEL.plan(problem, KERNEL.configure(CONFIGS["one consumer"]), H100)
    case = Case.of(problem, inputs, device)
    _, (c, _) = case.result(problem, device, compile_plan(plan, H100.arch, assemble=False), plan)
    results = layouts(problem)[2].view(c)[0]
    finite = np.isfinite(results)
    assert not finite[:, 128:].any()
    assert np.isnan(results[70]).all()
    assert finite[:70, :128].all()


def test_the_checker_knows_scales():
    for kernel in ("gemm_fp8", "typed"):
        config = CONFIGS["eight rows"] if kernel == "gemm_fp8" else SMALL["typed"]
        given = {"dtype": E4M3, "scales": "blocks"}
        (record,) = check_kernel(kernel, ["33x8x200"], config=config, gpu="h100", **given)
        assert record.verdict == "ok", record.detail
        assert record.problem.scales == "blocks"
        assert record.problem.types == "e4m3 to fp32 (scales blocks)"


def test_a_wrong_scale_is_found(device):
    """The bound of scaled products does not hide a chunk with the scale of another."""
    problem = GemmProblem(64, 64, 300, dtype=E4M3, transb=True, scales="blocks")
    inputs = make_inputs(problem, 0)
    config = KERNEL.configure(CONFIGS["one consumer"])
    right = run_typed(problem, device, kernel="gemm_fp8", config=config, integers=False)
    assert right.verdict.correct
    plan = KERNEL.plan(problem, config, H100)
    moved = replace(inputs, scale_a=np.roll(inputs.scale_a, 1))
    case = Case.of(problem, inputs, device).under(named_arithmetic(plan.compute_dtype, None))
    other = Case.of(problem, moved, device)
    _, results = other.result(problem, device, compile_plan(plan, H100.arch, assemble=False), plan)
    assert not case.reference.check(*results).correct


@pytest.mark.parametrize(
    ("word", "keys", "message"),
    [
        ("128x128,1x128", {"BM": 128, "BN": 192, "stages": 3}, "192 sums and 48 scales per thread"),
        ("blocks", {"BN": 256}, "256 sums per thread do not fit"),
    ],
)
def test_tiles_whose_scales_do_not_fit_are_refused(word, keys, message):
    problem = GemmProblem(512, 512, 512, dtype=E4M3, scales=word)
    with pytest.raises(UnsupportedProblem, match=message):
        KERNEL.plan(problem, KERNEL.configure(keys), H100)


@pytest.mark.parametrize("word", ["rows", "blocks", "1x128,1x128", "128x128,1x128"])
@pytest.mark.slow
def test_registers_hold_everything(word):
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
        for each in (each.config for each in CANDIDATES if each.name == "gemm_fp8"):
            if not KERNEL.supports(problem, each, H100):
                break
        resources = compile_plan(KERNEL.plan(problem, each, H100), H100.arch).resources
        assert resources.spill_bytes == resources.local_bytes == 0


def test_what_scales_are_called():
    assert str(Scales.parse("1x128, 128X128")) == "blocks"
    assert str(Scales.parse("rows,columns")) == "rows"
    assert str(Scales.parse("1x128,columns")) == "1x128,columns"
    assert not Scales.parse("none,none")
    assert Scales.parse("1x128,columns").transposed == Scales.parse("rows,1x128")
    problem = GemmProblem(200, 300, 130, dtype=E4M3, scales="blocks")
    assert problem.scale_shapes == ((200, 2), (3, 2))
    assert problem.scale_bytes == 4 * (400 + 6)
    assert replace(problem, batch=3, stride_b=BROADCAST).scale_bytes == 4 * (3 * 400 + 6)
    assert GemmProblem(1, 1, 1, dtype=E4M3, scales="none,none") == GemmProblem(1, 1, 1, dtype=E4M3)
    for word, message in (
        ("block", "unknown scales 'block'.*blocks"),
        ("columns,rows", "unknown scales of A 'columns'"),
        ("rows,rows", "unknown scales of B 'rows'"),
        ("rows,rows,rows", "has 3 words"),
    ):
        with pytest.raises(UsageError, match=message):
            GemmProblem(1, 1, 1, dtype=E4M3, scales=word)
    with pytest.raises(UnsupportedType, match="scales = 3 is of type int"):
        GemmProblem(1, 1, 1, dtype=E4M3, scales=3)
    with pytest.raises(UsageError, match="alpha scales products of other types"):
        GemmProblem(1, 1, 1, scales="tensor")
    with pytest.raises(UsageError, match="ragged groups have no scales of 128x128 elements of A"):
        GemmProblem.of_groups("ragged:8x8x8*2", dtype=E4M3, scales="128x128,tensor")


def test_which_kernels_take_them():
    problem = GemmProblem(64, 64, 64, dtype=E4M3, out_dtype="bfloat16", scales="rows")
    names = [each.name for each in kernels_for([problem])]
    assert names == ["typed", "gemm_fp8", "gemm_fp8_mma"]
    assert Dispatcher(H100, None).choose(problem.resized(4096, 4096, 4096)).kernel is KERNEL


# Without scales every configuration, with them one of each kind.
ON_A_GPU = [("", keys) for keys in CONFIGS] + [
    (word, keys)
    for word in WORDS
    for keys in ("one consumer", "cluster along M", "rows in finer steps", "overlapped")
]
PROBLEMS_ON_A_GPU = ("more than one tile", "rows that TMA cannot load", "a batch of one B")


@pytest.mark.gpu
@pytest.mark.parametrize(("word", "keys"), ON_A_GPU)
def test_a_gpu_has_the_same_bits(word, keys):
    from gemmkit.devices.cuda import CudaDevice

    gpu = CudaDevice()
    emulator, config = EmulatedDevice(gpu.spec), KERNEL.configure(CONFIGS[keys])
    for name in PROBLEMS_ON_A_GPU:
        for precision in ("ieee", "fast") if word in ("", "rows") else ("ieee",):
            problem = replace(PROBLEMS[name], precision=precision, scales=word)
            if KERNEL.supports(problem, config, gpu.spec):
                continue
            runs = [
                run_typed(problem, each, kernel="gemm_fp8", config=config, integers=False)
                for each in (gpu, emulator)
            ]
            check(runs[0])
            assert np.array_equal(runs[0].results, runs[1].results), (name, precision)
