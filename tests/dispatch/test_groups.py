"""Tiles for many products in one launch follow from their sizes, and are remembered."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.dispatch.choose import Dispatcher, choose
from gemmkit.dispatch.equal_groups import as_batch
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.production.gemm_grouped import KERNEL, TILED
from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.freshness import Freshness, source_digest
from gemmkit.trials.store import Store

H100 = find_board("h100")
GROUPED = [each for each in CANDIDATES if each.kernel is KERNEL]


def tiles(shapes):
    choice = choose(GemmProblem.of_groups(shapes), H100, store=None)
    assert choice.kernel is KERNEL
    return choice.config["BM"] * choice.config["BN"]


def test_small_products_have_small_tiles():
    areas = [
        tiles([(side, side, 64 + 4 * (number % 3)) for number in range(500)])
        for side in (8, 64, 256, 1024)
    ]
    assert areas == sorted(areas)
    assert areas[0] <= 32 * 32
    assert areas[-1] >= 64 * 64


def test_few_products_are_cut_into_more_tiles_than_many():
    assert tiles("256x256x256*4") < tiles("256x256x256*4000")


@pytest.mark.parametrize("text", ["256x256x256*1000", "64x1024x2048,700x1024x2048,5x1024x2048"])
@pytest.mark.parametrize("key", ["h100", "a100", "rtx3090"])
def test_no_estimate_is_faster_than_the_board(key, text):
    board, problem = find_board(key), GemmProblem.of_groups(text)
    choice = choose(problem, board, store=None)
    assert problem.flops / choice.microseconds / 1e6 < board.peak_tflops


def entry(problem, kernel, config):
    return Entry(
        gpu=gpu_key(H100),
        problem=ProblemClass.of(problem),
        kernel=kernel.name,
        config=config.as_dict(),
        outcome="ok",
        source=source_digest(kernel),
        compiler="13.5",
        time_us=50.0,
        final=True,
    )


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store.sqlite3", Freshness(compiler="13.5"))


TUNED = next(each.config for each in GROUPED if each.config["BM"] == 128)


@pytest.mark.parametrize(("side", "aligned"), [(32, True), (33, False)])
def test_products_alike_take_what_was_tuned_for_a_batch(store, side, aligned):
    problem = GemmProblem.of_groups([(side, side, side)] * 4000)
    assert choose(problem, H100, store=store).config != TUNED
    lda = 0 if aligned else 4 * side + 1
    store.put(entry(GemmProblem(side, side, side, lda=lda, batch=4000), TILED, TUNED))
    found = choose(problem, H100, store=store)
    assert (found.kernel, found.config, found.source) == (KERNEL, TUNED, "store")
    # The other alignment was not tuned.
    other = GemmProblem.of_groups([(side, side, side)] * 4000, alignment=4 if aligned else 16)
    assert (choose(other, H100, store=store).config == TUNED) != aligned


def test_what_was_tuned_for_groups_goes_first_in_any_order(store):
    store.put(entry(GemmProblem.of_groups("64x48x32,8x8x8*2"), KERNEL, TUNED))
    for text in ("64x48x32,8x8x8*2", "8x8x8,64x48x32,8x8x8"):
        found = choose(GemmProblem.of_groups(text), H100, store=store)
        assert (found.kernel, found.config, found.source) == (KERNEL, TUNED, "store")
    for text in ("64x48x32,8x8x8*3", "48x64x32,8x8x8*2", "64x48x32:40:48:48,8x8x8*2"):
        problem = GemmProblem.of_groups(text)
        same = "40" in text
        assert (choose(problem, H100, store=store).config == TUNED) == same


def test_products_that_are_not_alike_are_no_batch():
    assert as_batch(GemmProblem.of_groups([(8, 8, 8), (8, 8, 4)])) is None
    assert as_batch(GemmProblem.of_groups([])) is None
    assert as_batch(GemmProblem.of_groups("8x8x8*3", transb=True)) == GemmProblem(
        8, 8, 8, batch=3, transb=True
    )


@pytest.mark.parametrize(
    ("groups", "letters"),
    [
        ([], "nn"),
        ([(0, 5, 6)], "nn"),
        ([(3, 5, 0)], "nn"),
        ("1x1x1,4096x4096x64", "nn"),
        ("7x9x11*3", "tt"),
    ],
    ids=["none", "empty", "no k", "unlike", "tt"],
)
def test_whatever_the_sizes_the_choice_can_be_launched(groups, letters):
    problem = GemmProblem.of_groups(groups).laid_out(letters)
    assert KERNEL.supports(problem, choose(problem, H100, store=None).config, H100) is None


def test_a_choice_is_made_once_for_the_same_sizes(monkeypatch):
    sizes = np.random.default_rng(0).integers(1, 50, (20, 3)).tolist()
    dispatcher = Dispatcher(H100, None)
    first = dispatcher.choose(GemmProblem.of_groups(sizes))
    monkeypatch.setattr(dispatcher, "_decide", None)
    assert dispatcher.choose(GemmProblem.of_groups(sizes)) is first


@pytest.mark.parametrize("layout", list(itertools.product((False, True), repeat=2)))
def test_every_tile_is_allowed_in_every_layout(layout):
    transa, transb = layout
    problem = GemmProblem.of_groups("8x8x8", transa=transa, transb=transb)
    refused = [each.label for each in GROUPED if KERNEL.supports(problem, each.config, H100)]
    # 48 rows that lie along memory cannot be shared evenly by 64 threads.
    assert all("BM=48" in label for label in refused) if transa else not refused


@pytest.mark.parametrize(
    ("board", "rest", "words"),
    [
        ("h100", {"transc": True}, "'gemm_grouped' takes NN, NT, TN, TT, not "),
        (
            "h100",
            {"transc": True, "dtype": "float16"},
            "'grouped_typed' takes NN, NT, TN, TT, not ",
        ),
    ],
)
def test_what_no_kernel_takes_is_refused(board, rest, words):
    with pytest.raises(UnsupportedProblem, match=words):
        choose(GemmProblem.of_groups("1x1x1", **rest), find_board(board), store=None)


# --- other types --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("text", ["300x512x640,5x512x640*7,0x512x640", "33x33x33*500", "64x64x0"])
@pytest.mark.parametrize("key", ["h100", "rtx3090"])
def test_groups_of_other_types_go_to_the_tensor_cores(dtype, text, key):
    board, problem = find_board(key), GemmProblem.of_groups(text, dtype=dtype)
    choice = choose(problem, board, store=None)
    by_tma = key == "h100" and dtype != "float64" and problem.is_aligned(16)
    # Where there is nothing to multiply, any is as good.
    assert choice.kernel.name == ("grouped_wgmma" if by_tma else "grouped_mma") or not problem.flops
    assert choice.kernel.supports(problem, choice.config, board) is None


@pytest.mark.parametrize(
    ("key", "types"),
    [
        ("t4", {}),
        ("t4", {"dtype": "bfloat16"}),
        ("t4", {"dtype": "float64"}),
        ("h100", {"out_dtype": "float16"}),
    ],
)
def test_boards_and_types_without_such_products_have_groups_too(key, types):
    problem = GemmProblem.of_groups("300x512x640,5x7x9", **types)
    assert choose(problem, find_board(key), store=None).kernel.name == "grouped_typed"


def test_products_alike_of_other_types_take_what_was_tuned_for_a_batch(store):
    config = TileConfig(BM=128, BN=128, BK=16, WM=64, WN=32)
    problem = GemmProblem.of_groups([(32, 32, 32)] * 4000, dtype="float16")
    assert choose(problem, H100, store=store).config != config
    batch = GemmProblem(32, 32, 32, batch=4000, dtype="float16")
    store.put(entry(batch, find_kernel("typed_mma"), config))
    found = choose(problem, H100, store=store)
    assert (found.kernel.name, found.config) == ("grouped_mma", config)
    # Nothing is to be taken of a kernel that has none for groups, nor where blocks share a k.
    mma, wgmma = find_kernel("gemm_mma"), find_kernel("gemm_wgmma")
    sharing = wgmma.configure({"cluster_m": 1, "cluster_k": 2, "pingpong": 1})
    for number, (kernel, tiles) in enumerate([(mma, mma.default), (wgmma, sharing)]):
        own = entry(batch, kernel, tiles)
        store.put(msgspec.structs.replace(own, time_us=5.0 - number))
        assert choose(problem, H100, store=store).source == "heuristic"
    store.put(msgspec.structs.replace(entry(batch, wgmma, wgmma.default), time_us=1.0))
    found = choose(problem, H100, store=store)
    assert (found.kernel.name, found.config) == ("grouped_wgmma", wgmma.default)


@pytest.mark.parametrize(
    ("text", "kernel", "measured_us"),
    [
        ("64x64x64*1000", "grouped_mma", 13.9),
        ("128x128x128*1000", "grouped_wgmma", 38.8),
        ("256x256x256*250", "grouped_wgmma", 41.4),
        ("64x1408x2048*64", "grouped_wgmma", 142.0),
    ],
)
def test_a_block_that_goes_to_other_products_pays_for_each(text, kernel, measured_us):
    """Times of the fastest of both kernels on an H100."""
    choice = choose(GemmProblem.of_groups(text, dtype="bfloat16"), H100, store=None)
    assert choice.kernel.name == kernel
    assert 0.88 < choice.microseconds / measured_us < 1.1
