"""Rungs 11 to 13: who gets which part of k, what memory that takes, and the same bits each time."""

import pytest
from sharing_k import UNLIKE_BOARDS, bits_in_any_order, plans_that_fill, streamed

from gemmkit import check
from gemmkit.bench.run import run_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel, instead_of
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.problem import GemmProblem

H100, RTX3090 = find_board("h100"), find_board("rtx3090")
SPLIT, SKINNY, STREAM = map(find_kernel, ("split_k", "warp_reduce", "stream_k"))
TILE = {"BM": 32, "BN": 32, "BK": 8, "WM": 16, "WN": 32, "TM": 4, "TN": 4, "stages": 3}
SMALL = SKINNY.configure({"BN": 32, "BK": 64})


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(RTX3090)


def split(parts):
    return SPLIT.configure({**TILE, "split_k": parts})


# --- split_k ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "asked", "parts"),
    [(80, 4, 4), (80, 10, 10), (80, 11, 10), (81, 11, 11), (7, 4, 1), (0, 4, 1), (80, 1, 1)],
)
def test_there_are_no_more_parts_than_steps_of_k(k, asked, parts):
    plan = SPLIT.plan(GemmProblem(70, 40, k), split(asked), H100)
    assert plan.grid == (3 * 2, 1, parts)
    assert plan.semaphores == (6 if parts > 1 else 0)
    assert plan.workspace_bytes == (6 * parts * 32 * 32 * 4 if parts > 1 else 0)


def test_the_parts_of_k_need_no_compiler():
    plans = [SPLIT.plan(GemmProblem(64, 64, 640), split(parts), H100) for parts in (1, 2, 7)]
    assert len({plan.entry for plan in plans}) == 1


def test_parts_of_unequal_length(device):
    record = run_kernel(
        SPLIT, GemmProblem(33, 70, 8 * 11 + 3), device, config=split(5), assemble=False
    )
    assert record.correct, record.check


def test_more_parts_than_a_grid_has_layers_are_refused():
    assert "65535 layers" in SPLIT.rule(split(70_000), H100)


# --- stream_k ---------------------------------------------------------------------------------


def cut(tiles, k):
    return streamed(STREAM, GemmProblem(32, 32 * tiles, k), STREAM.configure(TILE), H100)


def test_whole_waves_need_no_scratch_memory():
    places = cut(1, 64)[1]
    plan, _ = cut(2 * places, 64)
    assert plan.grid == (places, 1, 1)
    assert plan.workspace_bytes == plan.semaphores == 0


def test_the_workspace_has_two_parts_of_tiles_per_block():
    places = cut(1, 64)[1]
    plan, _ = cut(2 * places + 1, 64)
    assert plan.grid == (places, 1, 1)
    assert plan.semaphores == 2 * places + 1
    assert plan.workspace_bytes == 2 * places * 32 * 32 * 4


def test_no_block_is_without_a_step():
    assert cut(3, 8 * 5)[0].grid == (15, 1, 1)
    assert cut(3, 0)[0].grid == (3, 1, 1)


@pytest.mark.parametrize("board", UNLIKE_BOARDS, ids=lambda board: board.name)
@pytest.mark.sample(2)
def test_as_many_blocks_as_fit_the_boards_threads_and_memory(board):
    assert list(plans_that_fill(STREAM, board))


@pytest.mark.parametrize("shape", [(32, 32, 8 * 37), (96, 64, 8 * 111), (40, 1000, 100)])
def test_every_cut_tile_is_added_up(device, shape):
    """A tile of many blocks; blocks that end one tile and begin the next; whole tiles between."""
    record = run_kernel(
        STREAM, GemmProblem(*shape), device, config=STREAM.configure(TILE), assemble=False
    )
    assert record.correct, record.check


@pytest.mark.parametrize(
    ("kernel", "config"), [(SPLIT, split(5)), (STREAM, STREAM.configure(TILE))]
)
def test_the_bits_are_the_same_whichever_block_is_last(kernel, config):
    problem = GemmProblem(70, 100, 170)
    assert len(bits_in_any_order(kernel, config, problem, "rtx3090", launches=2)) == 1


