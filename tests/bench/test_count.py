"""Counters by short names, on figures that can be worked out by hand."""

from __future__ import annotations

import pytest

from gemmkit.bench.count import Counters, count
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.problem import GemmProblem

WARPS = 64 * 64 // 32


def test_a_naive_kernel_s_figures():
    counters = count("naive", (64, 64, 16))
    # For each k a warp reads one element of A and 32 neighbors of B.
    assert counters.load_requests == 2 * 16 * WARPS
    assert counters.load_sectors == (1 + 4) * 16 * WARPS
    assert counters.sectors_per_request == 2.5
    assert counters.store_requests == WARPS
    assert counters.store_sectors == 4 * WARPS
    assert counters.sectors_per_store_request == 4
    assert counters.shared_wavefronts == counters.bank_conflicts == 0
    assert counters["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 4 * WARPS
    record = counters.record
    assert record.correct
    assert record.device.gpu == "RTX 3090"
    assert counters.registers == record.resources.registers
    assert counters.local_bytes == counters.spill_bytes == counters.shared_bytes == 0
    assert counters.occupancy == record.occupancy.theoretical
    assert counters.waves_per_sm == record.occupancy.waves_per_sm


def test_configuration_board_and_problem_reach_the_run():
    problem = GemmProblem(40, 24, 8, alpha=2.0, beta=1.0)
    counters = count(
        "shared_tiling", problem, config={"BM": 16, "BN": 16, "BK": 16}, gpu="h100", seed=7
    )
    record = counters.record
    assert (record.config["BM"], record.device.gpu, record.seed) == (16, "H100", 7)
    assert (record.problem.m, record.problem.beta) == (40, 1.0)
    assert counters.shared_bytes == 4 * 2 * 16 * 16
    assert counters.shared_wavefronts > 0


def test_no_requests_give_no_ratio():
    counters = count("naive", "0x8x8")
    assert counters.load_requests == 0
    assert counters.sectors_per_request == counters.sectors_per_store_request == 0


def test_an_unknown_metric_is_told_with_its_neighbours(make_record):
    counters = Counters(make_record())
    with pytest.raises(UsageError, match=r"did you mean l1tex__t_requests_pipe_lsu_mem_global_op"):
        counters["l1tex__t_requests_pipe_lsu"]
    with pytest.raises(UsageError, match=r"there is no metric 'time'$"):
        counters["time"]


@pytest.mark.parametrize("name", ["registers", "spill_bytes", "shared_bytes", "occupancy"])
def test_what_is_not_known_is_not_made_up(make_record, name):
    counters = Counters(make_record(resources=None, occupancy=None))
    with pytest.raises(UsageError, match=r"'naive' .* not known.*pip install 'gemmkit\[ptx\]'"):
        getattr(counters, name)


def test_refusals_and_bad_shapes_are_errors():
    with pytest.raises(UnsupportedProblem, match=r"cp\.async needs compute capability 8\.0"):
        count("gemm_tiled", "8x8x8", gpu="t4")
    with pytest.raises(UsageError, match="'8x8' is not a valid shape"):
        count("naive", "8x8")
