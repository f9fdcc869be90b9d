"""Batches through dispatch: what is chosen, from which candidates, and that those are right."""

from __future__ import annotations

import pytest

from gemmkit.bench.check import check
from gemmkit.dispatch.candidates import CANDIDATES
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.dispatch.which import which
from gemmkit.gpu import BOARDS, find_board
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.freshness import source_digest
from gemmkit.trials.store import Store

H100 = find_board("h100")
TAKING = {"gemm_tiled", "gemm_split_k", "gemm_stream_k", "gemm_skinny", "typed"}


# Few threads and little shared memory: an SM has many of them at once.
SMALL = [
    each
    for each in CANDIDATES
    if each.name == "gemm_tiled" and each.config["stages"] == 2 and each.config.interleave == 1
]


@pytest.mark.parametrize("candidate", SMALL, ids=lambda each: each.label)
@pytest.mark.sample(4)
def test_a_candidate_for_batches_is_right_and_breaks_no_rule(candidate):
    config = candidate.config
    problem = GemmProblem(
        config["BM"] + 3, config["BN"] - 4, 2 * config["BK"] + 4, batch=3, stride_b=BROADCAST
    )
    (record,) = check(candidate.kernel, [problem], config=config.as_dict(), gpu=H100.name)
    assert record.verdict == "ok", record.detail


@pytest.mark.parametrize(
    "shape",
    ["8x8x8x100000", "32x32x32x4096", "64x64x64x2048", "512x512x512x64", "1x512x64x128", "9x9x9x2"],
)
def test_a_batch_gets_a_kernel_that_takes_it(shape):
    decision = which(shape, H100, store=None)
    assert decision.shape == shape
    assert decision.kernel in TAKING
    assert {each.kernel for each in decision.alternatives} <= TAKING
    batch, (x, y, z) = int(shape.rpartition("x")[2]), decision.grid
    assert x * y * z >= batch or decision.kernel == "gemm_stream_k"
    assert decision.tflops == pytest.approx(
        GemmProblem.from_shape(shape).flops / decision.time_us / 1e6
    )


def test_small_products_get_a_block_each():
    decision = which("32x32x32x4096", H100, store=None)
    assert decision.grid == (1, 1, 4096)
    assert decision.block[0] <= 128


def test_boards_without_cp_async_take_batches_by_the_kernel_for_all_types():
    choice = Dispatcher(BOARDS["t4"], None).choose(GemmProblem(64, 64, 64, batch=9))
    assert choice.kernel.name == "typed"
    assert "estimated at" in choice.reason


def test_what_is_tuned_for_a_batch_serves_that_batch_and_no_single_product(tmp_path):
    kernel = SMALL[0].kernel
    problem = GemmProblem(64, 64, 64, batch=2048)
    entry = Entry(
        gpu=gpu_key(H100),
        problem=ProblemClass.of(problem),
        kernel=kernel.name,
        config=SMALL[1].config.as_dict(),
        outcome="ok",
        source=source_digest(kernel),
        compiler="1",
        time_us=30.0,
    )
    store = Store(tmp_path / "store.sqlite3")
    store.freshness.compiler = None
    store.put(entry)
    asked = Dispatcher(H100, store)
    choice = asked.choose(problem)
    assert (choice.source, choice.config) == ("store", SMALL[1].config)
    assert "64x64x64x2048: 30.0 µs" in choice.reason
    assert asked.choose(problem.single).source != "store"
