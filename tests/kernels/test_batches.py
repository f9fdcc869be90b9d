"""Batches: every kernel that takes them, over strides, gaps, shared operands and full grids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmkit.bench.check import check
from gemmkit.bench.run import run_kernel
from gemmkit.devices.choose import open_device
from gemmkit.devices.device import Scratch
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import MAX_GRID_YZ, find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import LADDER, PRODUCTION, find_kernel
from gemmkit.kernels.grids import batch_grid
from gemmkit.kernels.plan import BATCH_ARGUMENTS, ceil_div
from gemmkit.problem import BROADCAST, GemmProblem

H100 = find_board("h100")
TILES = {"BM": 32, "BN": 64, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4, "stages": 3}
CONFIGS = {
    "gemm_tiled": ("gemm_tiled", TILES),
    "gemm_split_k": ("gemm_split_k", {**TILES, "split_k": 3, "slice_k": 2}),
    "gemm_split_k, whole": ("gemm_split_k", {**TILES, "split_k": 1, "slice_k": 1}),
    "gemm_stream_k": ("gemm_stream_k", TILES),
    "gemm_skinny": ("gemm_skinny", {"BN": 32, "BK": 64, "WN": 32, "stages": 1, "split_k": 3}),
}
each_config = pytest.mark.parametrize("named", CONFIGS)
BIASED = Epilogue(True, "relu")


def chosen(named):
    name, changes = CONFIGS[named]
    kernel = find_kernel(name)
    return kernel, kernel.configure(changes)


@pytest.fixture(scope="module")
def device():
    return open_device("emulator", "h100", sanitize=True)


PROBLEMS = {
    "odd": GemmProblem(16, 65, 131, batch=3),
    "shared B": GemmProblem(12, 64, 132, -1.5, 0.5, batch=5, stride_b=BROADCAST, epilogue=BIASED),
    "shared A": GemmProblem(33, 12, 68, batch=4, stride_a=BROADCAST),
    "gaps": GemmProblem(9, 20, 64, beta=2.0, batch=3, stride_a=700, stride_b=1284, stride_c=204),
    "odd gaps": GemmProblem(13, 20, 64, batch=3, stride_a=833, stride_b=1281, stride_c=263),
    "inside rows": GemmProblem(14, 20, 24, batch=4, lda=96, stride_a=24, ldc=80, stride_c=20),
    "a column": GemmProblem(70, 1, 256, batch=2, stride_b=257),
    "no k": GemmProblem(10, 20, 0, beta=1.0, batch=3),
}


@pytest.mark.parametrize("named", [name for name in CONFIGS if name != "gemm_split_k, whole"])
@pytest.mark.sample(2)
def test_a_batch_is_right_and_breaks_no_rule(named, device):
    kernel, config = chosen(named)
    records = check(kernel, list(PROBLEMS.values()), config=config.as_dict(), device=device)
    for name, record in zip(PROBLEMS, records, strict=True):
        assert record.verdict == "ok", (name, record.detail, record.findings)
        assert record.detail == f"every element of {record.problem.batch} products"


SIZES = st.integers(1, 70)
PITCHES = st.integers(0, 5)


@st.composite
def problems(draw):
    """Small batches of any layout, one side skinny, so that every kernel takes them."""
    m, n = draw(st.sampled_from([(11, draw(SIZES)), (draw(SIZES), 12)]))
    k, batch = draw(st.integers(0, 80)), draw(st.integers(2, 4))
    lda, ldb, ldc = max(k, 1) + draw(PITCHES), n + draw(PITCHES), n + draw(PITCHES)
    return GemmProblem(
        m,
        n,
        k,
        draw(st.sampled_from([1.0, -1.5, 0.0])),
        draw(st.sampled_from([0.0, 0.5])),
        *(lda, ldb, ldc),
        draw(st.sampled_from([Epilogue(), BIASED])),
        batch,
        stride_a=draw(st.sampled_from([BROADCAST, 0, m * lda + draw(PITCHES)])),
        stride_b=draw(st.sampled_from([BROADCAST, 0, k * ldb + draw(PITCHES)])),
        stride_c=m * ldc + draw(PITCHES),
    )


@pytest.mark.parametrize("named", [name for name in CONFIGS if name != "gemm_split_k, whole"])
@settings(max_examples=6, deadline=None)
@given(problem=problems())
@pytest.mark.sample(4)
def test_any_batch(named, problem, device):
    kernel, config = chosen(named)
    record = run_kernel(kernel, problem, device, config=config, assemble=False)
    assert record.correct, record.check


@each_config
@pytest.mark.sample(5)
def test_more_products_than_a_grid_has_layers(named):
    """They take further lines of the grid's x; results of products that lie beyond are right."""
    kernel, config = chosen(named)
    device = open_device("emulator", "h100")
    problem = GemmProblem(1, 1, 2, batch=MAX_GRID_YZ + 2)
    plan = kernel.plan(problem, config, H100)
    if kernel.name != "gemm_stream_k":
        assert plan.grid == (2, 1, ceil_div(MAX_GRID_YZ + 2, 2))
        assert not plan.semaphores
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (problem.batch, 2)).astype(np.float32) for _ in "AB")
    memory = [device.upload(each) for each in (a, b, np.full(problem.batch, np.nan, np.float32))]
    bound = bind_arguments(problem, Operands(*memory))
    scratch = Scratch.of(device, plan, bound)
    device.launch(
        compile_plan(plan, H100.arch, assemble=False), plan, {**bound, **scratch.arguments}
    )
    result = np.empty(problem.batch, np.float32)
    device.download(memory[2], result)
    assert np.array_equal(result, (a * b).sum(axis=1))


