"""`benchmarks/closed_form.py` reads a store, tells how estimates order it, and fits to it."""

from __future__ import annotations

import sys

import msgspec
import pytest

from gemmkit.gpu import BOARDS
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.store import Store

H100 = BOARDS["h100"]
PROBLEMS = [GemmProblem(side, side, 1024) for side in (512, 1024, 2048)]


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("closed_form")


@pytest.fixture
def slow_launches(script):
    """The trials that a board would give whose launches take twice as long to begin."""
    board = msgspec.structs.replace(script.GENERAL, launch_us=2 * script.GENERAL.launch_us)
    return script.Model(board=board)


@pytest.fixture
def store(script, slow_launches, tmp_path):
    found = Store(tmp_path / "store.sqlite3")
    kernel = find_kernel("gemm_tiled")
    configurations = list(kernel.configurations(H100))[::20]
    for problem in PROBLEMS:
        trials = [script.Trial(kernel, each, problem, 0.0, 1.0) for each in configurations]
        times = slow_launches.estimates(trials, H100)
        found.put(
            *(
                Entry(
                    gpu=gpu_key(H100),
                    problem=ProblemClass.of(problem),
                    kernel=kernel.name,
                    config=config.as_dict(),
                    outcome="ok",
                    source=source,
                    compiler="13.5.37",
                    time_us=time * factor,
                    measured_at=when,
                )
                for config, time in zip(configurations, times.tolist(), strict=True)
                for source, factor, when in (("old", 3.0, 1.0), ("new", 1.0, 2.0))
            )
        )
    return found.path


def test_trials_of_the_newest_source_count(script, slow_launches, store):
    shapes = script.stored_trials(store, H100)
    assert [each[0].problem for each in shapes] == PROBLEMS
    for trials in shapes:
        order = script.order_of(trials, slow_launches, H100)
        assert [order.first, order.first_eight] == [1.0, 1.0]
        assert [order.correlation, order.near_correlation] == pytest.approx([1.0, 1.0])
        assert order.place == 0
        assert order.error == pytest.approx(0.0, abs=1e-9)


def test_orders_are_told_in_words(script, store, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["closed_form.py", str(store)])
    script.main()
    told = capsys.readouterr().out
    assert "512x512x1024" in told
    assert "the other 1 shapes: rank correlation 1.00" in told


def test_the_fit_finds_what_the_times_rest_on(script, store):
    shapes = script.stored_trials(store, H100)
    found = script.fit(shapes, [], H100)
    assert found.board.launch_us == pytest.approx(2 * script.GENERAL.launch_us, rel=0.15)
    assert found.figures.multiply_add == pytest.approx(script.FIGURES.multiply_add, rel=0.05)


def test_the_rungs_before_the_last_are_fitted_too(script):
    trials = script.page_trials(H100)
    assert {each.kernel.rung for each in trials} == set(range(1, 10))
    assert len({each.problem for each in trials}) > 5
