"""Kernels that cut k: who gets which part, what memory that takes, and the same bits each time."""

import pytest
from sharing_k import UNLIKE_BOARDS, bits_in_any_order, plans_that_fill, streamed

from gemmkit.bench.run import run_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import MAX_GRID_YZ, find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import ceil_div
from gemmkit.kernels.production.gemm_stream_k import LEAST_STEPS
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
SPLIT, STREAM = find_kernel("gemm_split_k"), find_kernel("gemm_stream_k")
TILE = {"BM": 32, "BN": 32, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4, "stages": 3}
NO_POWER_OF_TWO = {"BM": 48, "BN": 96, "WM": 48, "WN": 32, "TM": 12}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(find_board("rtx3080"))


def split(**changes):
    return SPLIT.configure({**TILE, "slice_k": 1, **changes})


# --- split_k ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "asked", "parts"),
    [(160, 4, 4), (160, 10, 10), (160, 11, 10), (161, 11, 11), (15, 4, 1), (0, 4, 1), (160, 1, 1)],
)
def test_there_are_no_more_parts_than_steps_of_k(k, asked, parts):
    plan = SPLIT.plan(GemmProblem(70, 40, k), split(split_k=asked), H100)
    assert plan.grid == (2, 3, parts)
    assert plan.semaphores == (6 if parts > 1 else 0)
    assert plan.workspace_bytes == (6 * parts * 32 * 32 * 4 if parts > 1 else 0)


def test_the_parts_of_k_need_no_compiler():
    plans = [
        SPLIT.plan(GemmProblem(64, 64, 640), split(split_k=parts), H100) for parts in (1, 2, 7)
    ]
    assert len({plan.entry for plan in plans}) == 1


def test_row_tiles_that_need_the_grids_z_leave_k_whole():
    rows = 32 * MAX_GRID_YZ
    assert SPLIT.plan(GemmProblem(rows, 5, 64), split(split_k=4), H100).grid == (1, MAX_GRID_YZ, 4)
    plan = SPLIT.plan(GemmProblem(rows + 1, 5, 64), split(split_k=4), H100)
    assert plan.grid == (1, ceil_div(MAX_GRID_YZ + 1, 2), 2)
    assert plan.workspace_bytes == plan.semaphores == 0


def test_more_row_tiles_than_the_grid_has_rows(device):
    config = split(BM=16, BK=16, stages=2, split_k=3)
    record = run_kernel(
        SPLIT, GemmProblem(16 * MAX_GRID_YZ + 3, 1, 2), device, config=config, assemble=False
    )
    assert record.correct, record.check


@pytest.mark.parametrize(
    ("slices", "shared_bytes"),
    [(1, 2 * 4 * 16 * (64 + 4 + 64)), (2, 2 * 4 * 64 * 64)],
)
def test_sums_of_slices_take_the_place_of_the_stages(slices, shared_bytes):
    config = split(BM=64, BN=64, WM=32, TM=8, stages=2, slice_k=slices)
    assert SPLIT.plan(GemmProblem(9, 9, 9), config, H100).shared_bytes == shared_bytes


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (GemmProblem(50, 100, 70), NO_POWER_OF_TWO),
        (GemmProblem(49, 97, 65), NO_POWER_OF_TWO),
        (GemmProblem(49, 135, 33), NO_POWER_OF_TWO),
        (GemmProblem(40, 50, 130), {"BM": 16, "BK": 64}),
        (GemmProblem(33, 31, 129), {"BM": 16, "BK": 64}),
    ],
    ids=["48x96", "48x96 odd", "48x96 partly", "16x32", "16x32 odd"],
)
@pytest.mark.sample(3)
def test_slices_of_tiles_of_other_sizes(device, problem, changes):
    config = split(**{"BK": 32, "split_k": 2, "slice_k": 4, **changes})
    record = run_kernel(SPLIT, problem, device, config=config, assemble=False)
    assert record.correct, record.check


# --- stream_k ---------------------------------------------------------------------------------


def cut(m, n, k):
    return streamed(STREAM, GemmProblem(m, n, k), STREAM.configure(TILE), H100)


def test_whole_waves_need_no_scratch_memory():
    _, places = cut(32, 32, 64)
    plan, _ = cut(32 * 2, 32 * places, 64)
    assert plan.grid == (places, 1, 1)
    assert plan.workspace_bytes == plan.semaphores == 0


def test_what_whole_waves_leave_over_is_cut_with_one_wave_more():
    _, places = cut(32, 32, 64)
    plan, _ = cut(32 * 2, 32 * places + 1, 64)
    assert plan.grid == (places, 1, 1)
    assert plan.semaphores == 2 + places
    assert plan.workspace_bytes == 2 * places * 32 * 32 * 4


def test_few_tiles_are_cut_into_shares_of_some_steps():
    steps = 5 * LEAST_STEPS
    plan, places = cut(64, 64, 16 * steps)
    assert plan.grid == (4 * 5, 1, 1)
    assert plan.semaphores == 4
    plan, _ = cut(64, 64, 16 * steps * places)
    assert plan.grid == (places, 1, 1)


@pytest.mark.parametrize("board", UNLIKE_BOARDS, ids=lambda board: board.name)
@pytest.mark.sample(2)
def test_as_many_blocks_as_fit_the_boards_registers_threads_and_memory(board):
    for config, plan, resident in plans_that_fill(STREAM, board):
        registers = 256 if config["TM"] * config["TN"] > 64 else 128
        assert resident == 1 or resident * plan.threads_per_block * registers <= 65536


@pytest.mark.parametrize("shape", [(32, 32, 16 * 37), (96, 64, 16 * 9), (40, 1000, 100)])
def test_every_tile_is_put_together(device, shape):
    record = run_kernel(
        STREAM, GemmProblem(*shape), device, config=STREAM.configure(TILE), assemble=False
    )
    assert record.correct, record.check


# --- both -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "config"), [(SPLIT, split(split_k=5, slice_k=2)), (STREAM, STREAM.configure(TILE))]
)
def test_whoever_comes_last_the_bits_are_the_same(kernel, config):
    problem = GemmProblem(70, 100, 330)
    assert len(bits_in_any_order(kernel, config, problem, "rtx3080", launches=3)) == 1
