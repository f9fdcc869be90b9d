"""The actions of `gemmkit tune`: measure, rank, explain, export and import."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gemmkit.cli.board import board_at_hand
from gemmkit.cli.output import Printer, RecordWriter, StepBar
from gemmkit.errors import UsageError
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.store import Store, by_time
from gemmkit.tune.progress import TuneProgress

if TYPE_CHECKING:
    from gemmkit.devices.device import Device
    from gemmkit.gpu import GpuSpec
    from gemmkit.problem import GemmProblem
    from gemmkit.tune.result import Tuned
    from gemmkit.tune.space import Space


@dataclass(frozen=True, slots=True)
class Search:
    """Search parameters: seconds per shape, strategy, seed, and kernels (None: all)."""

    budget: float
    strategy: str
    seed: int
    kernels: tuple[str, ...] | None


class TuneWatch(TuneProgress):
    """Shows the progress of a search and collects `results`, also if it is interrupted."""

    def __init__(self, bar: StepBar, writer: RecordWriter, budget: float) -> None:
        self.results: list[Tuned] = []
        self._bar, self._writer, self._budget = bar, writer, budget
        self._begun, self._shape = 0.0, ""

    def opened(self, device: Device) -> None:
        """Report the board."""
        self._bar.say(f"Tuning on the GPU, {device.spec.name}.")

    def began(self, space: Space, known: int) -> None:
        """Report the number of configurations."""
        self._begun, self._shape = time.monotonic(), space.problem.shape
        line = f"{self._shape}: {len(space.candidates):,} of {space.total:,} configurations to try"
        self._bar.say(line + (f", {known:,} already in the store" if known else ""))

    def tried(self, entry: Entry, count: int, leader: Entry | None) -> None:  # noqa: ARG002
        """Show the leader; without a terminal, only as often as it changes."""
        if leader is not None and leader.tflops is not None:
            seconds = min(time.monotonic() - self._begun, self._budget)
            what = f"{self._shape}: {leader.tflops:.2f} TFLOP/s, {leader.label}"
            self._bar.show(round(seconds), round(self._budget), what)

    def finished(self, result: Tuned) -> None:
        """Store and write the result."""
        self.results.append(result)
        self._writer.write(result)


def measure(
    problems: Sequence[GemmProblem], store: Store, search: Search, json_path: str | None
) -> None:
    """Tune, and print the table of results, also after Ctrl-C."""
    from gemmkit.report.tuning import tuned_table
    from gemmkit.tune.run import tune

    with RecordWriter(json_path) as writer:
        bar = StepBar()
        watch = TuneWatch(bar, writer, search.budget)
        try:
            with bar:
                tune(
                    problems,
                    budget=search.budget,
                    strategy=search.strategy,
                    seed=search.seed,
                    kernels=search.kernels,
                    store=store,
                    progress=watch,
                )
        finally:
            if watch.results:
                out = Printer(err=writer.to_stdout)
                out.print(tuned_table(watch.results), end="")


def rank(problems: Sequence[GemmProblem], gpu: str | None, search: Search) -> None:
    """Print configurations by predicted time."""
    from gemmkit.report.tuning import predicted_table
    from gemmkit.tune.predicted import rank_by_prediction

    if not problems:
        raise UsageError("--device model needs a --shape whose configurations it ranks")
    board = board_at_hand(gpu)
    for problem in problems:
        begun = time.monotonic()
        with StepBar() as bar:
            bar.say(f"Predicting for {board.name}; nothing is measured.")

            def found_leader(
                count: int,  # noqa: ARG001 (one line per new leader, not per prediction)
                label: str,
                _: float,
                begun: float = begun,
                bar: StepBar = bar,
            ) -> None:
                seconds = min(time.monotonic() - begun, search.budget)
                bar.show(round(seconds), round(search.budget), label)

            found = rank_by_prediction(
                problem,
                board,
                budget=search.budget,
                strategy=search.strategy,
                seed=search.seed,
                kernels=search.kernels,
                told=found_leader,
            )
        table = predicted_table(found, problem.shape, board.name)
        Printer().print(table, end="")


# --- explaining -------------------------------------------------------------------------------


def explain(
    problems: Sequence[GemmProblem], store: Store, gpu: str | None, plot: Path | None
) -> None:
    """Print what was tried for each problem, and why the winner wins."""
    if not problems:
        raise UsageError("--explain needs a --shape that was tuned")
    if plot is not None and len(problems) > 1:
        raise UsageError("--plot draws one shape: use a single --shape")
    board = board_at_hand(gpu)
    for problem in problems:
        _explain(problem, store, board, plot)


def _explain(problem: GemmProblem, store: Store, board: GpuSpec, plot: Path | None) -> None:
    from gemmkit.report import tuning as report
    from gemmkit.report.figures import save

    all_entries = store.entries(
        gpu_key(board), ProblemClass.of(problem), epilogue=str(problem.epilogue)
    )
    entries = [each for each in all_entries if store.staleness(each) is None]
    stale = len(all_entries) - len(entries)
    leaders = by_time(entries)
    if not leaders:
        raise UsageError(
            f"there are no results for {problem.shape} on {board.name} in {store.path}"
            + (f", only {stale} stale trials" if stale else "")
            + ": tune it first, or name another board with --gpu"
        )
    out = Printer()
    tables = [report.tried_table(problem.shape, entries, stale)]
    tables += [each for each in (report.failures_table(entries),) if each is not None]
    tables.append(report.leaders_table(entries))
    rows = report.predicted_rows(entries, board.name)
    tables += [report.estimates_table(rows)] if rows else []
    for table in tables:
        out.print(table)
    if plot is not None and rows:
        save(plot, report.speeds_figure(rows))
        out.print(f"wrote {plot}\n")
    _why(problem, board, leaders)


def _why(problem: GemmProblem, board: GpuSpec, leaders: Sequence[Entry]) -> None:
    """The winner vs. the runner-up and vs. its kernel's default configuration."""
    from gemmkit.analysis.explain import Facts, explain_facts, gather
    from gemmkit.kernels.catalog import find_kernel
    from gemmkit.report.tuning import reasons_text, residency_table

    best = leaders[0]
    kernel = find_kernel(best.kernel)
    wanted = {"winner": (kernel, best.tile_config)}
    if len(leaders) > 1:
        wanted["runner-up"] = find_kernel(leaders[1].kernel), leaders[1].tile_config
    if kernel.default not in [config for _, config in wanted.values()]:
        wanted["by default"] = kernel, kernel.default
    facts: dict[str, Facts] = {}
    with StepBar() as bar:
        for done, (role, (each, config)) in enumerate(wanted.items()):
            bar.show(done, len(wanted), f"analyzing: {role}", running=True)
            if each.supports(problem, config, board) is None:
                facts[role] = gather(each, problem, board, config=config)
    out = Printer()
    out.print(residency_table(facts))
    measured = {each.label: each.time_us for each in leaders}
    for role, other in list(facts.items())[1:]:
        compared = explain_facts(facts["winner"], other).comparison
        time_us = measured.get(_label(other))
        out.print(reasons_text(role, best.time_us, time_us, compared), end="")


