"""The results of `check` as text: a table of the problems, then findings with source lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gemmkit.bench.coverage import contiguous_only, right_multiples
from gemmkit.bench.persistent_cases import FEWER_TILES
from gemmkit.check_record import CheckRecord, CheckVerdict
from gemmkit.findings import AccessSite, Finding
from gemmkit.frontends.tiles import tiles_of
from gemmkit.jit.diagnostics import excerpt
from gemmkit.kernels import include_files
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.layouts import layout_text
from gemmkit.kernels.sizes import multiples_text
from gemmkit.problem import BROADCAST
from gemmkit.record import ProblemRecord
from gemmkit.report.causes import Cause, causes, way
from gemmkit.report.interleavings import interleaving_lines
from gemmkit.report.layout import MISSING, TIE, Cell, Column, Row, Style, Table
from gemmkit.report.same_cause import listed, same_cause
from gemmkit.report.wrong_result import bound_notes, shortened, wrong_result
from gemmkit.units import counted

if TYPE_CHECKING:
    from rich.text import Text

SHOWN_CASES = 4
SHOWN_FINDINGS = 20
# Findings that differ in line and offset only: those in full, and those in a list of lines.
SHOWN_ALIKE = 3
SHOWN_LINES = 100

# Characters of a problem's types, layout, α, β and so on for which columns are made; few have more.
_MOST_EXTRAS = 24

# Why an argument can be uninitialized memory.
_UNREAD = {
    "A": "By the rules of BLAS, A is not read if α = 0, so here it is uninitialized: skip the "
    "product if alpha is 0.",
    "B": "By the rules of BLAS, B is not read if α = 0, so here it is uninitialized: skip the "
    "product if alpha is 0.",
    "C": "By the rules of BLAS, C is not read if β = 0, so here it is uninitialized. "
    "To check the kernel with another β, or if it adds to C, use --beta 1.",
}
_ADDED_TO = (
    "The kernel adds to C with atomics, as split-K does: the host must zero C before each launch, "
    "or no sum is right. To check the kernel where C is added to, use --beta 1."
)
# Opcodes that update memory.
_ATOMICS = ("atom", "red")

_STYLES: dict[CheckVerdict, Style] = {
    "ok": "good",
    "findings": "bad",
    "wrong result": "bad",
    "limit missed": "bad",
    "failed": "bad",
    "refused": "quiet",
}


def check_table(records: Sequence[CheckRecord], to_check: Sequence[CheckRecord] = ()) -> Table:
    """One row per problem: its verdict, the error relative to its bound, the findings.

    `to_check` are records of all problems, whose results may be missing: columns are as wide as
    these need, except for what few problems have.
    """
    first = records[0]
    names = [len(each.case) for each in to_check]
    shapes = [len(each.problem.shape) for each in to_check]
    others = [min(len(extras(each.problem)), _MOST_EXTRAS) for each in to_check]
    config = ",".join(f"{key}={value}" for key, value in first.config.items())
    title = f"{first.kernel} ({config})" if config else first.kernel
    columns = (
        Column("problem", "left", drop=1, reserve=max([19, *names])),
        Column("M×N×K", "left", reserve=max([11, *shapes])),
        Column("with", "left", drop=2, reserve=max([12, *others])),
        Column("verdict", "left", reserve=12),
        Column("error /\nbound", drop=3, reserve=7),
        Column("findings", "left", reserve=11),
    )
    return Table(
        f"{title}, checked on the emulator for {first.device.gpu}",
        columns if any(record.case for record in records) else columns[1:],
        tuple(
            _row(record, before, named=any(each.case for each in records))
            for record, before in ((each, records[:number]) for number, each in enumerate(records))
        ),
        bound_notes(record.arithmetic for record in records),
    )


def _noted(record: CheckRecord, before: Sequence[CheckRecord]) -> bool:
    """Whether a previous row already has the same note."""
    return any((each.detail, each.verdict) == (record.detail, record.verdict) for each in before)


def _row(record: CheckRecord, before: Sequence[CheckRecord], *, named: bool) -> Row:
    # Findings have their own column.
    verdict: CheckVerdict = "wrong result" if record.correct is False else record.verdict
    kinds = Counter(cause.finding.check for cause in causes([record]))
    cells = [
        Cell(record.case),
        Cell(record.problem.shape),
        Cell(extras(record.problem) or MISSING, "plain"),
        Cell(verdict, _STYLES[verdict]),
        Cell(_ratio(record)),
        Cell(", ".join(f"{count}{TIE}{kind}" for kind, count in kinds.items()) or MISSING),
    ]
    # Every refusal says why, for its numbers are its own.
    again = _noted(record, before) and record.verdict != "refused"
    note = record.note
    if record.correct is not True and (short := shortened(record, before)):
        note = short
    elif record.correct is not True and not again:
        note = wrong_result(record.diagnosis, record.detail)
    if record.verdict == "ok" and not note:
        note = _unchecked(record.problem)
    return Row(tuple(cells if named else cells[1:]), note)


def _unchecked(problem: ProblemRecord) -> str:
    """What a check of a problem without products cannot show; empty for other problems."""
    if problem.groups:
        return ""
    if 0 in (problem.m, problem.n, problem.batch):
        return "C is empty: there was no result to compare."
    return "K = 0: only the write-back was checked, without a product." if problem.k == 0 else ""


def extras(problem: ProblemRecord) -> str:
    """What differs from the default: types, layout, α, β, epilogue, leading dimensions, strides."""
    words = [problem.types] if problem.types != "fp32" else []
    words += [layout_text(problem.layout)] if problem.layout != "nn" else []
    if problem.alpha != 1:
        words.append(f"α={problem.alpha:g}")
    if problem.beta != 0:
        words.append(f"β={problem.beta:g}")
    if problem.epilogue != "none":
        words.append(problem.epilogue)
    if problem.groups:
        return " ".join(words)
    words += [f"{name}={getattr(problem, name)}" for name in problem.padded]
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


def findings_text(records: Sequence[CheckRecord], kernel: Kernel) -> Text:
    """The causes of the findings, at most 20, with the source lines of each."""
    from rich.text import Text

    text = Text()
    sources = Sources(kernel)
    found = causes(records)
    numbered = list(enumerate(found, 1))
    full, alike = split_alike(numbered)
    for number, each in full[:SHOWN_FINDINGS]:
        finding = each.finding
        text.append(f"\n{number}. {finding.check}: ", "bold red")
        text.append(f"{finding.message}\n")
        for site in sites_of(finding):
            text.append(f"  --> {site}\n", "cyan")
            for line in sources.excerpt(site.file, site.line):
                text.append(f"    {line}\n", "bold" if line.startswith(">") else "dim")
            for call in site.called_from:
                text.append(f"      called from {call}: {sources.line(call)}".rstrip(": ") + "\n")
        hint = _layout_hint(finding, records)
        for line in further_lines(each, records):
            text.append(f"  {line}\n", "" if line == hint else "dim")
        if number in alike:
            _append_alike(text, alike[number], sources)
    if len(full) > SHOWN_FINDINGS:
        shown = SHOWN_FINDINGS + sum(len(alike.get(n, ())) for n, _ in full[:SHOWN_FINDINGS])
        text.append(f"\n… and {len(found) - shown} more; --json lists them\n")
    return text


def split_alike(
    numbered: Sequence[tuple[int, Cause]],
) -> tuple[list[tuple[int, Cause]], dict[int, list[tuple[int, Cause]]]]:
    """The findings to show in full, and those that differ from others in line and offset only.

    The latter come by the number of the last one like them that is shown in full.
    """
    groups: dict[tuple[str, ...], list[tuple[int, Cause]]] = {}
    for number, each in numbered:
        finding = each.finding
        key = (finding.check, finding.kind, finding.array, finding.here.instruction)
        # Pairs of accesses, and those with other accesses as consequences, speak for themselves.
        alone = finding.other is not None or each.follows
        groups.setdefault((*key, str(number)) if alone else key, []).append((number, each))
    full, alike = [], {}
    for group in groups.values():
        # One more in a list is no shorter than in full.
        kept = SHOWN_ALIKE if len(group) > SHOWN_ALIKE + 1 else len(group)
        full += group[:kept]
        if group[kept:]:
            alike[group[kept - 1][0]] = group[kept:]
    return sorted(full, key=lambda each: each[0]), alike


def _append_alike(text: Text, alike: Sequence[tuple[int, Cause]], sources: Sources) -> None:
    """One line for each finding of a group, with the source line."""
    first = alike[0][1].finding
    name = f" '{first.array}'" if first.array else ""
    text.append(f"\n{counted(len(alike), 'more finding')} of this kind: ", "bold red")
    text.append(
        f"{first.check}, {first.kind},{name}\n" if name else f"{first.check}, {first.kind}\n"
    )
    places = [(number, str(each.finding.here)) for number, each in alike]
    wide = max(len(place) for _, place in places)
    digits = len(str(places[-1][0]))
    for number, place in places[:SHOWN_LINES]:
        line = f"  {number:>{digits}}. {place:<{wide}}  {sources.line(place)}"
        text.append(f"{line.rstrip()}\n", "cyan")
    if len(places) > SHOWN_LINES:
        text.append(f"  … and {len(places) - SHOWN_LINES} more; --json lists them\n")


def sites_of(finding: Finding) -> tuple[AccessSite, ...]:
    """The places in the source, each once."""
    sites = {way(site): site for site in (finding.here, finding.other) if site is not None}
    return tuple(sites.values())


def further_lines(each: Cause, records: Sequence[CheckRecord]) -> Iterator[str]:
    """What there is to say of a cause below its sources: reasons, what else it shows in, where."""
    finding = each.finding
    if finding.check == "initcheck" and finding.array in _UNREAD:
        adds = finding.array == "C" and finding.here.instruction.startswith(_ATOMICS)
        yield _ADDED_TO if adds else _UNREAD[finding.array]
    if hint := _layout_hint(finding, records):
        yield hint
    yield from interleaving_lines(finding, records)
    yield from same_cause(each)
    yield from listed("may lead to", each.follows)
    yield f"seen {_times(each)}"


def _layout_hint(finding: Finding, records: Sequence[CheckRecord]) -> str:
    """A sentence for an access past the end of a matrix that suggests another layout."""
    if finding.kind != "out of bounds" or finding.array not in ("A", "B", "C"):
        return ""
    seen = Counter(
        advice
        for diagnosis in (each.diagnosis for each in records)
        if diagnosis is not None and diagnosis.hypothesis.endswith(" transposed")
        and finding.array in diagnosis.hypothesis.removesuffix(" transposed")
        for advice in diagnosis.details
        if "--layout" in advice
    )  # fmt: skip
    if not seen:
        return ""
    advice = seen.most_common(1)[0][0].removesuffix(".")
    return (
        f"The likely reason: {finding.array} is indexed with rows and columns exchanged, as the "
        f"results show. {advice}, if this is intended."
    )


def _times(each: Cause) -> str:
    shown = [
        " ".join(filter(None, (problem.shape, extras(problem))))
        for problem in each.problems[:SHOWN_CASES]
    ]
    more = len(each.problems) - len(shown)
    where = ", ".join(shown) + (f" and {more} more" if more else "")
    return f"{'once' if each.count == 1 else f'{each.count:,} times'}, at {where}"


class Sources:
    """The sources of a kernel, by the names in its line table."""

    def __init__(self, kernel: Kernel) -> None:
        self._name = kernel.file.name if kernel.file is not None else f"{kernel.name}.cu"
        self._own = kernel.source
        self._folders = kernel.file.include_dirs if kernel.file is not None else ()
        self._texts: dict[str, str] = {}

    def excerpt(self, file: str, line: int) -> list[str]:
        """A line with its neighbors; nothing if the source is not available."""
        return excerpt(self._text(file), line)

    def line(self, place: str) -> str:
        """The line at `file:line`, unindented; empty if the source is not available."""
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
    """One sentence: the number of problems, and their outcomes."""
    verdicts = Counter(_outcome(record) for record in records)
    parts = ", ".join(f"{count} {each}" for each, count in verdicts.items())
    kinds = Counter(each.finding.check for each in causes(records))
    found = "no findings"
    if kinds:
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        found = f"{counted(kinds.total(), 'distinct finding')} ({listed})"
    said = f"{counted(len(records), 'problem')}: {parts}; {found}"
    if any(record.case == FEWER_TILES and record.verdict != "refused" for record in records):
        said += (
            ". The grid does not grow with M and N, and no block may have run a second tile: check "
            "a larger problem by --shape"
        )
    if records and all(each.verdict == "ok" and _unchecked(each.problem) for each in records):
        said += (
            ". No problem has a product, so no multiplication was checked: check one with M, N and "
            "K of at least 1"
        )
    return said


def _outcome(record: CheckRecord) -> str:
    """A verdict in the words of the summary; a wrong result with findings is both."""
    if record.verdict == "findings":
        return "wrong and with findings" if record.correct is False else "with findings"
    words = {"wrong result": "wrong", "limit missed": "with a limit missed"}
    return words.get(record.verdict, record.verdict)


def sizes_hint(records: Sequence[CheckRecord], kernel: Kernel) -> str:
    """A sentence for a kernel that is right only for multiples of its tiles, or only for contiguous
    rows; otherwise empty."""
    if not kernel.user_defined:
        return ""
    if contiguous_only(records):
        taken = [name for name in ("lda", "ldb", "ldc") if name in kernel.passed]
        names = ", ".join(taken[:-1]) + " or " * (len(taken) > 1) + "".join(taken[-1:])
        return (
            "Every problem passed whose rows are contiguous, and none whose rows are padded: "
            f"{names or 'a leading dimension'} seems to be ignored, or exchanged for another size."
        )
    tiles = tiles_of(kernel, kernel.default)
    found = right_multiples(records, (tiles.rows, tiles.columns, tiles.step))
    if found is None:
        return ""
    option = ",".join(map(str, found))
    return (
        f"Every problem passed where {multiples_text(found)}. If the kernel is meant only for such "
        f"sizes, use --multiple-of {option} (in Python multiple_of=({option}))"
    )
