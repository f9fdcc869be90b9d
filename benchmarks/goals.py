"""Hold a file of `run_suites.py` against what gemmkit aims at; exit status 1 where it falls short.

`.venv/bin/python benchmarks/goals.py [FILE]`, by default `results/h100-bench.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmkit import Record
from gemmkit.report.comparison import (
    error_ratio,
    fused_overhead,
    geometric_mean,
    next_tile_share,
    ratios,
    shape,
)
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.readme import read_records

DEFAULT = Path(__file__).resolve().parent / "results" / "h100-bench.json"
HOLES = (1536, 3072)
LARGE = 4096


@dataclass(frozen=True, slots=True)
class Seen:
    """A goal's figure for each record; `worst` is what counts."""

    goal: str
    limit: float
    figures: list[tuple[float, str]]
    at_most: bool = False

    @property
    def worst(self) -> tuple[float, str] | None:
        pick = max if self.at_most else min
        return pick(self.figures, default=None)

    @property
    def missed(self) -> list[str]:
        return [
            where
            for value, where in self.figures
            if (value > self.limit if self.at_most else value < self.limit)
        ]


def goals(records: Sequence[Record]) -> list[Seen]:
    """Every goal with what the records say of it."""

    def of(*suites: str) -> list[Record]:
        return [each for each in records if each.suite in suites]

    def each_of(
        chosen: Iterable[Record], figure: Callable[[Record], float | None]
    ) -> list[tuple[float, str]]:
        return [(value, shape(one)) for one in chosen if (value := figure(one)) is not None]

    def ratio(record: Record) -> float | None:
        return record.ratio_to_cublas

    def copied(record: Record) -> float | None:
        return record.profile.copy_share if record.profile else None

    def overhead(record: Record) -> float | None:
        """Of what needs no further matrix: a residual or an auxiliary output moves more bytes."""
        more = {"residual", "aux"} & set(record.problem.epilogue.split("+"))
        return None if more else fused_overhead(record)

    def right(record: Record) -> float:
        return float(record.correct and all(peer.correct for peer in record.peers))

    sized = of("square", "k1024")
    mean = [(geometric_mean(ratios(sized)), f"{len(sized)} sizes")] if ratios(sized) else []
    large = [each for each in of("square") if each.problem.m >= LARGE]
    holes = [each for each in of("k1024") if each.problem.m in HOLES]
    return [
        Seen("squares and K = 1024: x cuBLAS", 1.0, each_of(sized, ratio)),
        Seen("squares and K = 1024: geometric mean", 1.15, mean),
        Seen("squares from 4096: x cuBLAS", 1.04, each_of(large, ratio)),
        Seen("1536 and 3072, K = 1024: x cuBLAS", 1.25, each_of(holes, ratio)),
        Seen("off-tile: x cuBLAS", 1.0, each_of(of("off-tile"), ratio)),
        Seen(
            "off-tile: speed over the next tile multiple's",
            0.93,
            each_of(of("off-tile"), lambda each: next_tile_share(each, records)),
        ),
        Seen("skinny: x cuBLAS", 1.0, each_of(of("skinny"), ratio)),
        Seen("skinny: share of the copy bandwidth", 0.9, each_of(of("skinny"), copied)),
        Seen("fused: x cuBLASLt's fused epilogue", 1.0, each_of(of("fused"), ratio)),
        Seen("fused: over the plain product", 0.015, each_of(of("fused"), overhead), True),
        Seen("max error over cuBLAS's", 2.0, each_of(records, error_ratio), True),
        Seen("right, and peers too", 1.0, each_of(records, right)),
    ]


def table(found: Sequence[Seen]) -> Table:
    """A row a goal."""
    columns = (
        Column("goal", "left"),
        Column("limit"),
        Column("worst"),
        Column("at", "left"),
        Column("missed", "left"),
    )
    rows = []
    for seen in found:
        value, where = seen.worst or (None, MISSING)
        missed = seen.missed
        sign = "<=" if seen.at_most else ">="
        cells = (
            Cell(seen.goal),
            Cell(f"{sign} {seen.limit:g}"),
            Cell(MISSING if value is None else f"{value:.3f}"),
            Cell(where),
            Cell(f"{len(missed)}: {', '.join(missed)}" if missed else "none"),
        )
        rows.append(Row(cells))
    return Table("Goals", columns, tuple(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=DEFAULT, help="of run_suites.py")
    arguments = parser.parse_args()
    if not arguments.file.is_file():
        parser.error(f"there is no file {arguments.file}: write it with run_suites.py")
    found = goals(read_records(arguments.file))
    print(table(found).to_text().plain)
    return 1 if any(seen.missed or seen.worst is None for seen in found) else 0


if __name__ == "__main__":
    sys.exit(main())
