"""`warp_reduce`: every side from 1 to 16, both ways round, and what its launch makes of it."""

import re

import pytest

from gemmkit import check
from gemmkit.bench.run import run_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.problem import GemmProblem

H100, RTX3090 = find_board("h100"), find_board("rtx3090")
KERNEL = find_kernel("gemm_skinny")
SMALL = KERNEL.configure({"BN": 32, "BK": 32, "split_k": 3})


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(RTX3090)


def template(problem, config=KERNEL.default, gpu=H100):
    """Fields of the template arguments by name: those of the tile, and `a` and `b` of `Access`."""
    entry = KERNEL.plan(problem, config, gpu).entry
    return dict(re.findall(r"\.(\w+) = (\w+)", entry))


@pytest.mark.parametrize("side", range(1, 17))
@pytest.mark.parametrize(("m", "n", "k"), [(0, 40, 72), (0, 39, 70), (40, 0, 69)])
@pytest.mark.sample(17)
def test_every_side(device, side, m, n, k):
    """Few rows, by vectors and by floats, and few columns, by floats; k ends within a step."""
    problem = GemmProblem(m or side, n or side, k)
    record = run_kernel(KERNEL, problem, device, config=SMALL, assemble=False)
    assert record.correct, record.check


@pytest.mark.parametrize("layout", ["nt", "tn", "tt"])
# Small odd sides are among those that break no rule, below.
@pytest.mark.parametrize("side", [1, pytest.param(3, marks=pytest.mark.slow), 16])
@pytest.mark.sample(6)
def test_transposed_matrices(device, layout, side):
    """By vectors and by floats, either side small, with k that ends within a step."""
    odd = side == 3
    for shape in ((side, 40 - odd, 72 - 2 * odd), (40 - odd, side, 72 - 3 * odd)):
        problem = GemmProblem(*shape, alpha=1.5, beta=0.5).laid_out(layout)
        record = run_kernel(KERNEL, problem, device, config=SMALL, assemble=False)
        assert record.correct, (problem.shape, record.check)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(3, 70, 90), (12, 136, 264), (136, 12, 264), (70, 3, 90)])
@pytest.mark.sample(10)
def test_transposed_matrices_break_no_rule(layout, shape):
    device = EmulatedDevice(H100, sanitize=True)
    problem = GemmProblem(*shape, alpha=1.5, beta=0.5).laid_out(layout)
    (record,) = check(KERNEL, [problem], config={"BK": 64, "split_k": 2}, device=device)
    assert record.correct
    assert not record.findings


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(8, 256, 256), (256, 8, 256)])
@pytest.mark.sample(4)
def test_the_large_matrix_is_read_once_in_whole_sectors(device, layout, shape):
    m, n, k = shape
    problem = GemmProblem(m, n, k).laid_out(layout)
    record = run_kernel(
        KERNEL, problem, device, config=KERNEL.configure({"split_k": 1}), assemble=False
    )
    sectors = record.counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
    large, small = max(m, n) * k // 8, min(m, n) * k // 8
    blocks = max(m, n) // KERNEL.default["BN"]
    assert large <= sectors <= large + 2 * small * blocks


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(5, 70, 90, -0.5, 2.0, lda=93, ldb=71, ldc=75),
        GemmProblem(16, 72, 88, 1.5, 0.25, lda=92, ldb=76, ldc=80),
        GemmProblem(70, 5, 90, -0.5, 2.0, lda=93, ldb=7, ldc=6),
        GemmProblem(70, 1, 92, 1.5, 0.25, ldb=3, ldc=2),
        GemmProblem(5, 7, 9, alpha=0.0, beta=0.5),
        GemmProblem(70, 3, 0, beta=0.5),
        GemmProblem(3, 70, 0),
        GemmProblem(0, 70, 5),
        GemmProblem(70, 0, 5),
    ],
    ids=lambda problem: problem.shape,
)
@pytest.mark.sample(4)
def test_leading_dimensions_scales_and_empty_sizes(device, problem):
    assert run_kernel(KERNEL, problem, device, config=SMALL, assemble=False).correct


@pytest.mark.parametrize("problem", [GemmProblem(9, 67, 261), GemmProblem(9, 68, 264)])
@pytest.mark.sample(2)
def test_rows_on_their_way_by_floats_and_by_vectors_race_with_nothing(problem):
    """Of floats, a warp has 144 copies on their way."""
    device = EmulatedDevice(H100, sanitize=True)
    (record,) = check(KERNEL, [problem], config={"BK": 128, "stages": 3}, device=device)
    assert record.correct
    assert not record.findings


