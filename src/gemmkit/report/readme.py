"""What is generated from result files: the READMEs' session, `docs/results.md`, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from gemmkit.analysis.explain.wording import listed
from gemmkit.bench.ladder import DEFAULT_SIZE
from gemmkit.errors import UsageError
from gemmkit.gpu import DEFAULT_BOARD
from gemmkit.kernels.catalog import LADDER, PRODUCTION
from gemmkit.record import Record
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.performance import performance
from gemmkit.report.plots import ladder_svg, sweep_svg
from gemmkit.report.tables import kernel_label, ladder_table
from gemmkit.report.terminal import DARK, LIGHT, terminal_svg
from gemmkit.report.translation import CHINESE, ENGLISH, phrases

if TYPE_CHECKING:
    from rich.text import Text

# Pages and pictures, by their paths in the repository, and the pages' sections.
README, RESULTS_PAGE, PICTURES = "README.md", "docs/results.md", "docs/images"
README_CHINESE = "README.zh-CN.md"
SESSION, RESULTS, COUNTED = "session", "results", "counted"
WRITER = "benchmarks/render_readme.py"
LADDER_SUFFIX, SWEEP_SUFFIX, BENCH_SUFFIX = "-ladder.json", "-sweep.json", "-bench.json"
# The language of each README.
_LANGUAGES = {README: ENGLISH, README_CHINESE: CHINESE}
# The rungs in the README's picture: those between which a counter changes most.
PICTURED = ("naive_uncoalesced", "naive", "shared_tiling", "coarsening_2d", "warp_tiled")


@dataclass(frozen=True, slots=True)
class Rendering:
    """The generated sections of each page, and the pictures: file name to SVG text."""

    pages: dict[str, dict[str, str]]
    pictures: dict[str, str]


def read_records(path: Path) -> list[Record]:
    """The records of a file that `--json` wrote.

    Raises:
        UsageError: a line is not a record.
    """
    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            records.append(Record.from_json(line))
        except msgspec.DecodeError as error:
            raise UsageError(f"{path.name}, line {number}, is not a record: {error}") from error
    return records


def render(results: Path) -> Rendering:
    """Render the result files of a folder.

    On the page of results, files named `…-bench.json` become tables and pictures of suites. Files
    named `…-ladder.json` become a picture each, timed ones a table too; files named `…-sweep.json`
    a picture. The first ladder that was not timed is shown as a terminal session, and `PICTURED` of
    it as the picture of one in both READMEs.
    """
    measured: list[str] = []
    counted: list[str] = []
    pictures: dict[str, str] = {}
    folder = PurePosixPath(PICTURES).relative_to(PurePosixPath(RESULTS_PAGE).parent)
    sessions = dict.fromkeys(_LANGUAGES, "")

    def show(path: Path, records: Sequence[Record], svg: str) -> None:
        pictures[f"{path.stem}.svg"] = svg
        parts = measured if _timed(records) else counted
        parts.append(f"![{_heading(records)}]({folder}/{path.stem}.svg)\n")

    for path in sorted(results.glob(f"*{BENCH_SUFFIX}")):
        found = performance(read_records(path), f"{folder}/{path.stem}")
        measured += [found.markdown] if found.markdown else []
        pictures.update({f"{path.stem}{end}.svg": svg for end, svg in found.pictures.items()})
    for path in sorted(results.glob(f"*{LADDER_SUFFIX}")):
        records = read_records(path)
        if _timed(records):
            table = _speed_table(records)
            measured += [f"**{_heading(records)}**\n", table.to_markdown(), *table.footnotes]
        elif not any(sessions.values()):
            counted.append(_session(records))
            sessions, drawn = _pictured_sessions(records, path.stem)
            pictures |= drawn
        show(path, records, ladder_svg(records))
    for path in sorted(results.glob(f"*{SWEEP_SUFFIX}")):
        records = read_records(path)
        show(path, records, sweep_svg(records))
    generated = {RESULTS: "\n".join(measured), COUNTED: "\n".join(counted)}
    pages = {page: {SESSION: session} for page, session in sessions.items()}
    return Rendering(pages | {RESULTS_PAGE: generated}, pictures)


def replace_generated(page: str, sections: Mapping[str, str], writer: str = WRITER) -> str:
    """A page with the text between the markers of each section replaced.

    Raises:
        UsageError: it lacks a marker.
    """
    for name, markdown in sections.items():
        begin, end = markers(name, writer)
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (found and closed):
            raise UsageError(f"the page lacks one of the lines '{begin}' and '{end}'")
        page = f"{head}{begin}\n\n{markdown}\n{end}{tail}"
    return page


def markers(section: str, writer: str = WRITER) -> tuple[str, str]:
    """The lines that enclose a section that the script `writer` generates."""
    return (
        f"<!-- {section}: written by {writer} -->",
        f"<!-- end of {section} -->",
    )


def _session(records: Sequence[Record]) -> str:
    """The output of the ladder on the emulator, as Markdown."""
    command = f"python3 run.py ladder --device emulator{_ladder_options(records)}"
    return f"```console\n{_ladder_output(command, records).plain}```\n"


def _pictured_sessions(
    records: Sequence[Record], stem: str
) -> tuple[dict[str, str], dict[str, str]]:
    """The output for the rungs in `PICTURED`, as HTML by page, and its pictures by file name."""
    shown = [record for record in records if record.kernel in PICTURED]
    names = ",".join(record.kernel for record in shown)
    command = f"gemmkit ladder --device emulator{_ladder_options(shown)} --kernels {names}"
    text = _ladder_output(command, shown)
    title = f"A terminal: {command}"
    light, dark = f"{stem}-light.svg", f"{stem}-dark.svg"
    sessions = {
        page: (
            "<picture>\n"
            f'  <source media="(prefers-color-scheme: dark)" srcset="{PICTURES}/{dark}">\n'
            f'  <img alt="{phrases(language).say(title)}" src="{PICTURES}/{light}">\n'
            "</picture>\n"
        )
        for page, language in _LANGUAGES.items()
    }
    return sessions, {light: terminal_svg(text, LIGHT), dark: terminal_svg(text, DARK)}


def _ladder_options(records: Sequence[Record]) -> str:
    """The options of `gemmkit ladder` that differ from the defaults."""
    problem, gpu = records[0].problem, records[0].device.gpu
    shape = "" if problem.m == DEFAULT_SIZE else f" --size {problem.m}"
    return shape + ("" if gpu == DEFAULT_BOARD.name else f" --gpu '{gpu}'")


def _ladder_output(command: str, records: Sequence[Record]) -> Text:
    """A command and what it prints."""
    from rich.text import Text

    current = [msgspec.structs.replace(each, idea=_own_idea(each)) for each in records]
    table = ladder_table(current)
    # As the command prints it, row by row.
    layout = table.layout(growing=True)
    return Text.assemble(
        f"$ {command}\nRunning on the emulator, for {records[0].device.gpu}.\n",
        table.head_text(layout),
        *(table.row_text(row, layout) for row in table.rows),
        table.foot_text(layout),
    )


def _timed(records: Sequence[Record]) -> bool:
    return any(record.time_us for record in records)


def _heading(records: Sequence[Record]) -> str:
    first = records[0]
    if _timed(records):
        return f"Measured on an {first.device.gpu}"
    return (
        f"Counted with no GPU, for an {first.device.gpu}, "
        f"{first.problem.m}x{first.problem.n}x{first.problem.k}"
    )


def _speed_table(records: Sequence[Record]) -> Table:
    """A row per kernel, with TFLOP/s and the ratio to the peer for each size."""
    sizes = sorted({record.problem.m for record in records})
    by_kernel: dict[str, dict[int, Record]] = {}
    for record in records:
        by_kernel.setdefault(kernel_label(record), {})[record.problem.m] = record
    columns = (
        Column("#"),
        Column("kernel", "left"),
        Column("what it adds", "left"),
        Column("correct", "left"),
        *(Column(f"{size}³, TFLOP/s (× cuBLAS)") for size in sizes),
    )
    rows = []
    for label, seen in by_kernel.items():
        any_record = next(iter(seen.values()))
        correct = all(record.correct for record in seen.values())
        rows.append(
            Row(
                (
                    Cell(str(any_record.rung or MISSING)),
                    Cell(f"`{label}`"),
                    Cell(_idea(any_record)),
                    Cell("yes" if correct else "**no**"),
                    *(_speed(seen.get(size)) for size in sizes),
                )
            )
        )
    return Table("", columns, tuple(rows), (_conditions(records),))


def _idea(record: Record) -> str:
    fused = record.problem.epilogue
    if fused != "none":
        return f"The same with {fused.replace('+', ' and ')} fused."
    return _own_idea(record)


def _own_idea(record: Record) -> str:
    """A record has the words of its day; those of the kernel's module are kept up to date."""
    kernels = (*LADDER, *PRODUCTION)
    return next((each.idea for each in kernels if each.name == record.kernel), record.idea)