def _label(facts: object) -> str:
    from gemmkit.analysis.explain import Facts

    assert isinstance(facts, Facts)
    return f"{facts.kernel.name}:{facts.config}"


# --- files and the store ----------------------------------------------------------------------


def read_file(store: Store, path: Path, form: str) -> None:
    """Import a file, and report the result."""
    from gemmkit.trials.exchange import import_entries, read_table
    from gemmkit.trials.kernel_tuner import read_cache

    if form == "t4":
        raise UsageError("T4 results do not name kernels: import a table or a Kernel Tuner cache")
    entries = read_table(path) if form == "table" else read_cache(path)
    done = import_entries(store, entries)
    line = f"imported {done.added} of {done.added + done.kept} entries into {store.path}"
    if done.kept:
        line += f"; {done.kept} entries measured here were kept"
    if done.stale:
        line += (
            f"; {done.stale} are from another source or compiler: they are tried first when their "
            "shape is tuned, and not used until then"
        )
    Printer(err=True).print(line)


def write_file(
    store: Store, path: Path, form: str, problems: Sequence[GemmProblem], *, trials: bool
) -> None:
    """Export the best per shape, or every trial, and report the files."""
    from gemmkit.trials.exchange import write_table
    from gemmkit.trials.kernel_tuner import write_caches, write_results

    kinds = {ProblemClass.of(problem) for problem in problems}
    found: list[Entry] = []
    for gpu in store.gpus():
        some = store.entries(gpu) if trials or form != "table" else store.winners(gpu)
        found += [each for each in some if store.staleness(each) is None]
    found = [each for each in found if not kinds or each.problem in kinds]
    if not found:
        raise UsageError(f"there is nothing to export in {store.path}: tune a shape first")
    if form == "table":
        written = {path: write_table(path, found)}
    elif form == "t4":
        written = {path: write_results(path, found)}
    else:
        written = write_caches(path, found)
    for name, count in written.items():
        Printer(err=True).print(f"wrote {name}: {count} entries")


def show(store: Store) -> None:
    """Print the winners in the store."""
    from gemmkit.report.tuning import store_table

    reasons = Counter(
        reason for each in store.entries() if (reason := store.staleness(each)) is not None
    )
    winners = [entry for gpu in store.gpus() for entry in store.winners(gpu)]
    if not winners and not reasons:
        Printer().print(f"Nothing is tuned yet in {store.path}: use `gemmkit tune --shape MxNxK`.")
        return
    Printer().print(store_table(winners, reasons, str(store.path)), end="")
