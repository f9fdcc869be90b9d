"""Runs as pages: what each step of a ladder changes, the tables of `ladder`, `sweep` and `bench`,
any of their figures as bars, the conditions of measurement and the errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gemmkit.analysis import count_loads
from gemmkit.analysis.loads import GLOBAL_REQUESTS, GLOBAL_SECTORS
from gemmkit.analysis.metric_list import metric_list
from gemmkit.analysis.roofline import SHARED_WAVEFRONTS
from gemmkit.record import ProblemRecord, Record
from gemmkit.report.conditions import conditions_table, conditions_text
from gemmkit.report.document import Block, Document, Prose, Section, View
from gemmkit.report.layout import Table
from gemmkit.report.steps import steps_section
from gemmkit.report.tables import kernel_label
from gemmkit.report.views.errors import TITLE, errors_of, errors_view

# Figures that tables show, as the page names them.
_SHOWN = frozenset(
    (
        *("global loads per result", "shared loads per result", "registers per thread"),
        *("theoretical occupancy, %", "waves per SM"),
        *(GLOBAL_REQUESTS[0], GLOBAL_SECTORS[0], SHARED_WAVEFRONTS[0]),
    )
)


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
    """A bar per record, or a curve per kernel over sizes, of a figure that the reader picks.

    `first` is what is shown at first. `about` says what each figure counts. Times and speeds carry
    clock and power, where they are known. The `size` of a problem is the cube root of results × k;
    `cubes` says that this is M = N = K of all.
    """
    several = len({record.problem.shape for record in records}) > 1
    rows = [
        {
            "label": kernel_label(record)
            + (f", {record.problem.shape}" if several else "")
            + ("" if record.correct else " (wrong result)"),
            "kernel": kernel_label(record),
            "size": (record.problem.results * record.problem.k) ** (1 / 3),
            "idea": record.idea,
            "conditions": conditions_text(record),
            "figures": _figures(record),
        }
        for record in records
    ]
    about = {each.name: each.description for each in metric_list()}
    names = {name: about.get(name, "") for row in rows for name in row["figures"]}
    data = {
        "rows": rows,
        "about": names,
        "first": _first(rows),
        "cubes": all(_is_cube(record.problem) for record in records),
    }
    return View("bars", data)


def _first(rows: Sequence[Mapping[str, Any]]) -> str:
    """The speed where anything was timed; else the figure of tables with the largest spread, or any
    other if those are all equal: between kernels at one size first, then between sizes."""
    if not rows or any("TFLOP/s" in row["figures"] for row in rows):
        return "TFLOP/s"
    names: list[str] = [
        name for name in rows[0]["figures"] if all(name in row["figures"] for row in rows)
    ]
    sizes: defaultdict[float, list[Mapping[str, float]]] = defaultdict(list)
    for row in rows:
        sizes[row["size"]].append(row["figures"])

    def spread(name: str) -> tuple[bool, float, float]:
        within = max(_ratio(each[name] for each in same) for same in sizes.values())
        return name in _SHOWN and within > 1, within, _ratio(row["figures"][name] for row in rows)

    return max(names, key=spread)


def _ratio(values: Iterable[float]) -> float:
    """The largest of the positive values by the smallest; 1 if there are none."""
    positive = [each for each in values if each > 0]
    return max(positive) / min(positive) if positive else 1.0


def _is_cube(problem: ProblemRecord) -> bool:
    return problem.m == problem.n == problem.k and problem.batch == 1 and not problem.groups


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
