"""`benchmarks/dispatch_regret.py` measures, goes on and reports; `dispatch_fit.py` fits."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gemmkit.analysis.closed_form.costs import BoardCosts
from gemmkit.bench.run import problem_record
from gemmkit.dispatch.candidates import candidates_for
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.dispatch.costed import board_costs
from gemmkit.gpu import BOARDS, find_board
from gemmkit.jit.binary import Binary, Resources
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.trials.entry import ProblemClass
from gemmkit.trials.exchange import decode_table
from gemmkit.trials.freshness import source_digest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
H100 = find_board("h100")
SHAPES = [GemmProblem(40, 36, 64), GemmProblem(33, 7, 50), GemmProblem(3, 100, 60)]


@pytest.fixture
def regret(benchmark_script, monkeypatch):
    """The script, with compilers left out."""
    module = benchmark_script("dispatch_regret")
    monkeypatch.setattr(module, "compile_many", stubs)
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)
    return module


@pytest.fixture
def shapes(benchmark_script):
    """The problems that the script times."""
    return benchmark_script("dispatch_shapes")


def stubs(plans, arch, cache_dir=None):
    resources = Resources(registers=90, spill_bytes=0, shared_bytes=0, local_bytes=0)
    return [
        Binary(
            entry=plan.entry,
            arch=arch,
            ptx="",
            cubin=b"",
            resources=resources,
            compiler="13.5",
            key=plan.entry,
        )
        for plan in plans
    ]


@pytest.fixture
def device(fakes):
    """Each plan takes a time of its own."""

    class Device(fakes["FakeTimedDevice"]):
        def work(self, binary, plan, arguments):
            seed = zlib.crc32(f"{plan.entry}{plan.grid}".encode())
            time = 10.0 + seed % 1000 / 100
            return fakes["FakeWork"](self, plan.entry, time, arguments)

    return Device()


def run(regret, device, path, shapes=SHAPES, **options):
    problems = [("random", each) for each in shapes]
    return regret.measure_all(problems, device, path, seconds=1e9, **options)


def test_shapes_are_the_same_each_time_and_within_bounds(shapes):
    found = shapes.random_shapes()
    assert found == shapes.random_shapes()
    assert found != shapes.random_shapes(seed=1)
    assert len(found) == 200
    for problem in found:
        assert problem.m * problem.n * problem.k <= shapes.MOST_MULTIPLY_ADDS
    skinny = sum(min(each.m, each.n) <= 16 for each in found)
    aligned = sum(each.n % 4 == each.k % 4 == 0 for each in found)
    assert 15 <= skinny <= 60
    assert 80 <= aligned <= 130


def test_thin_and_wide_problems_cover_what_they_say(shapes):
    thin = shapes.thin_shapes(90)
    assert all(min(each.m, each.n, each.k) <= shapes.THIN for each in thin)
    assert {min(range(3), key=(each.m, each.n, each.k).__getitem__) for each in thin} == {0, 1, 2}
    wide = shapes.wide_shapes(120)
    assert {each.layout for each in wide} == {"nn", "nt", "tn", "tt"}
    assert {each.dtype for each in wide} == {"float32", *shapes.TYPES}
    assert 10 < sum(each.batch > 1 for each in wide) < 50
    assert 40 < sum(each.is_aligned(16) for each in wide) < 80
    short = shapes.short_shapes(40)
    assert all(each.k <= 32 for each in short)
    assert {each.layout for each in short} == {"nn", "nt", "tn", "tt"}
    turns = shapes.asked_problems(["thin", "wide"], 3, 0)
    assert [kind for kind, _ in turns] == ["thin", "wide"] * 3


def test_suites_are_laid_out_in_each_layout(regret):
    arguments = argparse.Namespace(
        suites=["skinny"],
        shapes_file=None,
        layouts=["NT", "TN"],
        dtype=["bf16"],
        out_dtype="fp32",
        precision=None,
        scales=None,
    )
    given = regret.given_problems(arguments)
    assert {kind for kind, _ in given} == {"given"}
    assert [each.layout for _, each in given] == ["nt"] * 10 + ["tn"] * 10
    assert {(each.dtype, each.out_dtype) for _, each in given} == {("bfloat16", "float32")}


def test_winners_are_entered_into_a_table(regret, tmp_path):
    measured = regret.RESULTS / "h100-dispatch-half.json"
    head, rows = regret.read(measured)
    table = tmp_path / "h100.json"

    def of_source(digest: str) -> Path:
        """The file as if it were of this text of the kernel."""
        lines = measured.read_bytes().splitlines()
        sources = head.sources | {"gemm_wgmma": digest}
        lines[0] = msgspec.json.encode(msgspec.structs.replace(head, sources=sources))
        found = tmp_path / f"{digest}.json"
        found.write_bytes(b"\n".join(lines))
        return found

    own = of_source(source_digest(find_kernel("gemm_wgmma")))
    # The same again replaces itself.
    for _ in range(2):
        assert regret.enter(own, table) == len(rows)
        entries = decode_table(table.read_bytes(), table.name)
        assert len(entries) == len(rows)
    measured_rows = {ProblemClass.of(row.problem): row for row in rows}
    for each in entries:
        row = measured_rows[each.problem]
        level = [
            label for label, turn in row.turns.items() if turn <= 1.015 * min(row.turns.values())
        ]
        assert each.time_us in [row.turns[label] for label in level]
        alone = row.looks[next(label for label in level if row.turns[label] == each.time_us)]
        assert alone == min(row.looks[label] for label in level)
    with pytest.raises(SystemExit, match="another gemm_wgmma"):
        regret.enter(of_source("another"), table)


def test_candidates_without_measured_costs_are_timed_whatever_their_estimate(regret):
    dispatcher = Dispatcher(find_board("a100"), None)
    problem = GemmProblem(500, 600, 700)
    near, left_out = regret.entered(dispatcher, problem, most=5)
    named = {each.costed.candidate.instance for each in near}
    # Nothing was measured on this board, so that all instances are entered.
    assert named == {each.costed.candidate.instance for each in dispatcher.ranked(problem)}
    h100 = Dispatcher(find_board("h100"), None)
    known, left_out = regret.entered(h100, problem, most=5)
    assert len(known) < len(near)
    assert left_out


def test_cublas_is_timed_beside_the_choice(regret, device, fakes, tmp_path):
    problems = [("thin", each) for each in SHAPES]
    baseline = fakes["FakeBaseline"](device, one=6.0, two=5.0)
    path = tmp_path / "results.json"
    rows = regret.measure_all(problems, device, path, seconds=1e9, baseline=baseline)
    assert [(row.kind, row.problem) for row in rows] == problems
    assert {row.cublas for row in rows} == {5.0}
    assert {row.peer for row in rows} == {"two"}
    for row in rows:
        assert row.speedup == pytest.approx(5.0 / row.turns[row.chosen])
    assert "× cuBLAS" in regret.report(rows)


def test_rows_hold_what_problems_they_are_of(regret):
    problem = GemmProblem(40, 36, 64, batch=3, transb=True, dtype="bfloat16")
    row = regret.Row(
        m=40,
        n=36,
        k=64,
        batch=3,
        layout=problem.layout,
        dtype=problem.dtype,
        best="",
        chosen="",
        ratio=1.0,
        looks={},
        turns={},
        wrong={},
        left_out=0,
    )
    assert row.problem == problem


def test_the_choice_is_timed_whatever_its_place(regret, tmp_path, monkeypatch):
    dispatcher = regret.Dispatcher(BOARDS["h100"], None)
    problem = GemmProblem(700, 900, 1100)
    first, *_, last = list(dispatcher.ranked(problem))
    costed = last.costed
    choice = dataclasses.replace(
        dispatcher.choose(problem), kernel=costed.kernel, config=costed.config
    )
    monkeypatch.setattr(dispatcher, "choose", lambda _: choice)
    near, left_out = regret.entered(dispatcher, problem, 5)
    assert near[0].costed.candidate == first.costed.candidate
    assert near[-1].costed.candidate == costed.candidate
    assert left_out > 0


def test_the_best_and_the_choice_meet_in_turn(regret, device, tmp_path, capsys):
    path = tmp_path / "results.json"
    rows = run(regret, device, path)
    assert [(row.m, row.n, row.k) for row in rows] == [(x.m, x.n, x.k) for x in SHAPES]
    for row in rows:
        assert row.wrong == {}
        assert row.turns[row.best] == min(row.turns.values())
        assert row.ratio == pytest.approx(row.turns[row.chosen] / row.turns[row.best])
        assert row.ratio >= 1
        assert min(row.times.values()) == pytest.approx(row.turns[row.best])
        assert next(iter(row.looks)) == row.chosen, "the first by estimate"
    head, read = regret.read(path)
    assert read == rows
    assert head.environment == {"device": "fake", "compiler": "13.5"}
    assert set(head.sources) == {each.name for each in candidates_for(BOARDS["rtx3090"])}
    assert set(head.registers.values()) == {90}
    assert "3 shapes: median" in regret.report(rows)
    assert capsys.readouterr().out.count("40x36x64") == 1


def test_a_stopped_run_goes_on(regret, device, tmp_path, capsys):
    path = tmp_path / "results.json"
    run(regret, device, path, SHAPES[:1])
    launches = device.launches
    rows = run(regret, device, path)
    assert len(rows) == 3
    assert device.launches > launches
    launches = device.launches
    assert run(regret, device, path) == rows
    assert device.launches == launches
    problems = [("random", each) for each in SHAPES]
    regret.measure_all(problems, device, tmp_path / "other.json", seconds=-1.0)
    assert "stopped after 0 shapes" in capsys.readouterr().out


def test_results_of_other_code_are_not_mixed_in(regret, device, tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    run(regret, device, path, SHAPES[:1])
    monkeypatch.setattr(regret, "source_digest", lambda _: "other")
    with pytest.raises(SystemExit, match="--anew"):
        run(regret, device, path)
    assert len(run(regret, device, path, SHAPES[1:], anew=True)) == 2


def test_wrong_candidates_are_out(regret, fakes, tmp_path):
    class Device(fakes["FakeTimedDevice"]):
        def launch(self, binary, plan, arguments):
            self.spoil = (
                (lambda c: c.fill(np.nan)) if "gemm_tiled" in plan.entry else lambda c: None
            )
            return super().launch(binary, plan, arguments)

    (row,) = run(regret, Device(), tmp_path / "results.json", SHAPES[:1])
    assert row.wrong
    assert all(label.startswith("gemm_tiled") for label in row.wrong)
    assert not any(label.startswith("gemm_tiled") for label in row.times)


def test_operands_split_in_shared_memory_cost_what_was_measured(regret):
    """For few rows and for squares, so that each gets the kernel that is the fastest there."""
    fit = importlib.import_module("dispatch_fit")
    _, rows = regret.read(regret.RESULTS / "h100-dispatch-fp32-fused.json")
    board, shapes = board_costs(9, 0), fit.samples_of(rows, H100)
    own = [each for some in shapes for each in some if each.candidate.name == "gemm_fp16x3_fused"]
    assert len(own) == len(rows) * len({each.candidate for each in own})
    for low, high in ((0, 300), (300, 10_000)):
        some = [each for each in own if low < each.problem.m <= high]
        errors = fit._errors(board, some) / [each.weight for each in some]
        assert np.median(np.abs(errors)) < 0.05
    found = fit.regrets(board, shapes)
    assert np.median(found) < 1.01
    assert np.percentile(found, 90) < 1.13


def test_costs_of_one_kernel_are_fitted_alone(regret):
    fit = importlib.import_module("dispatch_fit")
    _, rows = regret.read(regret.RESULTS / "h100-dispatch-fp32-fused.json")
    before, name = board_costs(9, 0), "gemm_fp16x3_fused"
    (samples,) = fit.samples_of(rows[:1], H100)
    twice = [dataclasses.replace(each, microseconds=2 * each.microseconds) for each in samples]
    fitted = fit.fit(twice, before, {}, name)
    assert fitted.launch_us == before.launch_us, "what all kernels share is not one's"
    found = fitted.corrections
    changed = {each for each in found if found[each] != before.corrections[each]}
    assert changed == {each for each in found if each.startswith(f"{name}:")}
    told = fit._told(before, "now", changed, name).split(" | ")
    others = [each for each in before.fitted.split(" | ") if not each.startswith(f"{name}:")]
    assert told == [*others, f"{name}: now"]


def test_the_fit_finds_costs_that_explain_the_times(regret, shapes, tmp_path, monkeypatch, capsys):
    fit = importlib.import_module("dispatch_fit")
    board = BOARDS["rtx3090"]
    problems = shapes.random_shapes(8)
    dispatcher = regret.Dispatcher(board, None)
    real = BoardCosts(launch_us=4.0, dram_efficiency=0.7)
    rows = []
    for problem in problems:
        times = {}
        for each in regret.entered(dispatcher, problem)[0][:12]:
            candidate = each.costed.candidate
            other = 1.5 if candidate.name == "gemm_split_k" else 1.0
            times[candidate.label] = other * (
                fit.CostedCandidate(candidate, board, real).estimate(problem).microseconds
            )
        best = min(times, key=times.__getitem__)
        rows.append(
            regret.Row(
                m=problem.m,
                n=problem.n,
                k=problem.k,
                best=best,
                chosen=best,
                ratio=1.0,
                looks=times,
                turns={},
                wrong={},
                left_out=0,
            )
        )
    monkeypatch.setattr(fit, "ROUNDS", 2)
    samples = fit.samples_of(rows, board)
    flat = [each for some in samples for each in some]
    found = fit.fit(flat, BoardCosts(), {flat[0].candidate.instance: 77})
    assert found.corrections[flat[0].candidate.instance].registers == 77
    before = np.abs(fit._errors(BoardCosts(), flat)).mean()
    after = np.abs(fit._errors(found, flat)).mean()
    assert after < before / 3
    assert np.mean(fit.regrets(found, samples)) < np.mean(fit.regrets(BoardCosts(), samples))
    slow = [each for name, each in found.corrections.items() if name.startswith("gemm_split_k")]
    assert slow
    assert np.mean([each.tile for each in slow]) > 1.1


@pytest.mark.parametrize(
    ("name", "candidates"), [("typed", 6), ("grouped", 1)], ids=["typed", "grouped"]
)
def test_what_a_suite_measured_is_read_for_the_fit(regret, name, candidates):
    fit = importlib.import_module("dispatch_fit")
    path = BENCHMARKS / "results" / f"h100-{name}.json"
    shapes = fit.suite_samples(path, BOARDS["h100"])
    records = [Record.from_json(line) for line in path.read_bytes().splitlines()]
    assert len(shapes) == len(records)
    assert max(map(len, shapes)) >= candidates
    for samples, record in zip(shapes, records, strict=True):
        assert {problem_record(each.problem) for each in samples} == {record.problem}
        chosen = next(each for each in samples if each.candidate.name == record.kernel)
        assert chosen.microseconds >= min(each.microseconds for each in samples) > 0
        assert max(each.weight for each in samples) == 1.0
