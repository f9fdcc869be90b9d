"""Tiles for many products in one launch follow from their sizes, and are remembered."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmkit.dispatch import groups
from gemmkit.dispatch.groups import as_a_batch, choose_tiles
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.grouped_problem import GroupedProblem
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.production import gemm_grouped as grouped
from gemmkit.problem import GemmProblem
from gemmkit.tune.entry import Entry, ProblemClass, gpu_key
from gemmkit.tune.freshness import Freshness, source_digest
from gemmkit.tune.store import Store

H100 = find_board("h100")


def tiles(*products):
    config = choose_tiles(GroupedProblem.of(products), H100)
    return config["BM"] * config["BN"]


def test_small_products_have_small_tiles():
    areas = [
        tiles(*(GemmProblem(side, side, 64 + 4 * (number % 3)) for number in range(500)))
        for side in (8, 64, 256, 1024)
    ]
    assert areas == sorted(areas)
    assert areas[0] <= 32 * 32
    assert areas[-1] >= 64 * 64


def test_few_products_are_cut_into_more_tiles_than_many():
    assert tiles(*[GemmProblem(256, 256, 256)] * 4) < tiles(*[GemmProblem(256, 256, 256)] * 4000)


@pytest.mark.parametrize(("side", "aligned"), [(32, True), (33, False)])
def test_products_alike_take_what_was_tuned_for_a_batch(tmp_path, side, aligned):
    problem = GroupedProblem.of([GemmProblem(side, side, side)] * 4000)
    assert as_a_batch(problem, H100, store=None) is None
    tuned = next(each for each in groups.TILES if each.config["BM"] == 128).config
    lda = 0 if aligned else 4 * side + 1
    batch = GemmProblem(side, side, side, lda=lda, batch=4000)
    store = Store(tmp_path / "store.sqlite3", Freshness(compiler="13.5"))
    store.put(
        Entry(
            gpu=gpu_key(H100),
            problem=ProblemClass.of(batch),
            kernel=grouped.TILED,
            config=tuned.as_dict(),
            outcome="ok",
            source=source_digest(find_kernel(grouped.TILED)),
            compiler="13.5",
            time_us=50.0,
            final=True,
        )
    )
    assert as_a_batch(problem, H100, store=store) == tuned


def test_products_that_are_not_alike_are_no_batch():
    products = [GemmProblem(8, 8, 8), GemmProblem(8, 8, 4)]
    assert as_a_batch(GroupedProblem.of(products), H100, store=None) is None


@pytest.mark.parametrize(
    "products",
    [
        [],
        [GemmProblem(0, 5, 6)],
        [GemmProblem(3, 5, 0)],
        [GemmProblem(1, 1, 1), GemmProblem(4096, 4096, 64)],
        [GemmProblem(7, 9, 11, transa=True, transb=True)] * 3,
    ],
    ids=["none", "empty", "no k", "unlike", "tt"],
)
def test_whatever_the_sizes_the_choice_can_be_launched(products):
    problem = GroupedProblem.of(products)
    assert grouped.supports(problem, choose_tiles(problem, H100), H100) is None


def test_a_choice_is_made_once_for_the_same_sizes(monkeypatch):
    sizes = np.random.default_rng(0).integers(1, 50, (20, 3)).tolist()
    products = [GemmProblem(*each) for each in sizes]
    first = choose_tiles(GroupedProblem.of(products), H100)
    monkeypatch.setattr(groups, "_decide", None)
    assert choose_tiles(GroupedProblem.of(products), H100) == first


@pytest.mark.parametrize("layout", list(itertools.product((False, True), repeat=2)))
def test_every_tile_is_allowed_in_every_layout(layout):
    transa, transb = layout
    problem = GroupedProblem.of([GemmProblem(8, 8, 8, transa=transa, transb=transb)])
    refused = [each.label for each in groups.TILES if grouped.supports(problem, each.config, H100)]
    # 48 rows that lie along memory cannot be shared evenly by 64 threads.
    assert all("BM=48" in label for label in refused) if transa else not refused


def test_a_board_without_async_copies_is_refused():
    with pytest.raises(UnsupportedProblem, match=r"needs compute capability 8\.0; .* has 7\.5"):
        choose_tiles(GroupedProblem.of([GemmProblem(1, 1, 1)]), find_board("t4"))
