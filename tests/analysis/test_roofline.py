"""The roofline: ridge points, roofs, and intensities by hand."""

from __future__ import annotations

import pytest

from gemmkit.analysis.roofline import intensities, roofline
from gemmkit.gpu import BOARDS, find_board
from gemmkit.problem import GemmProblem


def test_roofs_of_an_h100():
    roofs = roofline(find_board("H100"))
    assert [each.level for each in roofs.ceilings] == ["DRAM", "L2", "shared memory"]
    assert roofs.peak_tflops == pytest.approx(66.9, abs=0.05)
    # 132 SMs × 128 bytes × 1.98 GHz.
    assert roofs.bandwidth("shared memory") == pytest.approx(33454, abs=1)
    assert roofs.attainable("DRAM", 1.0) == pytest.approx(3.352)
    assert roofs.attainable("DRAM", 1000.0) == roofs.peak_tflops


@pytest.mark.parametrize("board", sorted(BOARDS))
def test_each_level_is_faster_than_the_one_below_and_ridges_lie_on_the_peak(board):
    roofs = roofline(BOARDS[board])
    speeds = [each.gb_per_s for each in roofs.ceilings]
    assert speeds == sorted(speeds)
    for each in roofs.ceilings:
        assert each.source
        ridge = roofs.ridge(each.level)
        assert roofs.attainable(each.level, ridge) == pytest.approx(roofs.peak_tflops)
        assert roofs.attainable(each.level, ridge / 2) == pytest.approx(roofs.peak_tflops / 2)


def test_intensities_by_counted_and_given_bytes():
    problem = GemmProblem(64, 64, 64)
    counters = {
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 1000,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 24,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 500,
    }
    seen = intensities(problem, counters)
    assert seen["DRAM"] == problem.intensity
    assert seen["L2"] == problem.flops / (32 * 1024)
    assert seen["shared memory"] == problem.flops / (128 * 500)
    given = intensities(problem, {}, dram_bytes=problem.flops, l2_bytes=2.0 * problem.flops)
    assert given == {"DRAM": 1.0, "L2": 0.5}


def test_an_empty_problem_has_no_intensity():
    assert intensities(GemmProblem(0, 0, 0), {}) == {}
