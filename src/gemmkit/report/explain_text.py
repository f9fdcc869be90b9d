"""An explanation as a document: sections of figures, operands, source lines, and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gemmkit.analysis.explain import Evidence, Explanation, Sentence
from gemmkit.analysis.explain import explanation as metrics
from gemmkit.analysis.explain.explanation import Figure, Operand, SourceLine
from gemmkit.report.document import Block, Document, Prose, Remark, Remarks, Section
from gemmkit.report.layout import (
    MISSING,
    Cell,
    Column,
    Row,
    Style,
    Table,
    value_text,
)
from gemmkit.report.source_lines import place_name, shown_lines
from gemmkit.report.views.errors import TITLE, errors_of_explained, errors_view
from gemmkit.report.wrong_result import wrong_result
from gemmkit.units import readable

if TYPE_CHECKING:
    from rich.text import Text

_MAX_SOURCE = 60
# A source line that executes less than this share of the instructions is left out, unless it
# accesses memory.
_WORTH_SHOWING = 0.01


def explanation_document(
    explained: Explanation, views: Mapping[str, tuple[Block, ...]] | None = None
) -> Document:
    """What `gemmkit explain` shows.

    Args:
        explained: the kernel, and the one that it is compared with.
        views: pictures for the page, by the title of the section that they go to; a section of
            their own where there is none.
    """
    views = dict(views or {})
    both = [each for each in (explained, explained.against) if each is not None]
    wrong = [
        Prose(
            f"WRONG RESULT of {each.kernel} at {each.counted}: "
            f"{wrong_result(each.diagnosis, each.wrong)}.",
            "wrong",
        )
        for each in both
        if each.wrong
    ]
    title = _title(explained)
    if all(each.launches_nothing for each in both):
        reasons = dict.fromkeys(sentence.text for each in both for sentence in each.sentences)
        return Document(title, (*wrong, *map(Prose, reasons)), (), explained)
    lead = [*wrong, *([Prose(explained.idea)] if explained.idea else [])]
    if explained.counted != explained.problem:
        lead.append(
            Prose(
                f"Counted at {explained.counted}, because {explained.problem} would take long to "
                "emulate: requests, sectors, wavefronts and errors below are for that product; "
                f"occupancy, waves and predictions are for {explained.problem}.",
                "caution",
            )
        )
    sections = []
    for each in explained.sections:
        blocks: list[Block] = [_section_table(each, explained), *views.pop(each.title, ())]
        if each.title.startswith("Memory") and explained.operands:
            blocks += [operand_table(one) for one in both]
        sections.append(Section(each.title, tuple(blocks)))
    if explained.source:
        table = source_table(explained)
        sections.append(Section(table.caption, views.pop(table.caption, (table,))))
    sections += [Section(name, blocks) for name, blocks in views.items()]
    if errors := errors_view(errors_of_explained(both)):
        sections.append(Section(TITLE, (errors,)))
    remarks = Remarks(tuple(map(_remark, explained.sentences)))
    sections.append(Section(f"Summary of {explained.kernel}", (remarks,), leading=True))
    if explained.against is not None:
        sections.append(_comparison(explained, explained.against))
    return Document(title, tuple(lead), tuple(sections), explained)


def explanation_text(explained: Explanation, width: int | None = None) -> Text:
    """The whole explanation, in lines of `width` characters; `.plain` has no colors."""
    return explanation_document(explained).to_text(width)


def _title(explained: Explanation) -> str:
    against = f" vs. {explained.against.kernel}" if explained.against is not None else ""
    return f"{explained.kernel}{against}, {explained.problem} on {explained.gpu}, with no GPU"


def _comparison(explained: Explanation, other: Explanation) -> Section:
    heads = {
        "this": f"Advantages of {explained.kernel}",
        "other": f"Advantages of {other.kernel}",
        "neither": "Other differences",
    }
    verdict = [each for each in explained.comparison if is_verdict(each)]
    rest = [each for each in explained.comparison if not is_verdict(each)]
    blocks: list[Block] = [Remarks(tuple(map(_remark, verdict)))] if verdict else []
    if not explained.comparison:
        blocks.append(Prose("All metrics are equal."))
    for favors in dict.fromkeys(each.favors for each in rest):
        names = explained.kernel, other.kernel
        items = tuple(_remark(each, names) for each in rest if each.favors == favors)
        blocks += [Prose(heads[favors], "heading"), Remarks(items)]
    return Section(f"{explained.kernel} vs. {other.kernel}", tuple(blocks), leading=True)


def is_verdict(sentence: Sentence) -> bool:
    """Whether a sentence is the model's overall verdict, not one reason."""
    return any(each.metric.startswith("gemmkit__predicted") for each in sentence.evidence)


def _remark(sentence: Sentence, names: Sequence[str] = ()) -> Remark:
    """With the `names` of two kernels, it says which one its source lines are of."""
    evidence = tuple(map(evidence_text, sentence.evidence))
    mark = sentence.favors if sentence.mark == "neither" else sentence.mark
    side = int(sentence.places_of == "other")
    owner = names[side] if names and sentence.places else ""
    return Remark(sentence.text, evidence, mark, sentence.places, side, owner)


def evidence_text(evidence: Evidence) -> str:
    """The metric with its value, or both values."""
    operand = f" [{evidence.operand}]" if evidence.operand else ""
    other = f" | {value_text(evidence.other)}" if evidence.other is not None else ""
    return f"{evidence.metric}{operand}: {value_text(evidence.this)}{other}"


