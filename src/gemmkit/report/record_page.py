"""Runs as pages: what each step of a ladder changes, the tables of `ladder`, `sweep` and `bench`,
any of their figures as bars, the conditions of measurement and the errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gemmkit.analysis import count_loads
from gemmkit.analysis.metric_list import metric_list
from gemmkit.record import Record
from gemmkit.report.conditions import conditions_table, conditions_text
from gemmkit.report.document import Block, Document, Prose, Section, View
from gemmkit.report.layout import Table
from gemmkit.report.steps import steps_section
from gemmkit.report.tables import kernel_label
from gemmkit.report.views.errors import TITLE, errors_of, errors_view


def records_document(
    tables: Sequence[Table], records: Sequence[Record], *, ended: bool = True
) -> Document:
    """The steps of a ladder, the tables of a run, every figure of its records, conditions, errors.

    Args:
        tables: as a terminal shows them.
        records: what they are made of.
        ended: whether all runs are over; if not, the page says so.
    """
    lead = [] if ended else [Prose("Stopped early: some runs are missing.", "caution")]
    blocks: tuple[Block, ...] = tuple(tables)
    sections = [Section("Results", blocks), Section("Figures", (figures_view(records),))]
    if (steps := steps_section(records)) is not None:
        sections.insert(0, steps)
    if (conditions := conditions_table(records)) is not None:
        sections.append(Section(conditions.caption, (conditions,)))
    if (errors := errors_view(errors_of(records))) is not None:
        sections.append(Section(TITLE, (errors,)))
    return Document(tables[0].caption, tuple(lead), tuple(sections), msgspec.to_builtins(records))


def figures_view(records: Sequence[Record]) -> View:
    """One bar per record, of a figure that the reader picks.

    The first figure is TFLOP/s where anything was timed, else the sectors of global loads. `about`
    says what each figure counts. Times and speeds carry clock and power, where they are known.
    """
    several = len({record.problem.shape for record in records}) > 1
    rows = [
        {
            "label": kernel_label(record)
            + (f", {record.problem.shape}" if several else "")
            + ("" if record.correct else " (wrong result)"),
            "idea": record.idea,
            "conditions": conditions_text(record),
            "figures": _figures(record),
        }
        for record in records
    ]
    about = {each.name: each.description for each in metric_list()}
    names = {name: about.get(name, "") for row in rows for name in row["figures"]}
    return View("bars", {"rows": rows, "about": names})


def _figures(record: Record) -> dict[str, float]:
    """All numbers of a record, by name; those that its table shows come first."""
    found: dict[str, Any] = {"TFLOP/s": record.tflops}
    if record.time_us is not None:
        found["median µs"] = record.time_us.median
    if record.ratio_to_cublas is not None:
        found["× cuBLAS"] = record.ratio_to_cublas
    elif record.baseline is not None:
        found["× cuBLAS"] = record.baseline.speedup
    loads = count_loads(record.counters, record.problem.results)
    if loads is not None:
        found["global loads per result"] = loads.global_per_result
        found["shared loads per result"] = loads.shared_per_result
    found |= record.counters
    if record.resources is not None:
        found["registers per thread"] = record.resources.registers
        found["shared bytes per block"] = record.resources.shared_bytes
    if record.occupancy is not None:
        found["theoretical occupancy, %"] = 100 * record.occupancy.theoretical
        found["waves per SM"] = record.occupancy.waves_per_sm
    found["max error / bound"] = record.error_ratio
    return {name: value for name, value in found.items() if value is not None}