def test_rows_and_products_beyond_a_grid_s_layers():
    """`BatchPlace` in batch.cuh divides by what follows from the grid: it must be the same."""
    for rows in (1, 3, MAX_GRID_YZ, MAX_GRID_YZ + 1, 7 * MAX_GRID_YZ + 5, 10**8):
        for batch in (1, 2, MAX_GRID_YZ + 1, 10**7):
            x, y, z = batch_grid(3, rows, batch)
            layers, lines = ceil_div(rows, y), ceil_div(batch, z)
            assert x == 3 * layers * lines
            assert y <= MAX_GRID_YZ
            assert z <= MAX_GRID_YZ


def test_parts_of_k_share_z_with_the_products():
    kernel, config = chosen("gemm_split_k")
    plan = kernel.plan(GemmProblem(64, 64, 96, batch=5), config, H100)
    assert plan.grid == (1, 2, 15)
    assert plan.semaphores == 10
    assert plan.workspace_bytes == 4 * 10 * 3 * 32 * 64
    # Two parts of so many products have no room: the k of each stays whole.
    crowded = kernel.plan(GemmProblem(64, 64, 96, batch=40_000), config, H100)
    assert crowded.grid == (1, 2, 40_000)
    assert not crowded.workspace_bytes


def test_strides_pass_2_to_the_31():
    """A and C of a shared matrix each, far apart: 64-bit offsets, without the memory for them."""
    device = open_device("emulator", "h100")
    kernel, config = chosen("gemm_tiled")
    problem = GemmProblem(2, 4, 4, batch=2, stride_a=2**33 + 4, stride_b=BROADCAST)
    a, b = (np.ones((4, 4), np.float32) for _ in "AB")
    memory = [device.upload(each) for each in (a, b, np.zeros((2, 2, 4), np.float32))]
    arguments = bind_arguments(problem, Operands(*memory))
    assert arguments["stride_a"] == 2**33 + 4
    plan = kernel.plan(problem, config, H100)
    # The first product is at home; the second reads where only the whole offset leads: some 34e9
    # bytes away, or nearer to another array where the host has them apart.
    with pytest.raises(Exception, match=r"3\d{10} bytes past the end"):
        device.launch(compile_plan(plan, H100.arch, assemble=False), plan, arguments)


@pytest.mark.parametrize("kernel", LADDER[:9], ids=lambda each: each.name)
def test_rungs_refuse_a_batch(kernel):
    problem = GemmProblem(8, 8, 8, batch=2)
    assert not set(BATCH_ARGUMENTS) <= set(kernel.signature)
    with pytest.raises(UnsupportedProblem, match=r"one product per launch.*'gemm_tiled'"):
        kernel.plan(problem, kernel.default, H100)


def test_every_production_kernel_takes_a_batch():
    """But for those whose groups share one A."""
    assert all(kernel.takes_batches != kernel.takes_ragged for kernel in PRODUCTION)


def test_a_single_product_is_compiled_without_a_search_for_its_place():
    for name in ("gemm_tiled", "gemm_split_k", "gemm_skinny", "gemm_stream_k"):
        kernel = find_kernel(name)
        one, two = (
            kernel.plan(GemmProblem(16, 64, 64, batch=batch), kernel.default, H100).entry
            for batch in (1, 2)
        )
        assert ".batched = false" in one
        assert two == one.replace(".batched = false", ".batched = true")


def test_empty_batches_launch_nothing(device):
    for named in CONFIGS:
        kernel, config = chosen(named)
        assert not kernel.plan(GemmProblem(8, 8, 8, batch=0), config, H100).blocks
    assert run_kernel(
        kernel, GemmProblem(8, 8, 8, batch=0), device, config=config, assemble=False
    ).correct