def _speed(record: Record | None) -> Cell:
    if record is None or record.tflops is None:
        return Cell(MISSING)
    compared = f" ({record.baseline.speedup:.2f})" if record.baseline else ""
    return Cell(f"{record.tflops:.1f}{compared}")


def _conditions(records: Sequence[Record]) -> str:
    """The conditions of measurement, in one line."""
    timed = [record for record in records if record.time_us is not None]
    samples = sorted(record.time_us.samples for record in timed if record.time_us is not None)
    parts = [f"Each time is the median of {samples[0]} to {samples[-1]} samples"] if samples else []
    peers = {r.problem.m: r.baseline.name for r in records if r.baseline is not None}
    if peers:
        named = "; ".join(f"{size}³: {name}" for size, name in sorted(peers.items()))
        parts.append(f"the peer, timed in turn in the same run, is its fastest at {named}")
    seen = {record.kernel for record in records}
    dtypes = {record.problem.dtype for record in records}
    rungs = [each for each in LADDER if dtypes.intersection(each.dtypes)]
    absent = [f"`{each.name}`" for each in rungs if each.name not in seen]
    if absent:
        parts.append(f"no record for {listed(absent)}, which these sizes do not suit")
    facts = records[0].environment
    names = ("driver", "compiler", "sm_clock_max_mhz", "commit", "inputs")
    parts += [f"{name.replace('_', ' ')} {facts[name]}" for name in names if name in facts]
    return "; ".join(parts) + ".\n"
