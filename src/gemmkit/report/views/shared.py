"""Which element of A or B lies in which word and bank of shared memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gemmkit.analysis.shared_map import NEVER, SharedMap, SharedPart
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.emulator.counters.rules import WORD_BYTES
from gemmkit.problem import GemmProblem
from gemmkit.report.document import View
from gemmkit.report.layout import Cell, Column, Row, Table, value_text

# The direction of a span: what grows from an element to the next, its column or its row.
_ALONG_ROW, _ALONG_COLUMN = 0, 1


def shared_view(found: SharedMap, problem: GemmProblem) -> View:
    """The words of each tile in shared memory, and the elements in them."""
    shapes: list[list[list[int]]] = []
    parts = []
    for part in found.parts:
        shape = _spans(part)
        if shape not in shapes:
            shapes.append(shape)
        row, column = part.origin
        parts.append(
            {
                "name": _part_name(part),
                "array": part.array,
                "matrix": part.matrix,
                "first": part.start // WORD_BYTES,
                "base": found.starts[part.array] // WORD_BYTES,
                "words": part.words,
                "item": ITEM_BYTES[part.dtype],
                "row": row,
                "column": column,
                "order": order_text(part, problem),
                # Rows of one color would hide how a swizzle permutes them.
                "color": {"row": "column", "column": "row"}[part.order.major]
                if part.order.swizzle and part.order.major != "neither"
                else "",
                "shape": shapes.index(shape),
            }
        )
    data = {"kernel": found.kernel, "parts": parts, "shapes": shapes, "unknown": _unknown(found)}
    return View("shared", data, _table(found, problem))


def _part_name(part: SharedPart) -> str:
    if part.stages == 1:
        return f"{part.array} ({part.matrix})"
    return f"{part.array} ({part.matrix}), stage {part.stage} (tile {part.tile} of k)"


def _unknown(found: SharedMap) -> str:
    if not found.unknown:
        return ""
    names = ", ".join(found.unknown)
    verb = "holds" if len(found.unknown) == 1 else "hold"
    return (
        f"{names} {verb} values in which no element of A or B can be recognized: results, sums, or "
        "elements that were changed on their way."
    )


def order_text(part: SharedPart, problem: GemmProblem) -> str:
    """The order of a part in words: "row-major, pitch 36 words (4 of padding)"."""
    order, item = part.order, ITEM_BYTES[part.dtype]
    if order.major == "neither":
        return "neither row-major nor column-major"
    columns_contiguous = problem.transa if part.matrix == "A" else problem.transb
    said = f"{order.major}-major"
    if (order.major == "column") != columns_contiguous:
        said += " (transposed)"
    if order.interleaved > 1:
        said += f", {order.interleaved} {order.major}s interleaved"
    said += f", pitch {value_text(order.pitch * item / WORD_BYTES)} words"
    # Past the edge of a matrix, lines are not full and yet stored to.
    padding = int((part.elements[: order.pitch, 0] == NEVER).sum())
    if padding:
        said += f" ({value_text(padding * item / WORD_BYTES)} of padding)"
    if order.swizzle:
        chunk = f"chunks of {value_text(order.chunk * item / WORD_BYTES)} words"
        how = {"XOR": "XOR-swizzled", "rotated": "rotated", "permuted": "permuted"}[order.swizzle]
        lines = "line" if order.period == 1 else f"{order.period} lines"
        said += f", {chunk} {how}, the same every {lines}"
    if part.dtype != problem.dtype:
        said += f", converted to {part.dtype}"
    return said


def _table(found: SharedMap, problem: GemmProblem) -> Table:
    alike: dict[tuple[object, ...], list[SharedPart]] = {}
    for part in found.parts:
        key = part.array, part.matrix, part.words, order_text(part, problem), part.order
        alike.setdefault(key, []).append(part)
    rows = tuple(
        Row(
            (
                Cell(first.array),
                Cell(_holding(stages)),
                Cell(_size(first)),
                Cell(order_text(first, problem)),
                Cell(_banks(first.order.column_banks)),
                Cell(_banks(first.order.row_banks)),
            )
        )
        for first, *rest in alike.values()
        for stages in [[first, *rest]]
    )
    columns = (
        Column("array", "left"),
        Column("holds", "left"),
        Column("lines × words"),
        Column("order", "left"),
        Column("banks of a column"),
        Column("banks of a row"),
    )
    notes = (
        "Banks of a column or row: those that hold its first elements, up to 32, and how many "
        "elements these are.",
        *([_unknown(found)] if found.unknown else []),
    )
    return Table(f"Shared memory of {found.kernel}", columns, rows, notes)


def _holding(stages: list[SharedPart]) -> str:
    first = stages[0]
    if first.stages == 1:
        return first.matrix
    held = ", ".join(f"{each.tile} in stage {each.stage}" for each in stages)
    return f"{first.matrix}; tiles of k: {held}"


def _size(part: SharedPart) -> str:
    order = part.order
    if order.major == "neither":
        return value_text(part.words)
    return f"{order.lines} × {value_text(order.pitch * ITEM_BYTES[part.dtype] / WORD_BYTES)}"


def _banks(banks: tuple[int, int]) -> str:
    return f"{banks[0]} for {banks[1]}"


def _spans(part: SharedPart) -> list[list[int]]:
    """The elements of a part in spans of places, for its script.

    A span is its length alone where nothing is stored, length and 0 where no element is known, and
    else length, row and column of the first element relative to the part's, and the direction.
    """
    row, column = part.origin
    held = part.elements
    known = held[:, 0] >= 0
    relative = np.where(known[:, None], held - (row, column), held)
    return list(_lengths(relative, known))


def _lengths(elements: NDArray[np.int64], known: NDArray[np.bool_]) -> Iterable[list[int]]:
    steps = np.diff(elements, axis=0)
    both = known[1:] & known[:-1]
    along = both & (steps == (0, 1)).all(1), both & (steps == (1, 0)).all(1)
    same = ~known[1:] & ~known[:-1] & (steps == 0).all(1)
    start, end = 0, len(elements)
    while start < end:
        row, column = elements[start].tolist()
        if not known[start]:
            stop = _end(same, start)
            yield [stop - start] if row == NEVER else [stop - start, 0]
        else:
            way = _ALONG_COLUMN if start < end - 1 and along[1][start] else _ALONG_ROW
            stop = _end(along[way], start)
            yield [stop - start, row, column, way]
        start = stop


def _end(goes_on: NDArray[np.bool_], start: int) -> int:
    """The place behind a span that goes on from its start while that is true."""
    rest = np.flatnonzero(~goes_on[start:])
    return start + 1 + (int(rest[0]) if len(rest) else len(goes_on) - start)
