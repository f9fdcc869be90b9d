"""The tuner's results as tables: winners, what was tried, and why the winner wins."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gemmkit.analysis.accuracy import PredictedRow, accuracy
from gemmkit.report.figures import Fill
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table, wrapped
from gemmkit.report.predicted import scatter_figure
from gemmkit.trials.entry import Entry, Outcome
from gemmkit.trials.store import by_time
from gemmkit.tune.result import Tuned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gemmkit.analysis.explain import Facts
    from gemmkit.analysis.explain.explanation import Sentence
    from gemmkit.trials.freshness import Staleness
    from gemmkit.tune.predicted import Predicted

LEADERS = 10
REASONS = 6
# Groups of configurations, by estimated time.
FIFTHS = 5

_OUTCOMES: dict[Outcome, str] = {
    "ok": "timed",
    "wrong": "gave a wrong result",
    "uncompiled": "did not compile",
    "unlaunched": "could not be launched",
}


def tuned_table(results: Sequence[Tuned]) -> Table:
    """A line per problem: its best configuration, its speed, and the effort to find it."""
    rows = tuple(Row(tuple(map(Cell, _tuned_cells(each))), _tuned_note(each)) for each in results)
    columns = (
        Column("M×N×K", "left"),
        Column("best configuration", "left"),
        Column("µs"),
        Column("TFLOP/s"),
        Column("over the\nrunner-up"),
        Column("tried"),
        Column("known"),
        Column("s"),
    )
    notes = (
        *(space_note(each) for each in results if each.trials),
        f"All trials are in {results[0].store}, which `gemmkit which` and dispatch use.",
    )
    return Table(f"Tuned on {results[0].board}", columns, rows, notes)


def _tuned_cells(result: Tuned) -> tuple[str, ...]:
    best, second = result.best, result.runner_up
    found = (MISSING, MISSING, MISSING)
    if best is not None and best.time_us is not None and best.tflops is not None:
        found = (best.label, f"{best.time_us:,.2f}", f"{best.tflops:.2f}")
    lead = MISSING
    if best is not None and second is not None and best.time_us and second.time_us:
        lead = f"{100 * (second.time_us / best.time_us - 1):+.1f} %"
    shape = result.problem.shape
    if result.epilogue != "none":
        shape += f" {result.epilogue}"
    return (shape, *found, lead, str(result.trials), str(result.known), f"{result.seconds:.0f}")


def _tuned_note(result: Tuned) -> str:
    if result.best is None:
        return "Nothing was timed: use a longer --budget."
    if result.ended == "all tried":
        return "All configurations were tried."
    return "Interrupted: the same command continues from here." if result.ended != "budget" else ""


def tried_table(shape: str, entries: Sequence[Entry], stale: int) -> Table:
    """The outcomes of the configurations that were tried; `stale` ones do not count."""
    outcomes = Counter(each.outcome for each in entries)
    lines = [(word, outcomes[outcome]) for outcome, word in _OUTCOMES.items()]
    finals = sum(each.final for each in entries if each.outcome == "ok")
    lines.insert(1, ("  of these, in the finals", finals))
    lines.append(("stale: the kernel or the compiler has changed", stale))
    rows = tuple(Row((Cell(name), Cell(f"{count:,}"))) for name, count in lines if count)
    columns = (Column("configurations", "left"), Column("number"))
    return Table(f"What was tried for {shape}", columns, rows)


def space_note(result: Tuned) -> str:
    """How much of the space was left out, by reason, and how much the budget did not cover; then
    which kernels are out of the question, and an example of what else was refused."""
    parts = [f"{count:,} {reason}" for reason, count in result.left_out.items()]
    if result.untried:
        parts.append(f"{result.untried:,} not tried within the budget")
    told = [f"{result.problem.shape}, of {result.total:,}: " + "; ".join(parts) + "."]
    told += [f"No configuration of {name}: {why}." for name, why in result.excluded.items()]
    told += [f"For example {reason}: {each}." for reason, each in result.examples.items()]
    return " ".join(told)


def reasons_text(
    role: str, winner_us: float | None, other_us: float | None, reasons: Sequence[Sentence]
) -> str:
    """Why the winner beats another: the strongest sentences of `explain`."""
    head = f"The winner vs. the {role}" if role != "by default" else "The winner vs. its default"
    if winner_us and other_us:
        head += f": measured {winner_us:,.2f} µs vs. {other_us:,.2f} µs"
    strongest = reasons[:REASONS]
    lines = [wrapped(each.text, first="- ", indent="  ") for each in strongest]
    return "".join([f"{head}.\n", *lines]) + "\n"


def failures_table(entries: Sequence[Entry]) -> Table | None:
    """Configurations that failed, with the first line of the reason; None if none did."""
    failed = [each for each in entries if each.outcome != "ok"]
    rows = tuple(
        Row((Cell(each.label), Cell(_OUTCOMES[each.outcome])), each.reason.split("\n")[0])
        for each in failed[:LEADERS]
    )
    columns = (Column("configuration", "left"), Column("what happened", "left"))
    more = len(failed) - len(rows)
    notes = (f"And {more} more.",) if more else ()
    return Table("What failed", columns, rows, notes) if rows else None


def leaders_table(entries: Sequence[Entry]) -> Table:
    """The fastest configurations, with estimated and measured times."""
    leaders = by_time(entries)[:LEADERS]
    rows = tuple(Row(tuple(map(Cell, _leader_cells(each, leaders[0])))) for each in leaders)
    columns = (
        Column("configuration", "left"),
        Column("µs"),
        Column("p20 to p80\nµs"),
        Column("TFLOP/s"),
        Column("slower than\nthe best"),
        Column("estimated\nµs"),
        Column("timed", "left"),
    )
    return Table("The fastest", columns, rows)


def _leader_cells(entry: Entry, best: Entry) -> tuple[str, ...]:
    assert entry.time_us is not None
    assert best.time_us is not None
    spread = MISSING
    if entry.p20_us is not None and entry.p80_us is not None:
        spread = f"{entry.p20_us:.2f} to {entry.p80_us:.2f}"
    # Brief looks are compared with the leader's own look.
    ratio = entry.time_us / best.time_us
    if entry.look_us is None and best.brief_us is not None:
        ratio = entry.time_us / best.brief_us
    return (
        entry.label,
        f"{entry.time_us:,.2f}",
        spread,
        f"{entry.tflops:.2f}",
        f"{100 * (ratio - 1):.1f} %",
        f"{entry.predicted_us:,.1f}" if entry.predicted_us else MISSING,
        "in turn" if entry.final else "alone",
    )


def estimates_table(rows: Sequence[PredictedRow]) -> Table:
    """Estimated and measured times, by quintile of the estimate."""
    ordered = sorted(rows, key=lambda row: row.predicted_us)
    lines = []
    for number in range(FIFTHS):
        part = ordered[number * len(rows) // FIFTHS : (number + 1) * len(rows) // FIFTHS]
        if part:
            measured = [row.measured_us or 0.0 for row in part]
            lines.append(
                (
                    f"{part[0].predicted_us:,.1f} to {part[-1].predicted_us:,.1f}",
                    str(len(part)),
                    f"{min(measured):,.1f}",
                    f"{statistics.median(measured):,.1f}",
                )
            )
    seen = accuracy(rows)
    note = (
        f"The median error of the estimates is {100 * seen.median_error:.0f} %, their rank "
        f"correlation {seen.rank_correlation:.2f}; they order the search, measured times decide."
    )
    columns = (
        Column("estimated\nµs", "left"),
        Column("configu-\nrations"),
        Column("fastest\nµs"),
        Column("median\nµs"),
    )
    found = tuple(Row(tuple(map(Cell, line))) for line in lines)
    return Table("Estimated and measured times", columns, found, (note,))


def predicted_rows(entries: Sequence[Entry], board: str) -> list[PredictedRow]:
    """Estimated and measured times, for `report.predicted`'s tables and scatter plot."""
    rows = []
    for each in entries:
        if each.outcome != "ok" or not each.time_us or not each.predicted_us or not each.tflops:
            continue
        rows.append(
            PredictedRow(
                board=board,
                kernel=each.kernel,
                config=each.config,
                m=each.problem.m,
                n=each.problem.n,
                k=each.problem.k,
                predicted_us=each.predicted_us,
                predicted_tflops=each.problem.flops / each.predicted_us / 1e6,
                measured_us=each.time_us,
                measured_tflops=each.tflops,
                limiter="",
                registers=0,
                occupancy=0.0,
                fitted=False,
                source="closed form",
            )
        )
    return rows


