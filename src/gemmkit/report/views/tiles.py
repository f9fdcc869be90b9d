"""The elements of A, B and C that a block loads and stores, by thread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gemmkit.analysis.patterns import ownership
from gemmkit.analysis.trace import Trace
from gemmkit.report.document import View
from gemmkit.report.layout import Cell, Column, Row, Table
from gemmkit.report.pictures.captions import owner_caption


def tile_view(trace: Trace, name: str) -> View:
    """The elements of A, B and C that a block of the kernel of this name loads and stores, by
    thread."""
    owned = [ownership(trace, array) for array in "ABC"]
    rows = tuple(
        Row(
            (
                Cell(each.array),
                Cell("×".join(map(str, each.threads.shape))),
                Cell(owner_caption(each)),
            )
        )
        for each in owned
    )
    columns = (Column("matrix", "left"), Column("elements"), Column("by", "left"))
    tiles = [
        {
            "array": each.array,
            "caption": owner_caption(each),
            "row": each.row,
            "column": each.col,
            "columns": each.threads.shape[1],
            # A line per row of the tile; runs of one thread as pairs of thread and length.
            "rows": [_lengths(line) for line in each.threads.tolist()],
        }
        for each in owned
    ]
    data = {"kernel": name, "warps": trace.warps, "tiles": tiles}
    return View("tiles", data, Table(f"Tiles of a block of {name}", columns, rows))


def _lengths(line: Sequence[int]) -> list[int]:
    """Each run of equal values as the value and its length."""
    return [part for value, run in groupby(line) for part in (value, len(list(run)))]
