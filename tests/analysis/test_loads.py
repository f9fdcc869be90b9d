"""Loads per result out of counters."""

from __future__ import annotations

import pytest

from gemmkit.analysis import count_loads, loads
from gemmkit.bench.run import run_kernel
from gemmkit.devices.choose import open_device
from gemmkit.emulator.counters.metrics import METRICS
from gemmkit.gpu import find_board
from gemmkit.groups import Groups
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem
from rung_boards import HOPPER

COUNTERS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 125,
    "smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_cache_access.sum": 20,
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 7,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 250,
    "ptx__data_bytes_mem_global_op_ld.sum": 6 * 4 * 64,
    "ptx__data_bytes_mem_global_op_ldgsts.sum": 2 * 4 * 64,
    "ptx__data_bytes_mem_shared_op_ld.sum": 3 * 4 * 64,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 11,
}


def test_copies_count_as_loads_and_stores_do_not():
    seen = count_loads(COUNTERS, results=64)
    assert seen.global_requests == 125
    assert seen.sectors_per_request == 2.0
    assert seen.global_per_result == 8.0
    assert seen.shared_per_result == 3.0
    assert seen.shared_wavefronts == 11


def test_nothing_counted_and_no_results():
    assert count_loads({}, results=64) is None
    empty = count_loads(dict.fromkeys(COUNTERS, 0), results=0)
    assert empty.global_per_result is None
    assert empty.sectors_per_request is None


def test_the_emulator_counts_every_metric_that_is_summed():
    names = {metric.name for metric in METRICS}
    summed = (
        *(*loads.GLOBAL_REQUESTS, *loads.GLOBAL_SECTORS, *loads.GLOBAL_BYTES),
        *(*loads.SHARED_BYTES, *loads.SHARED_WAVEFRONTS),
    )
    assert names.issuperset(summed)


def _counted(kernel, problem, config=None, metrics=loads.GLOBAL_BYTES):
    """Words that were loaded from global and shared memory, and what the kernel says of them."""
    device = open_device("emulator", "rtx3090")
    config = config or kernel.default
    counters = run_kernel(kernel, problem, device, config=config, assemble=False).counters
    seen = tuple(
        sum(counters.get(each, 0) for each in names) / loads.WORD_BYTES
        for names in (metrics, loads.SHARED_BYTES)
    )
    return seen, kernel.loads(problem, config, device.spec)


SMALL = {"BM": 64, "BN": 64, "WM": 32, "WN": 32, "TM": 8, "TN": 4}


@pytest.mark.parametrize(
    "kernel", [each for each in LADDER if each.name not in HOPPER], ids=lambda kernel: kernel.name
)
@pytest.mark.sample(9)
def test_formulas_of_rungs_give_what_is_counted(kernel):
    problem = in_types_of(kernel, GemmProblem(100, 75, 50))
    problem = fitting(kernel, problem, find_board("rtx3090"))
    seen, foreseen = _counted(kernel, problem)
    if kernel.name == "warp_reduce" or kernel.name == "stream_k":
        assert isinstance(foreseen, str)
    else:
        assert seen == foreseen


@pytest.mark.parametrize("name", HOPPER)
@pytest.mark.sample(3)
def test_copies_of_the_tma_and_operands_of_wgmma_are_counted(name):
    """A multicast arrives in each block of the cluster, but is read once, as the formula has it."""
    kernel, board = find_kernel(name), find_board("h100")
    problem = GemmProblem(512, 512, 128, dtype="bfloat16")
    device = open_device("emulator", board)
    run = run_kernel(kernel, problem, device, config=kernel.default, assemble=False)
    seen = count_loads(run.counters, problem.results)
    foreseen = kernel.loads(problem, kernel.default, board)
    config = kernel.default
    arriving = problem.k * (1 / config["BN"] + 1 / config["BM"]) / 2
    assert seen.global_per_result == arriving >= foreseen.from_global / problem.results
    assert seen.shared_per_result == foreseen.from_shared / problem.results


def test_stream_k_has_a_formula_where_blocks_share_no_tile():
    kernel = find_kernel("stream_k")
    seen, foreseen = _counted(kernel, GemmProblem(200, 256, kernel.default["BK"]))
    assert seen == foreseen