# --- warp_reduce ------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1, 2, 3, 8, 13, 16])
@pytest.mark.sample(3)
def test_sides_both_ways_round(device, side):
    """Few rows, by vectors and by floats, and few columns; k ends within a step."""
    for shape in ((side, 40, 172), (side, 39, 170), (40, side, 169)):
        record = run_kernel(SKINNY, GemmProblem(*shape), device, config=SMALL, assemble=False)
        assert record.correct, (shape, record.check)


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(5, 70, 190, -0.5, 2.0, lda=193, ldb=71, ldc=75),
        GemmProblem(70, 5, 190, -0.5, 2.0, lda=193, ldb=7, ldc=6),
        GemmProblem(70, 8, 192, 1.5, 0.25, ldb=12, epilogue=Epilogue.parse("bias+relu")),
        GemmProblem(5, 7, 9, alpha=0.0, beta=0.5),
        GemmProblem(70, 3, 0, beta=0.5),
        GemmProblem(0, 70, 5),
        GemmProblem(70, 0, 5),
    ],
    ids=lambda problem: problem.shape,
)
@pytest.mark.sample(3)
def test_leading_dimensions_scales_and_empty_sizes(device, problem):
    assert run_kernel(SKINNY, problem, device, config=SMALL, assemble=False).correct


@pytest.mark.parametrize("changes", [{"BN": 64, "BK": 64}, {"BN": 32, "BK": 128, "stages": 2}])
@pytest.mark.sample(2)
def test_warps_along_both_sides(device, changes):
    for shape in ((3, 200, 300), (200, 3, 300)):
        config = SKINNY.configure(changes)
        assert run_kernel(
            SKINNY, GemmProblem(*shape), device, config=config, assemble=False
        ).correct


@pytest.mark.parametrize("problem", [GemmProblem(9, 67, 261), GemmProblem(67, 9, 261)])
@pytest.mark.sample(2)
def test_copies_by_floats_break_no_rule(problem):
    (record,) = check(
        SKINNY, [problem], config={"BK": 64}, device=EmulatedDevice(RTX3090, sanitize=True)
    )
    assert record.correct
    assert not record.findings


def test_the_large_matrix_is_read_once(device):
    """With 64 columns, in two blocks: B once, and A once for each block."""
    counters = run_kernel(
        SKINNY, GemmProblem(16, 64, 256), device, config=SMALL, assemble=False
    ).counters
    read = counters["ptx__data_bytes_mem_global_op_ldgsts.sum"]
    assert read == 4 * (64 * 256 + 2 * 16 * 256)
    shuffles = 2 * 16 * 4  # two halvings of the four lanes, for each of 64 sums
    warps = 2 * 32 * 64 // 16 // 32
    assert counters["ptx__inst_executed_op_warp.sum"] == shuffles * warps


@pytest.mark.parametrize("shape", [(2, 4097, 4097), (16, 4096, 4096), (4096, 16, 4096)])
@pytest.mark.sample(3)
def test_registers_hold_a_block(shape):
    plan = SKINNY.plan(GemmProblem(*shape), SKINNY.default, H100)
    resources = compile_plan(plan, H100.arch).resources
    assert resources.spill_bytes == resources.local_bytes == 0
    assert resources.registers * plan.threads_per_block <= H100.capability.registers_per_sm


def test_what_is_not_skinny_is_refused_with_what_takes_it():
    reason = SKINNY.supports(GemmProblem(17, 17, 4), SKINNY.default, H100)
    assert reason == "it takes products of at most 16 rows or columns"
    assert SKINNY.supports(GemmProblem(16, MAX_EXTENT, 4), SKINNY.default, H100) is None


# --- what production kernels take ---------------------------------------------------------------


@pytest.mark.parametrize("kernel", [SPLIT, SKINNY, STREAM], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(16, 16, 16, batch=2),
        GemmProblem(16, 16, 16).laid_out("nt"),
        GemmProblem(16, 16, 16, epilogue=Epilogue.parse("residual")),
    ],
    ids=["batch", "layout", "residual"],
)
def test_what_a_rung_does_not_take_is_refused_with_the_kernel_that_does(kernel, problem):
    assert kernel.supports(problem, kernel.default, H100)
    assert "'gemm_tiled'" in instead_of(kernel, problem, H100)