def speeds_figure(rows: Sequence[PredictedRow]) -> Fill:
    """A function that draws estimated over measured TFLOP/s, colored by kernel."""

    def fill(figure: Figure) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        scatter_figure(rows)(figure)
        (axes,) = figure.axes
        # The speeds of one shape are close together: ticks at powers of ten do not suffice.
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_minor_formatter(NullFormatter())

    return fill


def residency_table(facts: Mapping[str, Facts]) -> Table:
    """How configurations fill the board, one per column: `facts` by column heading."""
    lines: list[tuple[str, list[str]]] = [
        ("configuration", [each.name for each in facts.values()]),
        ("blocks", [f"{each.plan.blocks:,}" for each in facts.values()]),
        ("threads per block", [str(each.plan.threads_per_block) for each in facts.values()]),
        ("registers per thread", [_registers(each) for each in facts.values()]),
        ("blocks per SM", [_held(each) for each in facts.values()]),
        ("occupancy", [_occupancy(each) for each in facts.values()]),
        ("waves", [_waves(each) for each in facts.values()]),
        ("SMs busy", [_busy(each) for each in facts.values()]),
        ("predicted µs", [_predicted(each) for each in facts.values()]),
        ("limited by", [_limiter(each) for each in facts.values()]),
    ]
    rows = tuple(Row((Cell(name), *map(Cell, cells))) for name, cells in lines)
    columns = (Column("", "left"), *(Column(name, "left") for name in facts))
    return Table("How they fill the board", columns, rows)