@pytest.mark.parametrize(
    ("name", "problem", "changes"),
    [
        ("gemm_tiled", GemmProblem(100, 75, 50), SMALL),
        ("gemm_tiled", GemmProblem(100, 75, 50, transb=True), SMALL),
        ("gemm_tiled", GemmProblem(100, 76, 52, batch=3), SMALL),
        ("gemm_stream_k", GemmProblem(100, 75, 50), SMALL),
        ("gemm_split_k", GemmProblem(100, 75, 50), {}),
        ("gemm_split_k", GemmProblem(100, 76, 96), {"split_k": 3, "slice_k": 1}),
        ("gemm_small_k", GemmProblem(65, 257, 20), {}),
        ("gemm_small_k", GemmProblem(65, 257, 7, dtype="float16"), {}),
        ("gemm_small_k", GemmProblem(65, 257, 11, transb=True), {"BK": 12}),
        ("typed", GemmProblem(100, 75, 50, dtype="float64"), {}),
        ("typed", GemmProblem(100, 75, 50, dtype="float16", transa=True), {}),
        ("typed_mma", GemmProblem(100, 75, 50, dtype="bfloat16"), {}),
        ("typed_mma", GemmProblem(100, 75, 50, dtype="float64", transb=True), {}),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
@pytest.mark.sample(7)
def test_formulas_of_production_kernels_give_what_is_counted(name, problem, changes):
    kernel = find_kernel(name)
    seen, foreseen = _counted(kernel, problem, kernel.configure(changes))
    assert seen == foreseen


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_without_alpha_nothing_is_read(alpha):
    seen, foreseen = _counted(find_kernel("shared_tiling"), GemmProblem(70, 75, 24, alpha=alpha))
    assert seen == foreseen
    assert all(seen) == (alpha != 0)


LARGE = (128, 256)
GROUPS = ("100x75x50,128x128x33", "0x5x7,64x64x16*3,1x1x1,9x0x4", "65x260x20,64x64x0,4x200x100")


def group_cases():
    """Every pair of groups, tiles and layout, and the rest marked slow: large tiles take long."""
    for place, groups in enumerate(GROUPS):
        for tiles in ((64, 64), LARGE):
            for layout in ("nn", "nt"):
                quick = tiles != LARGE or layout == ("nt", "nn", "nt")[place]
                marks = () if quick else pytest.mark.slow
                name = f"{groups}-{tiles[0]}x{tiles[1]}-{layout}"
                yield pytest.param(groups, tiles, layout, marks=marks, id=name)


@pytest.mark.parametrize(("groups", "tiles", "layout"), [*group_cases()])
@pytest.mark.sample(3)
def test_formulas_of_groups_give_what_is_counted(groups, tiles, layout):
    """Of A and B, which cp.async copies; a thread's loads are of the table of groups."""
    kernel = find_kernel("gemm_grouped")
    large = {"BM": 128, "BN": 256, "WN": 128, "TM": 16, "TN": 8, "stages": 2}
    config = kernel.configure(large if tiles == LARGE else {})
    assert (config["BM"], config["BN"]) == tiles
    problem = GemmProblem.of_groups(Groups.parse(groups)).laid_out(layout)
    seen, foreseen = _counted(kernel, problem, config, metrics=(loads.GLOBAL_BYTES[1],))
    assert seen == foreseen


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
def test_coarsening_in_one_dimension(stride):
    kernel, problem = find_kernel("coarsening_1d"), GemmProblem(64, 64, 64)
    seen, foreseen = _counted(kernel, problem, kernel.configure({"stride": stride}))
    of_each = tuple(each / problem.results for each in seen)
    assert of_each == (problem.k / 8, problem.k * (stride + 1) / stride)
    assert seen == foreseen


def test_formulas_of_the_public_kernels():
    board, problem = find_board("rtx3090"), GemmProblem(1024, 1024, 1024)
    for name, expected in (
        ("shared_tiling", (2 * 1024 / 32, 2 * 1024)),
        ("coarsening_2d", (1024 / 32, 1024 / 4)),
    ):
        kernel = find_kernel(name)
        foreseen = kernel.loads(problem, kernel.default, board)
        assert tuple(each / problem.results for each in foreseen) == expected
