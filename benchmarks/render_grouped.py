"""Write the table of grouped products in `docs/library.md` anew, from what `grouped.py` measured.

`.venv/bin/python benchmarks/render_grouped.py [FILE]`, by default `results/h100-grouped.json`; no
GPU needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gemmkit.gpu import find_board
from gemmkit.record import TimeRecord
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.limiters import busiest_unit
from gemmkit.report.readme import replace_generated

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "benchmarks" / "results" / "h100-grouped.json"
PAGE = ROOT / "docs" / "library.md"
SECTION, WRITER = "grouped products", "benchmarks/render_grouped.py"
BOARD = find_board("h100")

# Others by a part of their names.
PEERS = ("cublasSgemmBatched", "cublasSgemmGroupedBatched", "torch.bmm", "torch.mm each")

COLUMNS = (
    Column("products", "left"),
    Column("tile", "left"),
    Column("µs"),
    Column("TFLOP/s"),
    *(Column(name.removesuffix(" each")) for name in PEERS),
    Column("limiter", "left"),
)


class Entry(msgspec.Struct, frozen=True):
    """One way to all products of a case."""

    name: str
    time_us: TimeRecord
    tflops: float
    gb_per_s: float
    ratio: float
    wrong: str


class Case(msgspec.Struct, frozen=True):
    """What a line of the results tells of a case; gemmkit's entry is the first."""

    case: str
    config: dict[str, int]
    filled: float
    aligned: bool
    entries: list[Entry]
    environment: dict[str, Any]


def limiter(case: Case) -> str:
    """The unit that is busy for half of the time at least; and what else costs time."""
    own = case.entries[0]
    unit = busiest_unit(own.tflops, own.gb_per_s, BOARD)
    found = [unit] if unit else []
    if case.filled < 0.75:
        found.append(f"tiles {case.filled:.0%} full")
    if not case.aligned:
        found.append("copies of single floats")
    return "; ".join(found) or "latency of short products"


def table(cases: Sequence[Case]) -> Table:
    """A row per case: its time, and that of others over it."""
    rows = []
    for case in cases:
        own, *others = case.entries
        words = [
            case.case.replace("^3", "³").replace(" x ", " × "),
            f"{case.config['BM']}×{case.config['BN']}",
            f"{own.time_us.median:,.1f}",
            f"{own.tflops:.1f}",
            *(_ratio(others, name) for name in PEERS),
            limiter(case),
        ]
        rows.append(Row(tuple(map(Cell, words))))
    return Table("Many products in one launch", COLUMNS, tuple(rows))


def section(cases: Sequence[Case]) -> str:
    """The table with what it was measured on, in Markdown."""
    where = cases[0].environment
    wrong = sum(bool(each.wrong) for case in cases for each in case.entries)
    verdict = "all right" if not wrong else f"{wrong} WRONG"
    return (
        f"{table(cases).to_markdown()}\n"
        "Times of others over gemmkit's: above 1 gemmkit is faster. `torch.mm` is a launch for "
        "each product. CUDA graphs, in turn; results on integers, whose products are exact: "
        f"{verdict}. {where['gpu']}, commit {where.get('commit', 'unknown')}.\n"
    )


def read(path: Path) -> list[Case]:
    """The cases of a result file."""
    return [msgspec.json.decode(line, type=Case) for line in path.read_bytes().splitlines()]


def _ratio(entries: Sequence[Entry], name: str) -> str:
    for entry in entries:
        if f"({name})" in entry.name:
            return f"{entry.ratio:.2f}"
    return MISSING


def main() -> None:
    cases = read(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
    text = replace_generated(PAGE.read_text("utf-8"), {SECTION: section(cases)}, WRITER)
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
