"""The part of the README that comes out of result files, and the pictures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmkit.errors import UsageError
from gemmkit.record import Record
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.plots import ladder_svg, sweep_svg
from gemmkit.report.tables import kernel_label, ladder_table

BEGIN = "<!-- results: written by benchmarks/render_readme.py -->"
END = "<!-- end of results -->"
LADDER_SUFFIX, SWEEP_SUFFIX = "-ladder.json", "-sweep.json"


@dataclass(frozen=True, slots=True)
class Rendering:
    """The README's generated lines, and the pictures they show: file name to SVG text."""

    markdown: str
    pictures: dict[str, str]


def read_records(path: Path) -> list[Record]:
    """The records of a file that `--json` wrote.

    Raises:
        UsageError: a line is no record.
    """
    import msgspec

    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            records.append(Record.from_json(line))
        except msgspec.DecodeError as error:
            raise UsageError(f"{path.name}, line {number}, is no record: {error}") from error
    return records


def render(results: Path, picture_folder: str) -> Rendering:
    """Everything that the result files of a folder give.

    Files named `…-ladder.json` become a table and a picture each, files named `…-sweep.json` a
    picture; timed ones come first. `picture_folder` is the pictures' folder as the README links
    to it.
    """
    parts: list[str] = []
    pictures: dict[str, str] = {}

    def show(path: Path, records: Sequence[Record], svg: str) -> None:
        pictures[f"{path.stem}.svg"] = svg
        parts.append(f"![{_heading(records)}]({picture_folder}/{path.stem}.svg)\n")

    ladders = [(path, read_records(path)) for path in sorted(results.glob(f"*{LADDER_SUFFIX}"))]
    for path, records in sorted(ladders, key=lambda each: not _timed(each[1])):
        table = _speed_table(records) if _timed(records) else _counter_table(records)
        parts += [f"**{_heading(records)}**\n", table.to_markdown(), *table.footnotes]
        show(path, records, ladder_svg(records))
    for path in sorted(results.glob(f"*{SWEEP_SUFFIX}")):
        records = read_records(path)
        show(path, records, sweep_svg(records))
    return Rendering("\n".join(parts), pictures)


def replace_generated(readme: str, markdown: str) -> str:
    """The README with the lines between the two markers replaced.

    Raises:
        UsageError: it lacks a marker.
    """
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise UsageError(f"the README lacks one of the lines '{BEGIN}' and '{END}'")
    return f"{head}{BEGIN}\n\n{markdown}\n{END}{tail}"


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
    """A row a kernel; for each size TFLOP/s and how that compares with the peer."""
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
                    Cell(any_record.idea),
                    Cell("yes" if correct else "**no**"),
                    *(_speed(seen.get(size)) for size in sizes),
                )
            )
        )
    return Table("", columns, tuple(rows), (_conditions(records[0]),))


def _speed(record: Record | None) -> Cell:
    if record is None or record.tflops is None:
        return Cell(MISSING)
    compared = f" ({record.baseline.speedup:.2f})" if record.baseline else ""
    return Cell(f"{record.tflops:.1f}{compared}")


def _counter_table(records: Sequence[Record]) -> Table:
    table = ladder_table(records)
    rows = tuple(
        Row((row.cells[0], Cell(f"`{row.cells[1].text}`"), *row.cells[2:])) for row in table.rows
    )
    return Table("", table.columns, rows, tuple(f"{note}\n" for note in table.footnotes))


def _conditions(record: Record) -> str:
    """What the figures depend on, in a line."""
    names = ("driver", "compiler", "commit", "inputs")
    facts = [f"{name} {record.environment[name]}" for name in names if name in record.environment]
    peer = f"cuBLAS is {record.baseline.name}, timed in turn in the same run. " if (
        record.baseline
    ) else ""  # fmt: skip
    return f"{peer}Median of {record.time_us.samples if record.time_us else 0} samples" + (
        f"; {', '.join(facts)}.\n" if facts else ".\n"
    )
