"""What launches ask of a board: how CTAs share a problem, and what their steps demand."""

from __future__ import annotations

import math

import pytest

from gemmkit.dispatch.candidate import Candidate
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.gpu import BOARDS, MathPipe, find_board
from gemmkit.kernels.catalog import LADDER, PRODUCTION, find_kernel
from gemmkit.kernels.cut import MOST_PARTS, useful_parts
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

H100 = find_board("h100")
STREAM = TileConfig(BM=128, BN=256, BK=8, WM=64, WN=64, TM=16, TN=8, stages=4)
SPLIT = next(each for each in CANDIDATES if each.name == "gemm_split_k")
PROBLEMS = [
    GemmProblem(512, 1024, 800),
    GemmProblem(257, 1001, 999),
    GemmProblem(16, 5000, 300),
    GemmProblem(130, 70, 90, batch=7),
    GemmProblem(640, 640, 640, dtype="float16", transb=True),
    GemmProblem(300, 640, 200, dtype="float16", out_dtype="float32"),
    GemmProblem(2049, 2049, 64),
]


def work(name: str, config: TileConfig, problem: GemmProblem, board=H100) -> Work:
    return find_kernel(name).work(problem, config, board)


@pytest.mark.parametrize("kernel", [*LADDER, *PRODUCTION], ids=lambda each: each.name)
def test_a_launch_has_the_ctas_threads_and_memory_that_its_work_says(kernel):
    config = kernel.default
    for problem in PROBLEMS:
        if kernel.supports(problem, config, H100) is not None:
            continue
        shape, found = kernel.launch(problem, config, H100), kernel.work(problem, config, H100)
        assert found.threads == math.prod(shape.block)
        assert shape.shared_bytes <= found.shared_bytes + 2**17
        if not any(shape.residue):
            assert found.ctas == math.prod(shape.grid)
        assert (found.parts > 1) == (shape.semaphores > 0)
        steps = found.tiles * ceil_div(problem.k, config.BK or 1)
        assert found.ctas * found.steps >= steps


@pytest.mark.parametrize("kernel", [*LADDER, *PRODUCTION], ids=lambda each: each.name)
def test_every_multiply_add_is_demanded_of_a_pipe(kernel):
    config = kernel.default
    for problem in PROBLEMS:
        if kernel.supports(problem, config, H100) is not None:
            continue
        found = kernel.work(problem, config, H100)
        made = found.ctas * found.steps * found.threads * found.demands.multiply_adds
        # What takes the short side whole counts one row of it; residue tiles are apart.
        if not found.thin and not any(kernel.launch(problem, config, H100).residue):
            assert made >= problem.flops / 2
        assert found.demands.math in (
            MathPipe("float32"),
            MathPipe("float16", tensor=True),
        )


