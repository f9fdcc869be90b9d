"""Loads per result out of counters."""

from __future__ import annotations

from gemmkit.analysis import count_loads, loads
from gemmkit.emulator.counters.metrics import METRICS

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