def _section_table(section: metrics.Section, explained: Explanation) -> Table:
    """A row per figure, with the other kernel's value and the metric's name."""
    other = explained.against
    beside = _figures_of(other, section.title) if other is not None else {}
    labels = {each.label: each for each in section.figures}
    names = [*labels, *(label for label in beside if label not in labels)]
    rows, notes = [], []
    for name in names:
        mine, theirs = labels.get(name), beside.get(name)
        shown = mine or theirs
        assert shown is not None
        values = [mine.value if mine else None]
        if other is not None:
            values.append(theirs.value if theirs else None)
        if isinstance(shown.value, str):
            notes.append(_note(name, values, explained))
            continue
        unit, scaled = readable(shown.unit, values)
        cells = Cell(name), *(Cell(value_text(value)) for value in scaled)
        rows.append(Row((*cells, Cell(unit), Cell(shown.metric, "quiet"))))
    heads = [Column(each.kernel) for each in (explained, other) if each is not None]
    columns = (Column("", "left"), *heads, Column("", "left"), Column("metric", "left", drop=1))
    return Table(section.title, columns, tuple(rows), tuple(notes))


def _note(label: str, values: Sequence[float | str | None], explained: Explanation) -> str:
    """A figure whose value is text, and of which kernels it is; one may be without it."""
    if explained.against is None:
        return f"{label}: {values[0]}."
    if len(set(values)) == 1:
        return f"{label}: {values[0]} (both kernels)."
    kernels = explained.kernel, explained.against.kernel
    told = (
        f"{kernel}: {value}"
        for kernel, value in zip(kernels, values, strict=True)
        if value is not None
    )
    return f"{label}: {'; '.join(told)}."


def _figures_of(explained: Explanation, title: str) -> dict[str, Figure]:
    for section in explained.sections:
        if section.title == title:
            return {each.label: each for each in section.figures}
    return {}


_OPERAND_COLUMNS = (
    Column("access", "left"),
    Column("bytes\nper request", drop=3),
    Column("requests", drop=1),
    Column("sectors\nper request"),
    Column("at least"),
    Column("tag wavefronts\nper request", drop=2),
    Column("bank wavefronts\nper instruction"),
    Column("without\nconflicts"),
)


def operand_table(explained: Explanation) -> Table:
    """A row per array and kind of access: the cost of a request, and its minimum."""
    shown = [each for each in explained.operands if each.space != "local"]
    rows = tuple(map(_operand_row, shown))
    merged = tuple(
        f"ptxas merges the {each.requests:,} {each.kind}s of {each.array} into "
        f"{each.instructions:,} wider ones."
        for each in shown
        if 0 < each.instructions < each.requests
    )
    return Table(f"Accesses of {explained.kernel} by operand", _OPERAND_COLUMNS, rows, merged)


def _operand_row(operand: Operand) -> Row:
    shared = operand.space == "shared"
    where = "global" if not shared else "shared"
    verb = {"load": "load of", "store": "store to", "copy": "cp.async of"}.get(
        operand.kind, "atomic on"
    )
    worse = operand.sectors > operand.ideal_sectors
    conflicts = operand.wavefronts > operand.ideal_wavefronts
    bankless = not shared and operand.kind != "copy"
    return Row(
        (
            Cell(f"{where} {verb} {operand.array}"),
            Cell(f"{operand.data_bytes:.4g}"),
            Cell(f"{operand.requests:,}"),
            _mean(operand.sectors, shared, "bad" if worse else "good"),
            _mean(operand.ideal_sectors, shared),
            _mean(operand.tag_wavefronts, shared),
            _mean(operand.wavefronts, bankless, "bad" if conflicts else "good"),
            _mean(operand.ideal_wavefronts, bankless),
        )
    )


def _mean(value: float, missing: bool, style: Style = "plain") -> Cell:
    return Cell(MISSING) if missing else Cell(f"{value:.2f}", style)


_SOURCE_COLUMNS = (
    Column("line", "left"),
    Column("% of PTX\ninst", drop=1),
    Column("global\nrequests", drop=2),
    Column("sectors per\nrequest"),
    Column("shared\nwavefronts"),
    Column("of conflicts", drop=3),
    Column("source", "left", crop=True),
)


def source_table(explained: Explanation) -> Table:
    """Source Counters: a row per line that accesses memory or executes many instructions."""
    return Table("Source Counters", _SOURCE_COLUMNS, tuple(_source_rows(explained.source)))


def _source_rows(lines: Sequence[SourceLine]) -> Iterator[Row]:
    total = sum(each.instructions for each in lines) or 1
    for each in shown_lines(lines):
        share = each.instructions / total
        touches = each.global_requests or each.shared_wavefronts
        if share < _WORTH_SHOWING and not touches:
            continue
        text = each.text if len(each.text) <= _MAX_SOURCE else each.text[: _MAX_SOURCE - 1] + "…"
        per_request = each.global_sectors / each.global_requests if each.global_requests else None
        yield Row(
            (
                Cell(place_name(each.file, each.line)),
                Cell(f"{100 * share:.1f}"),
                Cell(f"{each.global_requests:,.0f}" if each.global_requests else ""),
                Cell(f"{per_request:.2f}" if per_request is not None else ""),
                Cell(f"{each.shared_wavefronts:,.0f}" if each.shared_wavefronts else ""),
                Cell(
                    f"{each.bank_conflicts:,.0f}" if each.bank_conflicts else "",
                    "bad" if each.bank_conflicts else "plain",
                ),
                Cell(text, "quiet"),
            )
        )
