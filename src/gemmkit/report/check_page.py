"""`gemmkit check` as a page: findings first, each with its source lines, then all problems
and the errors of their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gemmkit.check_record import CheckRecord, CheckVerdict
from gemmkit.kernels.kernel import Kernel
from gemmkit.report.causes import Cause, causes
from gemmkit.report.document import Block, Code, Document, Prose, Section
from gemmkit.report.findings import Sources, check_table, further_lines, sites_of, summary
from gemmkit.report.interleavings import replayed
from gemmkit.report.layout import Cell, Column, Row, Table
from gemmkit.report.limits import limits_tables
from gemmkit.report.views.errors import TITLE, errors_of, errors_view

# The number of findings from which on a page has an index of them.
INDEXED = 6


def check_document(
    records: Sequence[CheckRecord], kernel: Kernel, *, ended: bool = True
) -> Document:
    """What was found, and the verdict on each problem.

    Args:
        records: of all problems that ran.
        kernel: what was checked, for its sources.
        ended: whether all problems are over; if not, the page says so.
    """
    clean = all(record.clean for record in records)
    lead = [Prose(summary(records), "plain" if clean else "wrong")]
    lead += [Prose(line) for line in replayed(records)]
    if not ended:
        lead.append(Prose("Stopped early: some problems are missing.", "caution"))
    table = check_table(records)
    sections = [Section("Problems", (table,))]
    if (errors := errors_view(errors_of(records))) is not None:
        sections.append(Section(TITLE, (errors,)))
    if found := causes(records):
        sources = Sources(kernel)
        blocks = [
            block
            for number, each in enumerate(found, 1)
            for block in _finding(number, each, records, sources)
        ]
        if len(found) >= INDEXED:
            blocks.insert(0, _index(found))
        sections.insert(0, Section("Findings", tuple(blocks), leading=True))
    if judged := limits_tables(records):
        sections.insert(len(sections) - 1, Section("Limits", judged, leading=True))
    title = f"{kernel.name}: {_title(records)} (gemmkit check)"
    return Document(title, tuple(lead), tuple(sections), msgspec.to_builtins(records))


def _index(found: Sequence[Cause]) -> Table:
    """The numbers and kinds of the findings at each source line."""
    lines: dict[tuple[str, int], list[tuple[int, Cause]]] = {}
    for number, each in enumerate(found, 1):
        for site in sites_of(each.finding):
            lines.setdefault((site.file, site.line), []).append((number, each))
    columns = (Column("source line", "left"), Column("number", "left"), Column("check", "left"))
    rows = (
        Row(
            (
                Cell(f"{file}:{line}"),
                Cell(", ".join(str(number) for number, _ in those)),
                Cell(", ".join(dict.fromkeys(each.finding.check for _, each in those))),
            )
        )
        for (file, line), those in sorted(lines.items())
    )
    return Table("Findings by source line", columns, tuple(rows))


# From what is worst.
_TITLES: Mapping[CheckVerdict, str] = {
    "findings": "findings",
    "wrong result": "wrong results",
    "failed": "failed launches",
    "limit missed": "limits missed",
}


def _title(records: Sequence[CheckRecord]) -> str:
    """What is worst, in two words."""
    seen = {record.verdict for record in records}
    return next((words for verdict, words in _TITLES.items() if verdict in seen), "no findings")


def _finding(
    number: int, each: Cause, records: Sequence[CheckRecord], sources: Sources
) -> Iterator[Block]:
    finding = each.finding
    yield Prose(f"{number}. {finding.check}: {finding.message}", "heading")
    for site in sites_of(finding):
        calls = [
            f"called from {call}: {sources.line(call)}".rstrip(": ") for call in site.called_from
        ]
        yield Code(str(site), (*sources.excerpt(site.file, site.line), *calls))
    for line in further_lines(each, records):
        yield Prose(line)