def test_an_epilogue_where_columns_are_few(device):
    problem = GemmProblem(50, 2, 70, 1.5, 0.5, epilogue=Epilogue.parse("bias+relu"))
    assert run_kernel(KERNEL, problem, device, config=SMALL, assemble=False).correct


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ((2, 200, 300), {"BN": 64, "BK": 64, "WN": 16, "stages": 3}),
        ((200, 2, 300), {"BN": 16, "BK": 256, "WN": 128, "stages": 1}),
        ((4, 300, 200), {"BN": 128, "BK": 32, "WN": 128}),
        ((9, 70, 131), {"BN": 64, "BK": 64, "WN": 16, "stages": 2}),
    ],
)
@pytest.mark.sample(2)
def test_other_configurations(device, shape, changes):
    config = KERNEL.configure(changes)
    assert run_kernel(KERNEL, GemmProblem(*shape), device, config=config, assemble=False).correct


def test_the_smaller_side_is_padded_to_a_power_of_two():
    sides = [template(GemmProblem(m, 512, 512))["side"] for m in (1, 2, 3, 5, 9, 16)]
    assert sides == ["1", "2", "4", "8", "16", "16"]
    found = template(GemmProblem(512, 3, 512))
    assert (found["side"], found["tall"]) == ("4", "true")


def test_lines_are_staged_but_for_single_columns_and_few_rows_that_are_not_aligned():
    staged = {
        (1, 512, 1): "true",
        (4, 511, 1): "false",
        (5, 511, 1): "true",
        (512, 1, 1): "false",
        (512, 1, 2): "true",
        (512, 2, 2): "true",
    }
    for (m, n, ldb), told in staged.items():
        problem = GemmProblem(m, n, 512, ldb=ldb if n == 1 else 0)
        assert template(problem)["staged"] == told


def test_vectors_where_the_streamed_rows_are_aligned():
    widths = {
        (GemmProblem(4, 512, 512)): ["4", "4"],
        (GemmProblem(4, 512, 511)): ["4", "1"],
        (GemmProblem(4, 511, 512)): ["1", "4"],
        (GemmProblem(512, 1, 512)): ["4", "4"],
        (GemmProblem(512, 1, 511)): ["1", "1"],
        (GemmProblem(512, 4, 512)): ["4", "1"],
    }
    for problem, told in widths.items():
        found = template(problem)
        assert [found["a"], found["b"]] == told


def test_k_is_cut_until_every_multiprocessor_has_a_block():
    grids = {n: KERNEL.plan(GemmProblem(1, n, 65536), KERNEL.default, H100).grid
             for n in (32, 1024, 2048, 4096, 8192)}  # fmt: skip
    assert grids == {
        32: (1, 128, 1),
        1024: (32, 4, 1),
        2048: (64, 2, 1),
        4096: (128, 1, 1),
        8192: (256, 1, 1),
    }
    assert KERNEL.plan(GemmProblem(1, 32, 300), KERNEL.default, H100).grid == (1, 2, 1)
    plan = KERNEL.plan(GemmProblem(3, 1024, 65536), KERNEL.default, H100)
    assert (plan.semaphores, plan.workspace_bytes) == (32, 4 * 32 * 4 * 4 * 32)


def test_fewer_stages_where_registers_or_shared_memory_do_not_hold_them():
    asked = KERNEL.configure({"stages": 3})
    assert [template(GemmProblem(512, n, 512), asked)["stages"] for n in (1, 4, 8)] == [
        "3",
        "2",
        "1",
    ]
    wide = GemmProblem(16, 512, 512)
    assert [template(wide, asked, gpu)["stages"] for gpu in (H100, RTX3090)] == ["3", "1"]


@pytest.mark.parametrize(
    "shape", [(2, 4097, 4097), (8, 4096, 4096), (16, 4096, 4096), (4097, 4, 4097), (4096, 16, 4096)]
)
@pytest.mark.slow
def test_registers_hold_what_is_under_way(shape):
    plan = KERNEL.plan(GemmProblem(*shape), KERNEL.default, H100)
    resources = compile_plan(plan, H100.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0
    assert resources.registers * plan.threads_per_block <= H100.capability.registers_per_sm


def test_what_is_not_skinny_is_refused():
    reason = KERNEL.supports(GemmProblem(17, 17, 4), KERNEL.default, H100)
    assert reason == "it takes products of at most 16 rows or columns"
    assert KERNEL.supports(GemmProblem(16, MAX_EXTENT, 4), KERNEL.default, H100) is None
