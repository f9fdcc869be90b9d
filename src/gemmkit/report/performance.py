"""The performance part of `docs/results.md`: a summary of suites, each in full, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmkit.bench.peers import BEST, CUBLAS, DEFAULT
from gemmkit.bench.suites import TOPICS
from gemmkit.record import Record
from gemmkit.report.comparison import (
    by_suite,
    error_ratio,
    find_peer,
    fused_overhead,
    geometric_mean,
    has_types,
    next_tile_share,
    others_of,
    ratios,
    shape,
)
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.suite_plots import size_sweep_svg, waves_svg
from gemmkit.report.tables import kernel_label, number

# Suites that are only summarized, not shown in full.
PICTURED = "waves"
SWEPT = ("square", "k1024")


@dataclass(frozen=True, slots=True)
class Performance:
    """Markdown, and pictures by the suffix of their names, such as `-square`."""

    markdown: str
    pictures: dict[str, str]


def performance(records: Sequence[Record], picture: str) -> Performance:
    """The rendering of a file of compared records, complete or not.

    Args:
        records: as `gemmkit bench --suite … --json FILE` writes them.
        picture: the common prefix of the pictures' links.
    """
    suites = {suite: found for suite, found in by_suite(records).items() if ratios(found)}
    if not suites:
        return Performance("", {})
    parts = [
        f"**Compared on an {records[0].device.gpu}, {_types(suites)}**\n",
        _summary(suites).to_markdown(),
        _conditions(records),
    ]
    pictures: dict[str, str] = {}

    def show(suite: str, title: str, svg: str) -> None:
        pictures[f"-{suite}"] = svg
        parts.append(f"![{title}]({picture}-{suite}.svg)\n")

    for suite in SWEPT:
        if _drawable(suites.get(suite, ())):
            show(suite, f"Speed by size, {TOPICS[suite]}", size_sweep_svg(suites[suite]))
    if _drawable(suites.get(PICTURED, ())):
        show(PICTURED, f"Speed by size, {TOPICS[PICTURED]}", waves_svg(suites[PICTURED]))
    for suite, found in suites.items():
        if suite != PICTURED:
            table = _full(suite, found, records).to_markdown()
            heading = f"{suite}: {TOPICS[suite]}" if suite in TOPICS else "other shapes"
            parts.append(f"<details><summary>{heading}</summary>\n\n{table}\n</details>\n")
    return Performance("\n".join(parts), pictures)


def _drawable(records: Sequence[Record]) -> bool:
    """Whether there are several, all of one type and layout."""
    kinds = {(each.problem.types, each.problem.layout) for each in records}
    return len(records) > 1 and len(kinds) == 1


def _types(suites: dict[str, list[Record]]) -> str:
    kinds = dict.fromkeys(each.problem.types for found in suites.values() for each in found)
    return ", ".join(kinds)


def _summary(suites: dict[str, list[Record]]) -> Table:
    columns = (
        Column("suite", "left"),
        Column("problems"),
        Column("× cuBLAS, geometric mean"),
        Column("minimum"),
        Column("at", "left"),
        Column("≥ 1.00"),
        Column("max error / cuBLAS's"),
    )
    named = [(f"{each}: {TOPICS[each]}" if each in TOPICS else "other shapes") for each in suites]
    rows = [_summary_row(*each) for each in zip(named, suites.values(), strict=True)]
    if len(rows) > 1:
        rows.append(_summary_row("all", [each for found in suites.values() for each in found]))
    return Table("", columns, tuple(rows))


def _summary_row(name: str, records: Sequence[Record]) -> Row:
    compared = [each for each in records if each.ratio_to_cublas is not None]
    found = ratios(compared)
    least = min(compared, key=lambda each: each.ratio_to_cublas or 0.0)
    errors = [each for record in compared if (each := error_ratio(record)) is not None]
    wrong = sum(not each.correct for each in records)
    return Row(
        (
            Cell(f"{name} (**{wrong} wrong**)" if wrong else name),
            Cell(str(len(compared))),
            Cell(f"{geometric_mean(found):.2f}"),
            Cell(f"{min(found):.2f}"),
            Cell(shape(least)),
            Cell(f"{sum(each >= 1 for each in found)} of {len(found)}"),
            number(max(errors, default=None), 1),
        )
    )


def _full(suite: str, records: Sequence[Record], everything: Sequence[Record]) -> Table:
    """A row per problem of one suite; `everything` includes those of other suites."""
    next_tile = {id(each): next_tile_share(each, everything) for each in records}
    edges = any(each is not None for each in next_tile.values())
    skinny = suite == "skinny"
    fused = any(fused_overhead(each) is not None for each in records)
    others, types = others_of(records), has_types(records)
    columns = (
        Column("M×N×K"),
        *((Column("types", "left"),) if types else ()),
        Column("kernel", "left"),
        Column("TFLOP/s"),
        *((Column("GB/s"), Column("% of a copy")) if skinny else ()),
        *((Column("% of the next tile multiple"),) if edges else ()),
        *((Column("over plain"),) if fused else ()),
        Column("cuBLAS as it picks"),
        Column("cuBLAS best"),
        Column("× cuBLAS"),
        *(Column(f"× {heading}") for heading, _, _ in others),
    )
    rows = []
    for record in records:
        seen, over = record.profile, fused_overhead(record)
        copied = seen.copy_share if seen else None
        bandwidth = (
            number(seen.gb_per_s if seen else None, 0),
            number(None if copied is None else 100 * copied, 1),
        )
        edge = next_tile[id(record)]
        picked, best = (find_peer(record, CUBLAS, each) for each in (DEFAULT, BEST))
        best = best or picked
        cells = (
            Cell(shape(record)),
            *((Cell(record.problem.types),) if types else ()),
            Cell(f"`{kernel_label(record)}`" + ("" if record.correct else " **wrong**")),
            number(record.tflops, 2),
            *(bandwidth if skinny else ()),
            *((number(None if edge is None else 100 * edge, 1),) if edges else ()),
            *((Cell(MISSING if over is None else f"{100 * over:+.1f} %"),) if fused else ()),
            number(picked.tflops if picked else None, 2),
            number(best.tflops if best else None, 2),
            number(record.ratio_to_cublas, 2),
            *(
                number(peer.speedup if (peer := find_peer(record, *named)) else None, 2)
                for named in ((library, choice) for _, library, choice in others)
            ),
        )
        rows.append(Row(cells))
    return Table("", columns, tuple(rows))


def _conditions(records: Sequence[Record]) -> str:
    """The conditions of measurement, in a few sentences."""
    facts = records[0].environment
    versions = dict.fromkeys(
        peer.name.partition(" (")[0].partition(",")[0].partition(":")[0]
        for each in records
        for peer in each.peers
        if peer.vendor != "gemmkit"
    )
    names = ("driver", "compiler", "commit", "inputs", "command")
    facts_text = [f"{name} {facts[name]}" for name in names if name in facts]
    clocks = [
        each.conditions.sm_clock_mhz
        for each in records
        if each.conditions is not None and each.conditions.sm_clock_mhz is not None
    ]
    if clocks:
        facts_text.append(f"SM clock {min(clocks):,.0f} to {max(clocks):,.0f} MHz (medians)")
    return (
        "All candidates for a problem are timed in turn in one process, as CUDA graphs over "
        "rotating buffers larger than the L2 cache, each checked first; times are medians. "
        "`× cuBLAS` is relative to the fastest of cublasSgemm and cuBLASLt's heuristics, `as it "
        "picks` is the first heuristic. "
        f"{', '.join(versions)}; {'; '.join(facts_text)}.\n"
    )
