"""Loads per result out of counters."""

from __future__ import annotations

import pytest

from gemmkit.analysis import count_loads, loads
from gemmkit.analysis.loads import loads_by_formula
from gemmkit.bench.run import run_kernel
from gemmkit.devices.choose import open_device
from gemmkit.emulator.counters.metrics import METRICS
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import fitting
from gemmkit.problem import GemmProblem

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


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_formulas_give_what_is_counted(kernel):
    device = open_device("emulator", "rtx3090")
    # A single step of k cuts no tile of `stream_k`.
    depth = kernel.default["BK"] if kernel.name == "stream_k" else 32
    problem = fitting(kernel, GemmProblem(256, 256, depth), device.spec)
    foreseen = loads_by_formula(kernel, kernel.default, problem.k)
    if foreseen is None:
        assert kernel.name == "warp_reduce"
        return
    seen = count_loads(run_kernel(kernel, problem, device).counters, results=256 * 256)
    assert seen.global_per_result == foreseen[0]
    # Besides, each thread of `split_k` reads whether its block is the last of the tile.
    spare = 0.05 if kernel.name == "split_k" else 0
    assert foreseen[1] <= seen.shared_per_result <= foreseen[1] + spare


@pytest.mark.parametrize(("parts", "again"), [(1, 0), (2, 2), (3, 3)])
def test_parts_are_read_once_more(parts, again):
    kernel, problem = find_kernel("gemm_split_k"), GemmProblem(64, 64, 96)
    config = kernel.configure({"BN": 64, "WN": 32, "TN": 4, "split_k": parts})
    record = run_kernel(kernel, problem, open_device("emulator", "rtx3090"), config=config)
    seen = count_loads(record.counters, results=64 * 64)
    from_global, from_shared = loads_by_formula(kernel, config, problem.k)
    assert seen.global_per_result == from_global == 2 * 96 / 64 + again
    # Besides, each thread reads whether its block came last.
    assert from_shared <= seen.shared_per_result <= from_shared + 0.05


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
def test_coarsening_in_one_dimension(stride):
    kernel, problem = find_kernel("coarsening_1d"), GemmProblem(64, 64, 64)
    config = kernel.configure({"stride": stride})
    record = run_kernel(kernel, problem, open_device("emulator", "rtx3090"), config=config)
    seen = count_loads(record.counters, results=64 * 64)
    assert seen.global_per_result == problem.k / 8
    assert seen.shared_per_result == problem.k * (stride + 1) / stride


def test_formulas_of_the_public_kernels():
    tiled, two = find_kernel("shared_tiling"), find_kernel("coarsening_2d")
    assert loads_by_formula(tiled, tiled.default, 1024) == (2 * 1024 / 32, 2 * 1024)
    assert loads_by_formula(two, two.default, 1024) == (1024 / 32, 1024 / 4)
