"""Long k, accumulated in chunks, and wide products, whose tiles are rasterized in groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typed_run import check_exact, run_typed

from gemmkit.bench.check import check
from gemmkit.bench.run import run_kernel
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import ceil_div
from gemmkit.kernels.production import gemm_stream_k, gemm_tiled, schedule
from gemmkit.kernels.production.schedule import CHUNKS, RASTER_EXTENT, raster_rows
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
TILE = {"BM": 64, "BN": 64, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4, "stages": 2}
WIDE = {"BM": 128, "BN": 64, "BK": 8, "WM": 32, "WN": 64, "TM": 8, "TN": 8, "stages": 2}
LONG_WHOLE = gemm_tiled.LONG
LONG = {"gemm_tiled": LONG_WHOLE, "gemm_stream_k": gemm_stream_k.LONG}


@pytest.fixture(scope="module")
def device():
    # On more SMs `gemm_stream_k` would split the k of these few tiles besides.
    return EmulatedDevice(replace(H100, sm_count=1), sanitize=True)


def shared_bytes(name, k, **changes):
    kernel = find_kernel(name)
    config = kernel.configure({**TILE, **changes})
    return kernel.plan(GemmProblem(64, 64, k), config, H100).shared_bytes


@pytest.mark.parametrize("name", LONG)
def test_the_sums_of_chunks_take_a_tile_of_shared_memory(name):
    least = LONG[name].start
    assert shared_bytes(name, least) - shared_bytes(name, least - 1) == 4 * 64 * 64


def test_products_of_more_are_one_sum_in_whole_tiles():
    assert shared_bytes("gemm_tiled", LONG_WHOLE.stop) == shared_bytes("gemm_tiled", 64)


@pytest.mark.parametrize("name", LONG)
def test_there_is_one_chunk_where_more_would_cost_a_block_its_place(name):
    # Two blocks of 128 registers per thread share an SM, each with half of its shared memory.
    crowded = {"BM": 128, "BN": 128, "WM": 32, "WN": 64, "TM": 8, "TN": 8, "stages": 4}
    assert shared_bytes(name, LONG[name].start, **crowded) == shared_bytes(name, 64, **crowded)


def largest_error(name, problem, device):
    config = find_kernel(name).configure(TILE)
    record = run_kernel(
        find_kernel(name), problem, config=config, device=device, seed=3, assemble=False
    )
    assert record.correct, record.detail
    return record.max_error


@pytest.mark.parametrize("name", LONG)
@pytest.mark.sample(2)
def test_chunks_make_the_error_smaller(name, device, monkeypatch):
    problem = GemmProblem(64, 64, LONG_WHOLE.start + 30)
    in_chunks = largest_error(name, problem, device)
    monkeypatch.setattr(schedule, "CHUNKS", 1)
    assert in_chunks < 0.6 * largest_error(name, problem, device)


@pytest.mark.parametrize("k", [16 * CHUNKS * 33, 16 * CHUNKS * 33 + 1, 16 * CHUNKS * 33 - 17])
def test_chunks_of_even_and_uneven_length_are_right(k, device):
    problem = GemmProblem(65, 70, k, beta=0.5)
    for record in check(find_kernel("gemm_tiled"), [problem], config=TILE, device=device):
        assert record.verdict == "ok", (record.detail, record.findings)


def test_wide_products_are_rasterized_in_groups():
    def asked(m, n, places=132, batch=1):
        return raster_rows(GemmProblem(m, n, 64, batch=batch), 128, 256, places)

    assert asked(16384, 16384)
    assert not asked(4096, 4096)
    assert not asked(128, 65536), "a row of tiles is a group already"
    assert not asked(65536, 256), "so is a column"
    assert not asked(16384, 16384, batch=2)
    assert not asked(0, 16384)


@pytest.fixture
def wide(monkeypatch):
    """A product of two groups on a board that holds 96 of its blocks, the second a single row, with
    `residue` more rows and columns. Groups have half of the usual rows."""
    extent = RASTER_EXTENT // 2
    monkeypatch.setattr(schedule, "RASTER_EXTENT", extent)
    board = replace(H100, sm_count=24)

    def made(residue=0):
        problem = GemmProblem(extent + 128 + residue, 96 * 64 + residue, 5)
        config = find_kernel("gemm_tiled").configure(WIDE)
        assert ".raster = 8" in find_kernel("gemm_tiled").plan(problem, config, board).entry
        return problem, config, EmulatedDevice(board)

    return made


@pytest.mark.slow
def test_each_tile_of_each_group_is_computed(wide):
    problem, config, device = wide()
    plan = find_kernel("gemm_tiled").plan(problem, config, device.spec)
    assert plan.grid == (ceil_div(problem.n, 64), ceil_div(problem.m, 128), 1)
    found = run_typed(problem, device, kernel="gemm_tiled", config=config)
    check_exact(problem, found)


def test_groups_end_where_the_residue_begins(wide):
    problem, config, device = wide(residue=3)
    assert find_kernel("gemm_tiled").plan(problem, config, device.spec).residue == (3, 3)
    found = run_typed(problem, device, kernel="gemm_tiled", config=config)
    check_exact(problem, found)
