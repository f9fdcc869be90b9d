"""Metrics: names, sums by kind of access, ratios, source lines."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.counters.metric import Basis
from gemmkit.emulator.counters.metrics import (
    METRICS,
    OPCODE_CLASSES,
    counts_of,
    groups,
    summarise,
    summarise_lines,
)
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.table import table
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse

KERNEL = """
.version 8.0
.target sm_80
.address_size 64
.file 1 "copy.cu"
.visible .entry copy(.param .u64 p)
{
    .reg .b64 %rd<3>;
    .reg .f32 %f<3>;
    .shared .align 4 .b8 tile[128];
    .reg .b32 %r<2>;
    .loc 1 3 1
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, tile;
    .loc 1 4 1
    ld.global.f32 %f1, [%rd1];
    st.shared.f32 [%r1], %f1;
    .loc 1 5 1
    ld.shared::cta.f32 %f2, [%r1];
    st.f32 [%rd1], %f2;
    cp.async.ca.shared.global [%r1], [%rd1], 4;
    ret;
}
"""


def flow() -> ControlFlow:
    return ControlFlow.of(parse(KERNEL).kernels["copy"])


def counted() -> Tally:
    """Four warps; each count differs from the others."""
    tally = Tally.zeros(8)
    tally.executed[:] = 4
    tally.lanes[:] = 128
    tally.requests[2:7] = [4, 4, 4, 3, 4]
    tally.sectors[2:7] = [16, 0, 0, 12, 8]
    tally.wavefronts[3:5] = [5, 6]
    tally.conflicts[3:5] = [1, 2]
    tally.data_bytes[2:7] = [512, 511, 510, 384, 500]
    return tally


def test_sums_by_kind_of_access() -> None:
    values = summarise(flow(), counted())
    assert list(values) == [metric.name for metric in METRICS]
    shown = {
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 8,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 24,
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": 3.0,
        "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum": 768,
        "ptx__data_bytes_mem_global_op_ld.sum": 512,
        "smsp__inst_executed_op_ldgsts.sum": 4,
        "smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_cache_access.sum": 4,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum": 8,
        "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum": 0,
        "ptx__data_bytes_mem_global_op_ldgsts.sum": 500,
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 3,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 12,
        "ptx__data_bytes_mem_global_op_st.sum": 384,
        "smsp__sass_inst_executed_op_shared_ld.sum": 4,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 6,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 2,
        "ptx__data_bytes_mem_shared_op_ld.sum": 510,
        "smsp__sass_inst_executed_op_shared_st.sum": 4,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": 5,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": 1,
        "ptx__inst_executed.sum": 32,
        "ptx__thread_inst_executed.sum": 1024,
        "ptx__inst_executed_op_load.sum": 16,
        "ptx__inst_executed_op_control.sum": 4,
        "ptx__inst_executed_op_fma.sum": 0,
    }
    assert {name: values[name] for name in shown} == shown


def test_a_generic_access_counts_where_it_goes() -> None:
    tally = counted()
    tally.sectors[5], tally.wavefronts[5] = 0, 9
    values = summarise(flow(), tally)
    assert values["l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"] == 0
    assert values["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] == 5 + 9


def test_a_ratio_of_nothing_is_zero() -> None:
    values = summarise(flow(), Tally.zeros(8))
    assert set(values.values()) == {0}


def test_lines_add_up_to_the_kernel() -> None:
    whole, lines = summarise(flow(), counted()), summarise_lines(flow(), counted())
    assert list(lines) == [("copy.cu", 3), ("copy.cu", 4), ("copy.cu", 5)]
    for metric in METRICS:
        if metric.per is None:
            assert sum(line[metric.name] for line in lines.values()) == whole[metric.name]
    assert lines["copy.cu", 4]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 16
    assert lines["copy.cu", 5]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 8


def test_the_table_of_metrics_is_sound() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    forms = table().values()
    assert set(OPCODE_CLASSES) == {form.opcode_class for form in forms}
    known = {group for form in forms for group in groups(form)}
    counts = counts_of(flow(), counted())
    for metric in METRICS:
        assert metric.of in known
        assert metric.count in counts
        assert metric.per is None or names.index(metric.per) < names.index(metric.name)
        assert metric.name.startswith("ptx__") == (metric.basis is Basis.PTX)


def test_tallies_add_and_differ() -> None:
    one = counted()
    both = one + one
    assert both.differences(one)["sectors"] == [2, 5, 6]
    assert one.differences(counted()) == {}
    assert np.array_equal(both.sectors, 2 * one.sectors)
