"""What `check` saw, as text: a table of the problems, then each finding with its source lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gemmkit.bench.coverage import right_multiples
from gemmkit.jit.diagnostics import excerpt
from gemmkit.kernels import include_files
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.layouts import layout_text
from gemmkit.kernels.sizes import SIZES
from gemmkit.kernels.tiles import tiles_of
from gemmkit.problem import BROADCAST
from gemmkit.record import AccessSite, CheckRecord, CheckVerdict, Finding, ProblemRecord
from gemmkit.report.layout import MISSING, Cell, Column, Row, Style, Table

if TYPE_CHECKING:
    from rich.text import Text

SHOWN_CASES = 4
SHOWN_FINDINGS = 20

# Why an argument can be memory that nobody has written.
_UNREAD = {
    "A": "By the BLAS rules α = 0 never reads A, which is left unwritten then.",
    "B": "By the BLAS rules α = 0 never reads B, which is left unwritten then.",
    "C": "By the BLAS rules β = 0 never reads C, which is left unwritten then. "
    "Whether the kernel is right for another β, or adds to C, --beta 1 checks.",
}

_STYLES: dict[CheckVerdict, Style] = {
    "ok": "good",
    "findings": "bad",
    "wrong result": "bad",
    "failed": "bad",
    "refused": "quiet",
}


def check_table(records: Sequence[CheckRecord]) -> Table:
    """One row a problem: its verdict, how near the result comes to its bound, the findings."""
    first = records[0]
    config = ",".join(f"{key}={value}" for key, value in first.config.items())
    title = f"{first.kernel} ({config})" if config else first.kernel
    columns = (
        Column("problem", "left", drop=1, reserve=20),
        Column("M×N×K", "left", reserve=11),
        Column("with", "left", reserve=12),
        Column("verdict", "left", reserve=12),
        Column("error /\nbound", drop=2),
        Column("findings", "left"),
    )
    return Table(
        f"{title}, checked on the emulator for {first.device.gpu}",
        columns if any(record.case for record in records) else columns[1:],
        tuple(
            _row(record, named=any(each.case for each in records), again=_noted(record, before))
            for record, before in ((each, records[:number]) for number, each in enumerate(records))
        ),
    )


def _noted(record: CheckRecord, before: Sequence[CheckRecord]) -> bool:
    """Whether a row above says of another problem what there is to say of this one."""
    return any((each.detail, each.verdict) == (record.detail, record.verdict) for each in before)


def _row(record: CheckRecord, *, named: bool, again: bool) -> Row:
    verdict = record.verdict
    if verdict == "findings" and record.correct is False:
        verdict_text = "findings, wrong result"
    else:
        verdict_text = str(verdict)
    kinds = Counter(finding.check for finding in record.findings)
    cells = [
        Cell(record.case),
        Cell(record.problem.shape),
        Cell(extras(record.problem) or MISSING, "plain"),
        Cell(verdict_text, _STYLES[verdict]),
        Cell(_ratio(record)),
        Cell(", ".join(f"{count} {kind}" for kind, count in kinds.items()) or MISSING),
    ]
    note = record.detail if record.correct is not True and not again else ""
    return Row(tuple(cells if named else cells[1:]), note)


def extras(problem: ProblemRecord) -> str:
    """What of a problem is not as by default: layout, α, β, epilogue, row lengths, strides."""
    words = [layout_text(problem.layout)] if problem.layout != "nn" else []
    if problem.alpha != 1:
        words.append(f"α={problem.alpha:g}")
    if problem.beta != 0:
        words.append(f"β={problem.beta:g}")
    if problem.epilogue != "none":
        words.append(problem.epilogue)
    transposed = [letter == "t" for letter in problem.layout.ljust(3, "n")]
    rows = ((problem.k, problem.m), (problem.n, problem.k), (problem.n, problem.m))
    tight = {
        name: row[swapped]
        for name, row, swapped in zip(("lda", "ldb", "ldc"), rows, transposed, strict=True)
    }
    words += [
        f"{name}={getattr(problem, name)}"
        for name, row in tight.items()
        if getattr(problem, name) != max(row, 1)
    ]
    if problem.batch > 1:
        strides = {
            "A": (problem.stride_a, problem.m * problem.lda),
            "B": (problem.stride_b, problem.k * problem.ldb),
            "C": (problem.stride_c, problem.m * problem.ldc),
        }
        words += [
            f"one {name}" if given == BROADCAST else f"stride_{name.lower()}={given}"
            for name, (given, tight) in strides.items()
            if given != tight
        ]
    return " ".join(words)


def _ratio(record: CheckRecord) -> str:
    if record.correct is None:
        return MISSING
    return "∞" if record.error_ratio is None else f"{record.error_ratio:.2g}"


def _way(site: AccessSite | None) -> tuple[str, ...]:
    """The source line of an access, and the calls that lead there."""
    return (str(site), *site.called_from) if site is not None else ()


@dataclass(frozen=True)
class DistinctFinding:
    """A finding with the problems that show it; `count` is over all of them."""

    finding: Finding
    problems: tuple[ProblemRecord, ...]
    count: int


def distinct_findings(records: Sequence[CheckRecord]) -> list[DistinctFinding]:
    """The findings of all problems, those at the same places taken together, in order."""
    found: dict[tuple[object, ...], list[tuple[Finding, ProblemRecord]]] = {}
    for record in records:
        for each in record.findings:
            key = each.check, each.kind, each.array, _way(each.here), _way(each.other)
            found.setdefault(key, []).append((each, record.problem))
    return [
        DistinctFinding(
            seen[0][0],
            tuple(dict.fromkeys(problem for _, problem in seen)),
            sum(finding.count for finding, _ in seen),
        )
        for seen in found.values()
    ]


def findings_text(records: Sequence[CheckRecord], kernel: Kernel) -> Text:
    """The distinct findings, at most 20, with the source lines that they are about."""
    from rich.text import Text

    text = Text()
    sources = Sources(kernel)
    found = distinct_findings(records)
    for number, each in enumerate(found[:SHOWN_FINDINGS], 1):
        finding = each.finding
        text.append(f"\n{number}. {finding.check}: ", "bold red")
        text.append(f"{finding.message}\n")
        sites = {_way(site): site for site in (finding.here, finding.other) if site is not None}
        for site in sites.values():
            text.append(f"  --> {site}\n", "cyan")
            for line in sources.excerpt(site.file, site.line):
                text.append(f"    {line}\n", "bold" if line.startswith(">") else "dim")
            for call in site.called_from:
                text.append(f"      called from {call}: {sources.line(call)}".rstrip(": ") + "\n")
        if finding.check == "initcheck" and finding.array in _UNREAD:
            text.append(f"  {_UNREAD[finding.array]}\n", "dim")
        text.append(f"  seen {_times(each)}\n", "dim")
    if len(found) > SHOWN_FINDINGS:
        text.append(f"\n… and {len(found) - SHOWN_FINDINGS} more, which --json tells\n")
    return text


def _times(each: DistinctFinding) -> str:
    shown = [
        " ".join(filter(None, (problem.shape, extras(problem))))
        for problem in each.problems[:SHOWN_CASES]
    ]
    more = len(each.problems) - len(shown)
    where = ", ".join(shown) + (f" and {more} more" if more else "")
    return f"{'once' if each.count == 1 else f'{each.count:,} times'}, at {where}"


class Sources:
    """The texts that a kernel is made of, by the names that its line table gives them."""

    def __init__(self, kernel: Kernel) -> None:
        self._name = kernel.file.name if kernel.file is not None else f"{kernel.name}.cu"
        self._own = kernel.source
        self._folders = kernel.file.include_dirs if kernel.file is not None else ()
        self._texts: dict[str, str] = {}

    def excerpt(self, file: str, line: int) -> list[str]:
        """A line between its neighbours; nothing where the text is not at hand."""
        return excerpt(self._text(file), line)

    def line(self, place: str) -> str:
        """The line at `file:line`, without its indent; empty where the text is not at hand."""
        file, _, number = place.rpartition(":")
        lines = self._text(file).splitlines()
        return lines[int(number) - 1].strip() if 0 < int(number) <= len(lines) else ""

    def _text(self, file: str) -> str:
        if file not in self._texts:
            self._texts[file] = self._find(file)
        return self._texts[file]

    def _find(self, file: str) -> str:
        if file == self._name:
            return self._own
        for folder in (*self._folders, "."):
            path = Path(folder) / file
            if path.is_file():
                return path.read_text("utf-8", errors="replace")
        return include_files().get(file, "")


def summary(records: Sequence[CheckRecord]) -> str:
    """One sentence: how many problems, and what came out."""
    verdicts = Counter(record.verdict for record in records)
    words = {"findings": "with findings", "wrong result": "wrong"}
    parts = ", ".join(f"{count} {words.get(each, each)}" for each, count in verdicts.items())
    kinds = Counter(each.finding.check for each in distinct_findings(records))
    found = "no finding"
    if kinds:
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        found = f"{_counted(kinds.total(), 'distinct finding')} ({listed})"
    return f"{_counted(len(records), 'problem')}: {parts}; {found}"


def multiples_hint(records: Sequence[CheckRecord], kernel: Kernel) -> str:
    """A sentence for a kernel that is right for multiples of its tiles alone; else empty."""
    if kernel.rung is not None:
        return ""
    tiles = tiles_of(kernel, kernel.default)
    found = right_multiples(records, (tiles.rows, tiles.columns, tiles.step))
    if found is None:
        return ""
    whole = " and ".join(
        f"{name} is a multiple of {multiple}"
        for name, multiple in zip(SIZES, found, strict=True)
        if multiple > 1
    )
    option = ",".join(map(str, found))
    return (
        f"All is well wherever {whole}. If the kernel is meant for such sizes alone, say so by "
        f"--multiple-of {option} (in Python multiple_of=({option}))"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)