def _registers(facts: Facts) -> str:
    used = facts.binary.resources
    if used is None:
        return MISSING
    return f"{used.registers}" + (f", {used.spill_bytes} B spilled" if used.spill_bytes else "")


def _held(facts: Facts) -> str:
    found = facts.occupancy
    return f"{found.blocks_per_sm} ({found.limiter})" if found else MISSING


def _occupancy(facts: Facts) -> str:
    return f"{100 * facts.occupancy.theoretical:.0f} %" if facts.occupancy else MISSING


def _waves(facts: Facts) -> str:
    return f"{facts.occupancy.waves_per_sm:.2f}" if facts.occupancy else MISSING


def _busy(facts: Facts) -> str:
    return f"{100 * facts.prediction.busy_share:.0f} %" if facts.prediction else MISSING


def _predicted(facts: Facts) -> str:
    return f"{facts.prediction.microseconds:,.1f}" if facts.prediction else MISSING


def _limiter(facts: Facts) -> str:
    return facts.prediction.limiter if facts.prediction else MISSING


def store_table(entries: Sequence[Entry], stale: Mapping[Staleness, int], where: str) -> Table:
    """The contents of a store: the winner of each problem on each GPU."""
    rows = tuple(
        Row(
            (
                Cell(each.gpu),
                Cell(str(each.problem) + (f" {each.epilogue}" if each.epilogue != "none" else "")),
                Cell(each.label),
                Cell(f"{each.tflops:.2f}" if each.tflops else MISSING),
                Cell(each.origin),
            )
        )
        for each in entries
    )
    columns = (
        Column("GPU", "left"),
        Column("problem", "left"),
        Column("best configuration", "left"),
        Column("TFLOP/s"),
        Column("origin", "left"),
    )
    listed = ", ".join(f"{count} of {reason}" for reason, count in sorted(stale.items()))
    notes = (f"Stale trials, kept but not used: {listed}.",) if listed else ()
    return Table(f"Tuned problems in {where}", columns, rows, notes)


def predicted_table(found: Sequence[Predicted], problem: str, board: str) -> Table:
    """The fastest configurations in the model. Nothing is measured."""
    rows = tuple(
        Row(
            (
                Cell(each.candidate.label),
                Cell(f"{each.prediction.microseconds:,.1f}"),
                Cell(f"{each.prediction.tflops:.2f}"),
                Cell(f"{each.prediction.occupancy.waves_per_sm:.2f}"),
                Cell(each.prediction.limiter),
            )
        )
        for each in found[:LEADERS]
    )
    columns = (
        Column("configuration", "left"),
        Column("predicted\nµs"),
        Column("predicted\nTFLOP/s"),
        Column("waves"),
        Column("limited by", "left"),
    )
    notes = (
        f"Predicted by the model for {board}; configurations: {len(found)}. Nothing was "
        "measured or stored. `gemmkit tune` measures on the board itself.",
    )
    return Table(f"{problem} on {board}, predicted", columns, rows, notes)
