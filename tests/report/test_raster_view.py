"""What a page says where the order of tiles is not shown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gemmkit.analysis.explain import explain_facts, gather
from gemmkit.analysis.trace import trace
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.document import Prose
from gemmkit.report.explain_views import explain_views
from gemmkit.report.views.raster import why_no_order

BOARD = find_board("rtx3090")


def why(name, problem, **settings):
    kernel = find_kernel(name)
    config = kernel.configure(settings) if settings else kernel.default
    plan = kernel.plan(problem, config, BOARD)
    facts = SimpleNamespace(kernel=kernel, problem=problem, config=config, plan=plan, gpu=BOARD)
    return why_no_order(facts, name)


@pytest.mark.parametrize("name", ["stream_k", "gemm_stream_k"])
def test_of_stream_k_it_says_who_shares_which_tiles(name):
    problem = GemmProblem(1024, 1024, 1024)
    kernel = find_kernel(name)
    cut = kernel.work(problem, kernel.default, BOARD).cut
    assert 0 < cut.cut_tiles <= cut.tiles
    said = why(name, problem)
    assert f"{cut.ctas:,} CTAs share the steps of k of {cut.cut_tiles:,} of {cut.tiles:,}" in said


def test_of_several_products_it_says_that():
    assert "computes 3 products" in why("gemm_tiled", GemmProblem(64, 64, 64, batch=3))
    groups = GemmProblem.of_groups([(64, 64, 64), (32, 64, 64)])
    assert "products of different shapes" in why("gemm_grouped", groups)
    assert "blocks that run alone" in why("gemm_tiled", GemmProblem(64, 64, 64))


def test_a_page_says_why_in_the_place_of_the_order(monkeypatch):
    monkeypatch.setattr("gemmkit.report.explain_views.raster_view", lambda *_: None)
    problem, kernel = GemmProblem(32, 32, 8), find_kernel("naive")
    facts = gather(kernel, problem, BOARD)
    blocks = explain_views(explain_facts(facts), [facts], [trace(kernel, problem, BOARD)])
    assert blocks["Order of tiles"] == (Prose(why_no_order(facts, "naive")),)
