"""What is gathered of one kernel: metrics, operands, source lines, remarks."""

from __future__ import annotations

import pytest

from gemmkit import BROADCAST, GemmProblem, explain, find_board, find_kernel
from gemmkit.analysis.explain import derived, explain_facts, facts, gather
from gemmkit.analysis.explain.derived import DERIVED, figures
from gemmkit.analysis.metric_list import metric_list
from gemmkit.errors import UnsupportedProblem, UsageError


@pytest.mark.slow
def test_source_lines_hold_all_requests(gathered):
    seen = gathered["vectorized"]
    explained = explain_facts(seen)
    loads = figures(seen)["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
    stores = figures(seen)["l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"]
    assert sum(each.global_requests for each in explained.source) == loads + stores
    transposing = next(each for each in explained.source if each.bank_conflicts and each.text)
    assert transposing.file.endswith((".cu", ".cuh"))
    inner = max(explained.source, key=lambda each: each.fma)
    assert "sums[i][j] += a[i] * b[j]" in inner.text


def test_derived_metrics_by_formula(gathered):
    tiled, naive = figures(gathered["shared_tiling"]), figures(gathered["naive"])
    assert naive[derived.GLOBAL_LOADS] == 2 * 128
    assert tiled[derived.GLOBAL_LOADS] == 2 * 128 / 32
    assert tiled[derived.SHARED_LOADS] == 2 * 128
    assert tiled[derived.FMA_PER_SHARED_LOAD] == 0.5
    assert naive[derived.RESULTS_PER_THREAD] == 1
    assert figures(gathered["vectorized"])[derived.GLOBAL_WIDTH] == 16
    assert derived.FMA_PER_SHARED_LOAD not in naive, "it loads nothing from there"
    assert tiled["launch__grid_size"] == 64


def test_loads_of_groups_are_those_of_the_operands_and_of_the_table():
    groups = GemmProblem.of_groups("100x75x50,33x64x20")
    found = figures(gather(find_kernel("gemm_grouped"), groups, find_board("rtx3090")))
    parts = found[derived.GLOBAL_FORMULA], found[derived.TABLE_LOADS]
    assert found[derived.GLOBAL_LOADS] == pytest.approx(sum(parts), rel=1e-12)
    assert all(parts)
    assert found[derived.SHARED_LOADS] == found[derived.SHARED_FORMULA]


def test_why_there_is_no_formula_is_told():
    board, tiled = find_board("rtx3090"), find_kernel("gemm_tiled")
    assert "residue tiles" in tiled.loads(GemmProblem(65, 257, 20), tiled.default, board)
    seen = gather(find_kernel("gemm_skinny"), GemmProblem(2, 64, 64), board)
    rows = {row.label: row.value for each in explain_facts(seen).sections for row in each.figures}
    assert "share k" in rows["No formula for loads"]
    assert derived.GLOBAL_FORMULA not in figures(seen)


@pytest.mark.parametrize(("asked", "launched"), [(3, 1), (1, 1)])
def test_stages_are_those_of_the_launch(asked, launched):
    kernel = find_kernel("gemm_skinny")
    config = kernel.configure({"stages": asked})
    explained = explain(kernel, "64x8x64", gpu="rtx3090", config=config)
    rows = {row.label: row.value for each in explained.sections for row in each.figures}
    assert rows["Stages along k"] == launched
    told = [each.text for each in explained.sentences if "stage" in each.text]
    wanted = (
        "The launch has 1 stage, not the 3 of its configuration: registers or shared memory do "
        "not hold more."
    )
    assert told == ([wanted] if asked > launched else [])


def test_a_large_problem_is_counted_smaller_and_says_so(strides):
    seen = strides[8]
    assert not seen.is_full
    explained = explain_facts(seen)
    assert (explained.problem, explained.counted) == ("1024x1024x1024", "256x256x256")
    assert explained.metrics["launch__grid_size"] == 4096
    assert explained.metrics[derived.GLOBAL_LOADS] == 256 / 8


def test_a_batch_is_counted_whole_or_in_part(monkeypatch):
    monkeypatch.setattr(facts, "LARGEST_COUNTED", 64)
    kernel, board = find_kernel("gemm_tiled"), find_board("h100")
    config = kernel.configure({"BM": 32, "BN": 64, "WM": 16, "WN": 32, "TM": 4, "TN": 4})
    problem = GemmProblem(32, 32, 32, batch=100, stride_b=BROADCAST)
    seen = gather(kernel, problem, board, config=config)
    assert seen.counted == GemmProblem(32, 32, 32, batch=8, stride_b=BROADCAST)
    assert (
        figures(seen)[derived.GLOBAL_LOADS]
        == figures(gather(kernel, seen.counted, board, config=config))[derived.GLOBAL_LOADS]
    )
    assert figures(seen)["launch__grid_size"] == 100
    larger = gather(kernel, GemmProblem(96, 96, 96, batch=3, stride_c=9999), board, config=config)
    assert larger.counted == GemmProblem(64, 64, 64, batch=2)
    assert larger.verdict.correct


def test_empty_and_unknown_are_left_out():
    kernel, board = find_kernel("naive"), find_board("rtx3090")
    seen = gather(kernel, GemmProblem(0, 8, 8), board)
    explained = explain_facts(seen)
    assert explained.operands == ()
    assert derived.TFLOPS not in explained.metrics
    assert all(section.figures for section in explained.sections)


def test_wrong_arguments_are_told():
    with pytest.raises(UsageError, match="unknown kernel 'naife'"):
        explain("naife")
    with pytest.raises(UsageError, match="has no key 'TM'"):
        explain("naive", 64, config={"TM": 2})
    with pytest.raises(UsageError, match="is not a valid shape"):
        explain("naive", "64x64")
    with pytest.raises(UnsupportedProblem, match="BM, BN and BK must be equal"):
        explain("shared_tiling", 64, config={"BM": 16})


def test_every_metric_is_listed_once():
    names = [each.name for each in metric_list()]
    assert len(names) == len(set(names))
    assert {each.name for each in DERIVED} <= set(names)
    assert facts.LARGEST_COUNTED == 1024