@pytest.mark.parametrize(
    ("name", "changes", "problem", "results"),
    [
        ("naive", {}, GemmProblem(300, 300, 300), 1),
        ("coarsening_1d", {}, GemmProblem(300, 300, 300), 8),
        ("gemm_split_k", {}, GemmProblem(300, 300, 300), 8 * 8),
        ("gemm_split_k", {"slice_k": 1, "split_k": 1}, GemmProblem(300, 300, 300), 8 * 8),
        ("gemm_stream_k", {}, GemmProblem(2048, 2048, 64), 16 * 8),
        # However many tiles a block takes in turn.
        ("gemm_grouped", {}, GemmProblem(8192, 8192, 1), 8 * 4),
        ("typed_mma", {}, GemmProblem(64, 64, 64, dtype="float16"), 32 * 32 // 32),
        # Four rows of its TM, in each of two columns.
        ("gemm_small_k", {}, GemmProblem(300, 300, 8), 4 * 2),
        # Of the thin side all rows, by four along the long one.
        ("warp_reduce", {}, GemmProblem(16, 5000, 300), 16 * 4),
        ("gemm_skinny", {}, GemmProblem(5000, 3, 300), 3 * 4),
    ],
    ids=str,
)
def test_results_of_which_a_thread_keeps_sums(name, changes, problem, results):
    config = find_kernel(name).configure(changes)
    assert work(name, config, problem).results_per_thread == results


def test_layouts_decide_how_tiles_are_copied():
    copies = {
        layout: work("gemm_tiled", STREAM, GemmProblem(512, 512, 512).laid_out(layout)).demands
        for layout in ("nn", "nt", "tn", "tt")
    }
    assert copies["tn"].copies.elements == 0 < copies["tn"].copies.vectors
    assert copies["nt"].copies.vectors == 0 < copies["nt"].copies.elements
    # A's 128 rows by single elements, B's 256 columns by vectors, and the other way round.
    assert copies["tt"].copies.elements == 2 * copies["nn"].copies.elements


@pytest.mark.parametrize(
    ("dtype", "name", "pipe"),
    [
        ("float64", "typed", MathPipe("float64")),
        ("float16", "typed", MathPipe("float32")),
        ("bfloat16", "typed_mma", MathPipe("bfloat16", tensor=True)),
        ("float64", "typed_mma", MathPipe("float64", tensor=True)),
    ],
)
def test_types_decide_what_multiplies(dtype, name, pipe):
    kernel = find_kernel(name)
    found = kernel.work(GemmProblem(256, 256, 256, dtype=dtype), kernel.default, H100)
    assert found.demands.math == pipe


def test_wider_types_take_more_of_shared_memory_and_registers():
    kernel = find_kernel("typed")
    narrow, wide = (
        kernel.work(GemmProblem(256, 256, 256, dtype=dtype), kernel.default, H100).demands
        for dtype in ("float16", "float64")
    )
    assert wide.wavefronts == 2 * narrow.wavefronts
    assert wide.registers == 2 * narrow.registers
    assert wide.l2_bytes == 4 * narrow.l2_bytes


def test_whole_tiles():
    config = Candidate("gemm_tiled", STREAM).config
    found = work("gemm_tiled", config, GemmProblem(1000, 1000, 100))
    assert (found.ctas, found.tiles, found.steps, found.visits, found.parts) == (32, 32, 13, 1, 1)


def test_residue_tiles_take_what_a_last_wave_leaves_empty():
    config = Candidate("gemm_tiled", STREAM).config
    # 4 of 132 SMs are left, for what the residue tiles of one row and one column are worth.
    some = work("gemm_tiled", config, GemmProblem(2049, 2049, 800))
    assert (some.ctas, some.tiles, some.parts) == (132, 132, 1)
    assert 100 < some.steps < 112  # and the rest of them take a round more
    none = work("gemm_tiled", config, GemmProblem(128 * 132 + 1, 256, 800))
    assert none.ctas == 132
    assert 100 < none.steps < 110


def test_cut_tiles_share_their_steps():
    config = SPLIT.split(4).config
    problem = GemmProblem(config["BM"], config["BN"], 10 * config["BK"])
    found = work("gemm_split_k", config, problem)
    assert (found.ctas, found.tiles, found.steps, found.parts) == (4, 1, 3, 4)


def test_no_more_parts_than_steps():
    config = SPLIT.split(16).config
    problem = GemmProblem(config["BM"], config["BN"], 3 * config["BK"])
    assert work("gemm_split_k", config, problem).parts == 3


def test_a_stream_of_whole_waves_cuts_nothing():
    blocks = H100.sm_count
    problem = GemmProblem(2 * 128 * blocks, 256, 800)
    found = work("gemm_stream_k", STREAM, problem)
    assert (found.ctas, found.steps, found.visits, found.parts) == (blocks, 200, 2, 1)


def test_a_stream_deals_out_what_waves_leave_over():
    problem = GemmProblem(128 * 200, 256, 800)
    found = work("gemm_stream_k", STREAM, problem)
    assert found.ctas == 132
    assert found.steps == ceil_div(200 * 100, 132)
    assert found.parts == 2


def test_splits_fill_the_sms_and_the_last_wave():
    BM, BN, BK = (SPLIT.config[key] for key in ("BM", "BN", "BK"))

    def splits(tiles: int, steps: int = 1000) -> tuple[int, ...]:
        problem = GemmProblem(BM * tiles, BN, BK * steps)
        return useful_parts(problem, SPLIT.config, H100, resident=3)

    assert {4, 8, 12} <= set(splits(33))
    assert {2, 4, 6} <= set(splits(66))
    # 99 tiles: four parts of each are three whole waves.
    assert 4 in splits(99)
    assert splits(1)[-1] == MOST_PARTS
    assert splits(1, steps=7) == (3,)
    assert splits(33, steps=3) == ()
    assert useful_parts(GemmProblem(0, 8, 8), SPLIT.config, H100, resident=3) == ()


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.label)
def test_nothing_to_compute_is_no_work(candidate):
    board = next(
        each for each in BOARDS.values() if not candidate.kernel.rule(candidate.config, each)
    )
    found = candidate.kernel.work(GemmProblem(0, 5, 5), candidate.config, board)
    assert (found.ctas, found.steps, found.parts) == (0, 0, 1)


def test_alpha_zero_reads_nothing():
    found = work("gemm_tiled", STREAM, GemmProblem(128, 256, 800, alpha=0.0))
    assert found.steps == 1
