"""Operands of 8 bits: `gemm_fp8` on Hopper's tensor cores, and `typed`, which widens them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from typed_run import ALIGNED, ODD, SMALL, check, check_exact, check_shapes, run_typed

from gemmkit.bench.check import check as check_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel, kernels_for, tunable_kernels
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.verify.arithmetic import named_arithmetic
from gemmkit.verify.encoding import decode

KERNEL = find_kernel("gemm_fp8")
H100, T4 = find_board("h100"), find_board("t4")
ALONE = {"cluster_m": 1, "consumers": 1, "stages": 2}
CONFIGS = {
    "one consumer": {"BM": 64, "BN": 32, **ALONE},
    "two tiles of rows": {"BM": 128, "BN": 64, **ALONE},
    "cluster along M": {"BN": 64, "stages": 3},
    "cluster along N": {"BN": 64, "stages": 2, "cluster_m": 1, "cluster_n": 2},
    "ping-pong": {"BM": 64, "BN": 96, "pingpong": 2, "stages": 3, "cluster_m": 1},
    "k over a cluster": {"BM": 64, "BN": 64, **ALONE, "cluster_k": 2},
    "rows in finer steps": {"BM": 80, "BN": 64, **ALONE},
    "eight rows": {"BM": 8, "BN": 64, **ALONE},
    "few rows, k over a cluster": {"BM": 16, "BN": 64, **ALONE, "cluster_k": 2},
}
E4M3, E5M2 = OPERAND_TYPES
PROBLEMS = {
    "more than one tile": GemmProblem(200, 136, 264, dtype=E4M3, transb=True),
    "rows that TMA cannot load": GemmProblem(
        *(72, 131, 131, 0.5, -2.0), lda=133, ldb=137, dtype=E5M2, transb=True
    ),
    "turned": GemmProblem(136, 40, 144, dtype=E4M3, out_dtype="bfloat16", transa=True),
    "a batch": GemmProblem(
        72, 40, 136, transa=True, transb=True, batch=3, dtype=E5M2, out_dtype="float16"
    ),
    "one element": GemmProblem(1, 1, 1, dtype=E4M3),
    "alpha 0": GemmProblem(16, 24, 16, 0.0, 0.5, dtype=E4M3, out_dtype="float16"),
}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("keys", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.sample(23)
def test_shapes(device, keys, problem):
    config = KERNEL.configure(keys)
    check_exact(problem, run_typed(problem, device, kernel="gemm_fp8", config=config))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.sample(3)
def test_layouts(device, layout):
    problem = GemmProblem(72, 33, 144, dtype=E4M3).laid_out(layout)
    config = KERNEL.configure(CONFIGS["one consumer"])
    check_exact(problem, run_typed(problem, device, kernel="gemm_fp8", config=config))


def test_blocks_go_from_tile_to_tile():
    small = EmulatedDevice(replace(H100, sm_count=3), sanitize=True)
    problem = GemmProblem(300, 72, 144, dtype=E4M3, transb=True)
    config = KERNEL.configure({"BM": 64, "BN": 64, **ALONE})
    assert KERNEL.plan(problem, config, small.spec).blocks == 3
    check_exact(problem, run_typed(problem, small, kernel="gemm_fp8", config=config))


@pytest.mark.parametrize("kernel", ["gemm_fp8", "typed"])
@pytest.mark.sample(2)
def test_epilogues(device, kernel):
    epilogue = Epilogue("row", "gelu_tanh", residual=True, scale=0.75, auxiliary=True)
    problem = GemmProblem(
        *(72, 40, 136, 0.3, 0.5),
        epilogue=epilogue,
        batch=2,
        stride_b=BROADCAST,
        dtype=E4M3,
        out_dtype="bfloat16",
    )
    config = KERNEL.configure(CONFIGS["one consumer"]) if kernel == "gemm_fp8" else None
    check(run_typed(problem, device, kernel=kernel, config=config, integers=False))


@pytest.mark.parametrize("dtype", OPERAND_TYPES)
@pytest.mark.sample(2)
def test_sums_are_promoted_every_128_of_k(device, dtype):
    """Sums of like signs, of which tensor cores alone lose ever more the longer they are."""
    problem, rng = GemmProblem(64, 32, 1024, dtype=dtype), np.random.default_rng(1)
    config = KERNEL.configure(CONFIGS["one consumer"])
    drawn = rng.uniform(0.5, 1, (64, 1024)), rng.uniform(0.5, 1, (1024, 32))
    errors = []
    for precision in ("ieee", "fast"):
        asked = replace(problem, precision=precision)
        found = run_typed(asked, device, kernel="gemm_fp8", config=config, given=drawn)
        check(found)
        errors.append(np.abs(found.results / found.expected[0].values - 1).max())
    assert 3 * errors[0] < errors[1]


def test_the_bound_does_not_grow_with_k():
    promoted, fast = (named_arithmetic(f"float8,{each}", None) for each in ("promoted", "fast"))
    assert promoted is not None
    assert fast is not None
    assert promoted.relative(2**14, 0.0) == promoted.relative(128, 0.0) == fast.relative(128, 0.0)
    assert 50 * promoted.relative(2**14, 0.0) < fast.relative(2**14, 0.0)
    assert "128 of k, added in fp32" in promoted.reason


def test_a_problem_that_may_be_fast_is_checked_as_such():
    for precision, told in (("ieee", "over 128 of k, added in fp32"), ("fast", "tensor cores")):
        problem = GemmProblem(33, 8, 200, dtype=E4M3, precision=precision)
        config = KERNEL.configure(CONFIGS["eight rows"]).as_dict()
        (record,) = check_kernel("gemm_fp8", [problem], config=config, gpu="h100")
        assert record.verdict == "ok", record.detail
        assert record.arithmetic.endswith(told)


@pytest.mark.parametrize("dtype", OPERAND_TYPES)
@pytest.mark.parametrize("kernel", ["gemm_fp8", "typed"])
def test_every_number_is_what_its_bits_say(device, kernel, dtype):
    """A column of all bytes times one row; 0 times infinity is NaN, as other elements of the row
    and of the column are 0."""
    bits = np.arange(256, dtype=np.uint8)
    a, b = np.zeros((256, 16), np.uint8), np.zeros((16, 16), np.uint8)
    a[:, 0] = bits
    one = 0x38 if dtype == E4M3 else 0x3C
    b[0] = one, one | 0x80, *14 * (one,)
    problem = GemmProblem(256, 16, 16, dtype=dtype)
    config = KERNEL.configure({"BM": 64, "BN": 32, **ALONE}) if kernel == "gemm_fp8" else None
    found = run_typed(problem, device, kernel=kernel, config=config, given=(a, b))
    check(found)
    wanted = decode(bits, dtype).astype(float)
    assert np.isnan(wanted).sum() == (2 if dtype == E4M3 else 6)
    assert np.array_equal(found.results[0, :, 0], wanted, equal_nan=True)
    assert np.array_equal(found.results[0, :, 1], -wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "out", "layout", "shapes"),
    [
        (E4M3, "float32", "nn", ALIGNED),
        (E4M3, "bfloat16", "nt", ODD),
        (E5M2, "float16", "tn", ODD),
        (E5M2, "float32", "tt", ALIGNED),
    ],
    ids=lambda value: value if isinstance(value, str) else "odd" if value is ODD else "aligned",
)
@pytest.mark.sample(4)
def test_widened_in_every_layout(device, dtype, out, layout, shapes):
    check_shapes("typed", device, dtype, out, layout, shapes)


def test_widened_on_boards_without_such_tensor_cores():
    problem = GemmProblem(40, 24, 56, dtype=E4M3, out_dtype="bfloat16")
    check(run_typed(problem, EmulatedDevice(T4, sanitize=True), integers=False))


def test_groups():
    problem = GemmProblem.of_groups("33x17x40,8x64x16", dtype=E5M2, out_dtype="float16")
    (record,) = check_kernel("grouped_typed", [problem], config=SMALL["typed"], gpu="h100")
    assert record.verdict == "ok", record.detail


@pytest.mark.parametrize(
    ("changes", "board", "keys", "message"),
    [
        ({"k": 0}, "h100", {}, "nothing to load"),
        ({"dtype": "bfloat16"}, "h100", {}, "is for float8_e4m3, float8_e5m2, not bfloat16"),
        ({"out_dtype": "float64"}, "h100", {}, "writes C as float32, float16, bfloat16"),
        ({}, "a100", {}, r"compute capability 9.0 .*; A100 has 8.0"),
        ({}, "h100", {"BK": 256}, "use 128, the elements of k after which"),
        ({}, "h100", {"BN": 256}, "256 sums per thread do not fit"),
    ],
)
def test_what_it_refuses_is_told(changes, board, keys, message):
    problem = GemmProblem(**{"m": 72, "n": 40, "k": 136, "dtype": E4M3, **changes})
    with pytest.raises(UnsupportedProblem, match=message):
        KERNEL.plan(problem, KERNEL.configure(keys), find_board(board))


def test_fast_accumulation_leaves_room_for_larger_tiles():
    problem, large = GemmProblem(512, 512, 512, dtype=E4M3), KERNEL.configure({"BN": 256})
    assert "sums per thread" in str(KERNEL.supports(problem, large, H100))
    assert KERNEL.supports(replace(problem, precision="fast"), large, H100) is None


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "keys"), [("ieee", {}), ("fast", {"BN": 256})])
def test_registers_hold_everything(precision, keys):
    problem = GemmProblem(512, 512, 512, dtype=E4M3, precision=precision)
    plan = KERNEL.plan(problem, KERNEL.configure(keys), H100)
    resources = compile_plan(plan, H100.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0


def test_only_types_of_8_bits_may_be_fast():
    with pytest.raises(UsageError, match="'fast' is of products of float8_e4m3 and float8_e5m2"):
        GemmProblem(1, 2, 3, precision="fast")
    with pytest.raises(UsageError, match="'tf32' is of products of float32"):
        GemmProblem(1, 2, 3, dtype=E4M3, precision="tf32")
    fast = GemmProblem(1, 2, 3, dtype=E4M3, precision="FAST")
    assert Asked().problem(fast, KERNEL) == fast
    assert Asked(dtype="float32").problem(fast).precision == "ieee"


def test_which_kernels_take_them():
    problem = GemmProblem(64, 64, 64, dtype=E4M3, out_dtype="bfloat16")
    names = [each.name for each in kernels_for([problem])]
    assert names == ["typed", "gemm_fp8", "gemm_fp8_mma"]
    assert [each.name for each in tunable_kernels([problem], H100)] == names
    assert re.search("'typed' and 'gemm_fp8_mma' take it", refusal(replace(problem, k=0)))


def refusal(problem: GemmProblem) -> str:
    with pytest.raises(UnsupportedProblem) as caught:
        KERNEL.plan(problem, KERNEL.default, H100)
    return str(caught.value)
