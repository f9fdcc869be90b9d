"""The closed-form time: what must hold of it whatever its figures are, and what was measured."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from gemmkit.analysis.closed_form.costs import BoardCosts, Correction, Costs
from gemmkit.analysis.closed_form.form import ClosedForm
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import BOARDS
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import in_types_of
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import Record

H100 = BOARDS["h100"]
RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
KERNEL = find_kernel("gemm_tiled")
LARGE = TileConfig(BM=128, BN=256, BK=8, WM=64, WN=64, TM=16, TN=8, stages=4)
PROBLEM = GemmProblem(512, 1024, 800)
COSTS = Costs(step=2000.0, latency=2400.0, tile=3000.0, unaligned=1.5, sharing=500.0, registers=208)
PLAIN = BoardCosts(launch_us=2.0, partial_bytes=32.0, exponent=4.0)


def form(gpu=H100, costs=COSTS) -> ClosedForm:
    return ClosedForm(KERNEL, KERNEL.configure(LARGE.as_dict()), gpu, board=PLAIN, costs=costs)


def costs_of(kernel, config, gpu=H100, problem=PROBLEM):
    found = ClosedForm(kernel, config, gpu)
    return found.costs(kernel.work(problem, config, gpu))


def default_form(name: str, gpu=H100) -> ClosedForm:
    kernel = find_kernel(name)
    return ClosedForm(kernel, kernel.default, gpu)


def test_a_wave_by_hand():
    # 16 blocks, one an SM: 100 steps of 2400 cycles, and 3000 for the tile, at 1980 MHz.
    seen = form().estimate(GemmProblem(512, 1024, 800))
    assert seen.microseconds == pytest.approx(2 + (100 * 2400 + 3000) / 1980, rel=1e-4)
    assert seen.waves == pytest.approx(16 / 132)
    assert seen.busy == pytest.approx(16 / 132)
    assert (seen.blocks_per_sm, seen.work.parts) == (1, 1)


def test_waves_are_steps():
    """One tile more than whole waves takes a wave more."""
    full = form().estimate(GemmProblem(128 * 132, 256, 8000)).microseconds
    more = form().estimate(GemmProblem(128 * 133, 256, 8000)).microseconds
    twice = form().estimate(GemmProblem(128 * 264, 256, 8000)).microseconds
    assert more == pytest.approx(twice, rel=1e-3)
    assert more == pytest.approx(2 * full, rel=0.01)


def test_rows_that_are_not_aligned_cost_more():
    aligned = form().estimate(GemmProblem(512, 1024, 8000)).microseconds
    unaligned = form().estimate(GemmProblem(512, 1024, 8000, lda=8001)).microseconds
    assert unaligned == pytest.approx(1.5 * aligned, rel=0.01)


def test_a_batch_fills_the_board_as_one_large_product_does():
    batch = form().estimate(GemmProblem(128, 256, 8000, batch=132))
    large = form().estimate(GemmProblem(128 * 132, 256, 8000))
    assert batch.work == large.work
    # Each product reads a B of its own.
    assert batch.microseconds == pytest.approx(large.microseconds, rel=0.02)


def test_nothing_is_faster_than_its_matrices_come_from_memory():
    for kernel in LADDER:
        problem = GemmProblem(1, 8192, 8192, epilogue=Epilogue(bias=True))
        problem = in_types_of(kernel, problem)
        if kernel.supports(problem, kernel.default, H100) is None:
            seen = default_form(kernel.name).estimate(problem)
            least = problem.minimal_bytes / (H100.dram_gb_per_s * 1e3)
            assert seen.microseconds > seen.memory_us > least


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_more_work_takes_longer(kernel):
    problem, deeper = (in_types_of(kernel, GemmProblem(16, 2048, depth)) for depth in (1024, 8192))
    if kernel.supports(problem, kernel.default, H100) is not None:
        pytest.skip("the kernel does not take 16 rows")
    times = [default_form(kernel.name).estimate(each) for each in (problem, deeper)]
    assert 0 < times[0].microseconds < times[1].microseconds < math.inf
    assert times[0].blocks_per_sm >= 1


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.key)
def test_derived_costs_stay_below_the_peak(board):
    for kernel in LADDER:
        problem = in_types_of(kernel, GemmProblem(8192, 8192, 8192))
        if kernel.supports(problem, kernel.default, board) is not None:
            continue
        found = default_form(kernel.name, board)
        seen = found.estimate(problem)
        shares = found.shares(problem, seen)
        assert 0 < shares.speed <= 1
        assert 0 < shares.busy <= 1
        assert 0 < shares.inside <= 1
        pipe = kernel.work(problem, kernel.default, board).demands.math
        assert seen.microseconds > problem.flops / board.peak(pipe) / 1e6


def test_registers_decide_how_many_blocks_fit():
    few, many = (
        form(
            costs=Costs(
                step=9.0, latency=9.0, tile=9.0, unaligned=1.0, sharing=9.0, registers=count
            )
        )
        .estimate(PROBLEM)
        .blocks_per_sm
        for count in (96, 255)
    )
    assert few > many == 1


def test_threads_take_no_more_registers_than_let_one_block_run():
    config = {"BM": 192, "BN": 96, "BK": 32, "WM": 96, "WN": 32, "TM": 12, "TN": 8, "stages": 2}
    kernel = find_kernel("gemm_split_k")
    config = kernel.configure({**config, "split_k": 1, "slice_k": 2})
    assert ClosedForm(kernel, config, H100).estimate(PROBLEM).blocks_per_sm == 1


def test_registers_that_are_wanting_cost_time():
    """12 × 12 results and 54 copies a step do not fit 255 registers; with BK = 32 they do."""
    kernel = find_kernel("gemm_split_k")
    keys = {"BM": 192, "BN": 96, "WM": 48, "WN": 96, "TM": 12, "TN": 12, "stages": 2}
    short, long = (
        costs_of(kernel, kernel.configure({**keys, "BK": BK, "slice_k": 2})) for BK in (32, 64)
    )
    assert long.step > 2.2 * short.step


def test_a_block_that_fits_no_sm_takes_for_ever():
    found = ClosedForm(find_kernel("naive"), TileConfig(BM=64, BN=64), H100)
    seen = found.estimate(GemmProblem(64, 64, 64))
    assert seen.microseconds == math.inf
    assert seen.blocks_per_sm == 0
    assert found.shares(GemmProblem(64, 64, 64), seen) == (1.0, 1.0, 1.0)


def test_a_correction_holds_for_what_it_corrects():
    kernel = find_kernel("gemm_tiled")
    work = kernel.work(PROBLEM, LARGE, H100)
    plain, slow = (
        ClosedForm(kernel, LARGE, H100, correction=each).costs(work)
        for each in (Correction(), Correction(step=1.5, latency=1.5, tile=2.0, registers=99))
    )
    assert slow.step == pytest.approx(1.5 * plain.step)
    assert slow.latency == pytest.approx(1.5 * plain.latency)
    assert slow.tile == pytest.approx(2 * plain.tile)
    assert slow.registers == 99


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_tensor_cores_are_estimated_by_their_own_rate(dtype):
    problem = GemmProblem(4096, 4096, 4096, dtype=dtype)
    kernel = find_kernel("typed_mma")
    config = kernel.configure({"BM": 128, "BN": 128, "BK": 16, "WM": 64, "WN": 32})
    found = ClosedForm(kernel, config, H100)
    seen = found.estimate(problem)
    pipe = seen.work.demands.math
    assert pipe.tensor
    share = problem.flops / seen.microseconds / 1e6 / H100.peak(pipe)
    assert 0.05 < share < 1
    speed = found.shares(problem, seen).speed
    assert share <= speed <= 1
    # The same kernel takes longer where the tensor cores multiply less.
    slower = ClosedForm(kernel, config, BOARDS["a100"]).estimate(problem)
    assert slower.microseconds > seen.microseconds


def test_few_fp64_lanes_make_fp64_slow():
    problem = GemmProblem(2048, 2048, 2048, dtype="float64")
    for name in ("typed", "typed_mma"):
        kernel = find_kernel(name)
        config = kernel.configure({"BM": 64, "BN": 64, "BK": 16})
        gpu = BOARDS["rtx3090"]
        seen = ClosedForm(kernel, config, gpu).estimate(problem)
        assert seen.microseconds > problem.flops / gpu.peak(seen.work.demands.math) / 1e6


def test_boards_of_a_kind_differ_by_clock_memory_and_sms_alone():
    fewer = dataclasses.replace(H100, sm_count=66)
    problem = GemmProblem(128 * 66, 256, 8000)
    one, other = (form(gpu=each).estimate(problem) for each in (H100, fewer))
    # Half the SMs have half the ports to memory.
    assert one.microseconds == pytest.approx(other.microseconds, rel=1e-3)
    assert one.microseconds < other.microseconds
    assert (one.busy, other.busy) == (0.5, 1.0)


@pytest.fixture(scope="module")
def measured():
    """Kernel, estimated and measured microseconds of what was measured on an H100."""
    found = []
    for name in ("h100-ladder.json", "h100-sweep.json"):
        for line in (RESULTS / name).read_text().splitlines():
            record = Record.from_json(line)
            kernel = find_kernel(record.kernel)
            problem = GemmProblem(record.problem.m, record.problem.n, record.problem.k)
            config = kernel.configure(record.config)
            if record.problem.epilogue == "none" and kernel.supports(problem, config, H100) is None:
                time = ClosedForm(kernel, config, H100).estimate(problem).microseconds
                found.append((kernel.name, time, record.time_us.median))
    return found


def test_estimates_order_what_was_measured(measured):
    ours, theirs = np.array([row[1] for row in measured]), np.array([row[2] for row in measured])
    ranks = np.corrcoef(np.argsort(np.argsort(ours)), np.argsort(np.argsort(theirs)))[0, 1]
    assert len(measured) > 100
    assert ranks > 0.98


@pytest.mark.parametrize(
    ("kernel", "off"),
    [("async_copy", 0.15), ("warp_tiled", 0.15), ("coarsening_2d", 0.4), ("naive", 0.6)],
)
def test_estimates_are_near_what_was_measured(measured, kernel, off):
    ratios = [math.log(ours / theirs) for name, ours, theirs in measured if name == kernel]
    assert ratios
    assert max(map(abs, ratios)) < off
