"""Copies of prepared operands: in memory of their own, made once, and read as those of a launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typed_run import check, run_typed

from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import BROADCAST, GemmProblem

H100 = find_board("h100")
WGMMA = {"BM": 64, "BN": 64, "consumers": 1, "stages": 3, "cluster_m": 1}
SPLIT = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1}
FP32, TF32 = {"precision": "fp32"}, {"precision": "tf32"}
CASES = {
    "parts, lines side by side": ("gemm_fp16x3", SPLIT, GemmProblem(100, 70, 77, **FP32)),
    "parts, lines along k, other chunks": (
        "gemm_fp16x3",
        SPLIT | {"BK": 32, "stages": 3, "cluster_k": 2},
        GemmProblem(70, 66, 100, 0.5, -2.0, lda=103, ldb=104, ldc=72, transb=True, **FP32),
    ),
    "parts of one B for a batch": (
        "gemm_fp16x3",
        SPLIT | {"BM": 32, "BN": 64, "cluster_k": 4},
        GemmProblem(17, 40, 130, transa=True, batch=3, stride_b=BROADCAST, beta=1.0, **FP32),
    ),
    "parts of each B of a batch": (
        "gemm_fp16x3",
        SPLIT,
        GemmProblem(40, 33, 70, batch=2, **FP32),
    ),
    "turned": ("gemm_tf32", WGMMA, GemmProblem(72, 104, 40, transa=True, **TF32)),
    "turned, of 8 bits": (
        "gemm_fp8",
        WGMMA,
        GemmProblem(64, 48, 80, transa=True, dtype="float8_e4m3"),
    ),
    "turned, of 8 bits, by mma.sync": (
        "gemm_fp8_mma",
        {"BM": 32, "BN": 32, "WM": 16, "WN": 16, "BK": 64},
        GemmProblem(40, 24, 80, transa=True, dtype="float8_e5m2"),
    ),
    "aligned rows": ("gemm_wgmma", WGMMA, GemmProblem(70, 67, 75, dtype="float16")),
    "aligned rows, read by their addresses": (
        "gemm_mma",
        {"BM": 64, "BN": 64, "WM": 32, "WN": 32, "BK": 64},
        GemmProblem(33, 35, 37, dtype="bfloat16"),
    ),
}


# Others have parts, and clusters that share k.
SLOW = {"parts, lines along k, other chunks"}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(H100, sanitize=True)


@pytest.mark.parametrize("prepared", ["ab", "a", "b"])
@pytest.mark.parametrize(
    ("name", "keys", "problem"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, case in CASES.items()
    ],
)
@pytest.mark.sample
def test_results_are_the_same_to_the_bit(device, name, keys, problem, prepared):
    kernel = find_kernel(name)
    config = kernel.configure(keys)
    plain = kernel.plan(problem, config, H100)
    wanted = run_typed(problem, device, kernel=name, config=config, integers=False)
    check(wanted)
    own = replace(problem, prepared=prepared)
    plan = kernel.plan(own, config, H100)
    assert [each.name for each in plan.prepared] == [f"prepared_{each}" for each in prepared]
    assert plan.workspace_bytes < plain.workspace_bytes
    assert plan.entry == plain.entry
    found = run_typed(own, device, kernel=name, config=config, integers=False)
    check(found)
    assert np.array_equal(found.results, wanted.results, equal_nan=True)


def test_what_is_prepared_depends_on_neither_tile_nor_the_other_side():
    kernel, problem = find_kernel("gemm_fp16x3"), GemmProblem(512, 384, 256, **FP32, prepared="b")
    forms = {
        plan.prepared[0].form
        for rows in (64, 512, 4096)
        for config in (kernel.default, kernel.configure(SPLIT))
        for plan in [kernel.plan(replace(problem, m=rows), config, H100)]
    }
    assert len(forms) == 1
    (copy,) = kernel.plan(problem, kernel.default, H100).prepared
    # Exponents of all columns, and two parts of each element.
    assert copy.nbytes == 4 * 384 + 4 * 384 * 256
    # C = A·B is also computed as C^T = B^T·A^T.
    mirrored = GemmProblem(384, 512, 256, transa=True, transb=True, **FP32, prepared="a")
    assert {each.form for each in kernel.plan(mirrored, kernel.default, H100).prepared} == forms


def test_only_the_other_operand_is_in_the_launch_before():
    kernel, problem = find_kernel("gemm_fp16x3"), GemmProblem(512, 4096, 4096, **FP32)
    both, one = (
        kernel.plan(replace(problem, prepared=each), kernel.default, H100).before
        for each in ("", "b")
    )
    assert one.blocks < both.blocks / 2
    work = [
        kernel.work(replace(problem, prepared=each), kernel.default, H100).copied_bytes
        for each in ("", "b", "ab")
    ]
    of_a, of_b = 8 * 512 * 4096, 8 * 4096 * 4096
    assert work == [of_a + of_b, of_a + 8 * 4096, 8 * (512 + 4096)]
    turned = find_kernel("gemm_tf32")
    plan = turned.plan(replace(problem, **TF32, prepared="b"), turned.default, H100)
    assert plan.before is None
    assert plan.workspace_bytes == 0


def test_operands_that_are_read_in_place_have_no_copies():
    kernel = find_kernel("gemm_wgmma")
    problem = GemmProblem(512, 512, 512, dtype="bfloat16", prepared="ab")
    assert kernel.plan(problem, kernel.default, H100).prepared == ()


def test_neither_operand_is_read_where_alpha_is_zero(device):
    kernel = find_kernel("gemm_fp16x3")
    problem = GemmProblem(100, 70, 77, 0.0, 0.5, **FP32, prepared="ab")
    assert kernel.plan(problem, kernel.configure(SPLIT), H100).prepared == ()
    check(run_typed(problem, device, kernel=kernel.name, config=kernel.configure(SPLIT)))


def test_names_of_operands():
    assert GemmProblem(1, 1, 1, prepared="B,a").prepared == "ab"
    with pytest.raises(UsageError, match="prepared operands 'c': use a, b or ab"):
        GemmProblem(1, 1, 1, prepared="c")
    with pytest.raises(UsageError, match="prepared = 1 is of type int"):
        GemmProblem(1, 1, 1, prepared=1)
    with pytest.raises(UsageError, match="prepared = 'ab': of groups, B alone can be"):
        GemmProblem.of_groups("8x8x8*2", prepared="ab")
    assert GemmProblem.of_groups("8x8x8*2", prepared="B").prepared == "b"
