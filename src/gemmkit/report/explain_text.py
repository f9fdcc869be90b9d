"""An explanation as text: sections of figures, operands, source lines, and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gemmkit.analysis.explain import Evidence, Explanation, Sentence
from gemmkit.analysis.explain.explanation import Figure, Operand, Section, SourceLine
from gemmkit.report.layout import (
    MISSING,
    TEXT_WIDTH,
    Cell,
    Column,
    Row,
    Style,
    Table,
    value_text,
    wrapped,
)
from gemmkit.report.wrong_result import wrong_result
from gemmkit.units import readable

if TYPE_CHECKING:
    from rich.text import Text

_MAX_SOURCE = 60
# A source line that executes less than this share of the instructions is left out, unless it
# accesses memory.
_WORTH_SHOWING = 0.01


def explanation_text(explained: Explanation, width: int | None = None) -> Text:
    """The whole explanation, in lines of `width` characters; `.plain` has no colors."""
    from rich.text import Text

    around = min(width or TEXT_WIDTH, TEXT_WIDTH)

    text = Text()
    text.append(_heading(explained), "bold")
    for each in (explained, explained.against):
        if each is not None and each.wrong:
            wrong = wrong_result(each.diagnosis, each.wrong)
            shown = f"WRONG RESULT of {each.kernel} at {each.counted}: {wrong}."
            text.append(f"\n{wrapped(shown, around)}", "bold red")
    both = [each for each in (explained, explained.against) if each is not None]
    if all(each.launches_nothing for each in both):
        reasons = dict.fromkeys(sentence.text for each in both for sentence in each.sentences)
        text.append("\n" + "".join(wrapped(each, around) for each in reasons))
        return text
    text.append("\n" + wrapped(explained.idea, around) if explained.idea else "")
    if explained.counted != explained.problem:
        text.append(
            wrapped(
                f"Counted at {explained.counted}, because {explained.problem} would take long to "
                "emulate: requests, sectors and wavefronts below are for that product; occupancy, "
                f"waves and predictions are for {explained.problem}.",
                around,
            ),
            "yellow",
        )
    for section in explained.sections:
        text.append("\n")
        text.append_text(_section_table(section, explained).to_text(width))
        if section.title.startswith("Memory") and explained.operands:
            text.append("\n")
            text.append_text(operand_table(explained).to_text(width))
            if explained.against is not None:
                text.append("\n")
                text.append_text(operand_table(explained.against).to_text(width))
    if explained.source:
        text.append("\n")
        text.append_text(source_table(explained).to_text(width))
    text.append(f"\nSummary of {explained.kernel}\n\n", "bold")
    for sentence in explained.sentences:
        _append_sentence(text, sentence, around)
    if explained.against is not None:
        _append_comparison(text, explained, explained.against, around)
    return text


def _heading(explained: Explanation) -> str:
    against = f" vs. {explained.against.kernel}" if explained.against is not None else ""
    return f"{explained.kernel}{against}, {explained.problem} on {explained.gpu}, with no GPU\n"


def _append_comparison(text: Text, explained: Explanation, other: Explanation, around: int) -> None:
    heads = {
        "this": f"Advantages of {explained.kernel}",
        "other": f"Advantages of {other.kernel}",
        "neither": "Other differences",
    }
    verdict = [each for each in explained.comparison if is_verdict(each)]
    rest = [each for each in explained.comparison if not is_verdict(each)]
    text.append(f"\n{explained.kernel} vs. {other.kernel}\n\n", "bold")
    for sentence in verdict:
        _append_sentence(text, sentence, around)
    if not explained.comparison:
        text.append("All metrics are equal.\n")
    for favors in dict.fromkeys(each.favors for each in rest):
        text.append(f"\n{heads[favors]}\n\n", "bold")
        for sentence in rest:
            if sentence.favors == favors:
                _append_sentence(text, sentence, around)


def is_verdict(sentence: Sentence) -> bool:
    """Whether a sentence is the model's overall verdict, not one reason."""
    return any(each.metric.startswith("gemmkit__predicted") for each in sentence.evidence)


def _append_sentence(text: Text, sentence: Sentence, around: int) -> None:
    text.append(wrapped(sentence.text, around, first="- ", indent="  "))
    for each in sentence.evidence:
        text.append(f"    {evidence_text(each)}\n", "dim")


def evidence_text(evidence: Evidence) -> str:
    """The metric with its value, or both values."""
    operand = f" [{evidence.operand}]" if evidence.operand else ""
    other = f" | {value_text(evidence.other)}" if evidence.other is not None else ""
    return f"{evidence.metric}{operand}: {value_text(evidence.this)}{other}"


def _section_table(section: Section, explained: Explanation) -> Table:
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
    """A figure whose value is text, for both kernels if they differ."""
    if explained.against is None or len(set(values)) == 1:
        return f"{label}: {values[0]}."
    return f"{label}: {explained.kernel} {values[0]}; {explained.against.kernel} {values[1]}."


def _figures_of(explained: Explanation, title: str) -> dict[str, Figure]:
    for section in explained.sections:
        if section.title == title:
            return {each.label: each for each in section.figures}
    return {}


_OPERAND_COLUMNS = (
    Column("access", "left"),
    Column("bytes\nper request", drop=3),
    Column("requests"),
    Column("sectors\nper request"),
    Column("at least"),
    Column("tag wavefronts\nper request", drop=2),
    Column("bank wavefronts\nper instruction"),
    Column("without\nconflicts"),
)


def operand_table(explained: Explanation) -> Table:
    """A row per array and kind of access: the cost of a request, and its minimum."""
    rows = tuple(_operand_row(each) for each in explained.operands if each.space != "local")
    return Table(f"Accesses of {explained.kernel} by operand", _OPERAND_COLUMNS, rows)


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
    for each in lines:
        share = each.instructions / total
        touches = each.global_requests or each.shared_wavefronts
        if share < _WORTH_SHOWING and not touches:
            continue
        text = each.text if len(each.text) <= _MAX_SOURCE else each.text[: _MAX_SOURCE - 1] + "…"
        per_request = each.global_sectors / each.global_requests if each.global_requests else None
        yield Row(
            (
                Cell(f"{each.file}:{each.line}"),
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
