"""Suites in several types and layouts as one table: a row for each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gemmkit.bench.peers import CUBLAS
from gemmkit.kernels.layouts import layout_text
from gemmkit.record import PeerRecord, Record
from gemmkit.report.comparison import find_peer, geometric_mean, shape
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.tables import number


def kinds_table(records: Sequence[Record]) -> Table:
    """For each suite, type and layout how gemmkit compares with cuBLAS, in its fastest way, or with
    PyTorch where cuBLAS is missing."""
    found: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.layer is None:
            found[record.suite, record.problem.types, record.problem.layout].append(record)
    columns = (
        Column("suite", "left"),
        Column("types", "left"),
        Column("layout", "left"),
        Column("problems"),
        Column("TFLOP/s, at most"),
        Column("peer's, at most"),
        Column("× peer, geometric mean"),
        Column("least"),
        Column("at", "left"),
        Column("wrong"),
    )
    rows = tuple(Row(_cells(*kind, of_kind)) for kind, of_kind in found.items())
    return Table("", columns, rows)


def _cells(suite: str, types: str, layout: str, records: Sequence[Record]) -> tuple[Cell, ...]:
    compared = [(each, peer) for each in records if (peer := compared_peer(each)) is not None]
    least = min(compared, key=lambda each: each[1].speedup, default=None)
    speeds = [peer.speedup for _, peer in compared]
    wrong = sum(not each.correct for each in records)
    return (
        Cell(suite or MISSING),
        Cell(types),
        Cell(layout_text(layout)),
        Cell(str(len(records))),
        number(max((each.tflops or 0.0 for each in records), default=None), 1),
        number(max((peer.tflops for _, peer in compared), default=None), 1),
        number(geometric_mean(speeds) if speeds else None, 2),
        number(least[1].speedup if least else None, 2),
        Cell(shape(least[0]) if least else MISSING),
        Cell(str(wrong) if wrong else "none"),
    )


def compared_peer(record: Record) -> PeerRecord | None:
    """The peer whose ratio the table has: cuBLAS, or else PyTorch."""
    return find_peer(record, CUBLAS) or find_peer(record, "torch")
