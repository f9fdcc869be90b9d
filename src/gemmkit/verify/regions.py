"""Describes where elements of a matrix are: rows, columns, a part of each tile, a triangle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Tile sizes and periods of patterns that are tried.
PERIODS = (2, 4, 8, 16, 32, 64, 128)
LISTED = 6
# Matrices with more elements are not searched for patterns in tiles.
MOST_SEARCHED = 2**18

Indices = NDArray[np.intp]


def region(rows: Indices, columns: Indices, shape: tuple[int, int]) -> str:
    """A noun phrase for the elements (rows[i], columns[i]) of a matrix of that shape.

    The elements are distinct, and there is at least one. Empty if they are all of the matrix.
    """
    m, n = shape
    count = rows.size
    if count == m * n:
        return ""
    if count == 1:
        return _element(int(rows[0]), int(columns[0]), shape)
    own_rows, own_columns = np.unique(rows), np.unique(columns)
    if count == own_rows.size * own_columns.size:
        return _block(own_rows, own_columns, shape)
    words = _triangle(rows, columns, shape)
    if not words and m * n <= MOST_SEARCHED:
        words = _in_tiles(rows, columns, shape)
    lowest, highest = own_rows[0], own_rows[-1]
    first, last = own_columns[0], own_columns[-1]
    if not words and count > LISTED and own_rows.size == m and own_columns.size == n:
        words = "scattered across C"
    if not words and count <= LISTED:
        *most, end = (f"[{row}, {column}]" for row, column in zip(rows, columns, strict=True))
        words = f"{', '.join(most)} and {end}"
    return words or f"scattered over rows {lowest} to {highest} and columns {first} to {last}"


def _element(row: int, column: int, shape: tuple[int, int]) -> str:
    """One element, and the edge or corner of the matrix that it is at."""
    m, n = shape
    down = {0: "first", m - 1: "last"}.get(row, "") if m > 1 else ""
    along = {0: "first", n - 1: "last"}.get(column, "") if n > 1 else ""
    words = f"[{row}, {column}]"
    if down and along:
        vertical, side = "upper" if not row else "lower", "left" if not column else "right"
        return f"{words}, the {vertical} {side} corner"
    if down or along:
        return f"{words}, in the {down or along} {'row' if down else 'column'}"
    return words


def _block(rows: Indices, columns: Indices, shape: tuple[int, int]) -> str:
    """The elements where some rows and columns cross."""
    down, along = lines(rows, shape[0], "row"), lines(columns, shape[1], "column")
    if rows.size == shape[0]:
        return along
    if columns.size == shape[1]:
        return down
    return f"{down}, in {along}"


def lines(found: Indices, size: int, what: str) -> str:
    """Some of the `size` rows or columns of a matrix; `found` is sorted and distinct."""
    if found.size == size:
        return f"every {what}"
    first, last = int(found[0]), int(found[-1])
    if found.size == 1:
        place = "the last " if last == size - 1 else "the first " if first == 0 else ""
        return f"{place}{what} ({first})" if place else f"{what} {first}"
    if last - first + 1 == found.size:
        end = "the last " if last == size - 1 else "the first " if first == 0 else ""
        half = f", the {_half(first, what)} half" if 2 * found.size == size and end else ""
        if end:
            return f"{end}{found.size} {what}s ({first} to {last}{half})"
        return f"{what}s {first} to {last}"
    for period in PERIODS:
        residues = np.unique(found % period)
        whole = np.flatnonzero(np.isin(np.arange(size) % period, residues))
        if 2 * residues.size <= found.size == whole.size and residues.size < period:
            return f"the {what}s {_residues(residues, period)}"
    if found.size <= LISTED:
        return f"{what}s {', '.join(map(str, found[:-1]))} and {last}"
    return f"{found.size} {what}s between {first} and {last}"


def _half(first: int, what: str) -> str:
    if what == "row":
        return "lower" if first else "upper"
    return "right" if first else "left"


def _residues(residues: Indices, period: int) -> str:
    """One or more residue classes of a period."""
    if period == 2:
        return f"with {'odd' if residues[0] else 'even'} numbers"
    first, last = int(residues[0]), int(residues[-1])
    if residues.size > 2 and last - first + 1 == residues.size:
        return f"≡ {first} to {last} (mod {period})"
    return f"≡ {', '.join(map(str, residues))} (mod {period})"


def _triangle(rows: Indices, columns: Indices, shape: tuple[int, int]) -> str:
    m, n = shape
    i, j = np.arange(m)[:, None], np.arange(n)
    for mask, words in (
        (i == j, "the diagonal"),
        (i != j, "all but the diagonal"),
        (j > i, "those above the diagonal"),
        (j < i, "those below the diagonal"),
        (j >= i, "those on and above the diagonal"),
        (j <= i, "those on and below the diagonal"),
    ):
        if rows.size == np.count_nonzero(mask) and bool(mask[rows, columns].all()):
            return words
    return ""


def _in_tiles(rows: Indices, columns: Indices, shape: tuple[int, int]) -> str:
    """The same positions in every tile, or whole tiles; empty if neither fits."""
    m, n = shape
    for height in PERIODS:
        for width in PERIODS:
            if 2 * height > m and 2 * width > n:
                continue
            # How often each position in a tile is among the elements, and how often it occurs.
            positions = rows % height * width + columns % width
            seen = np.bincount(positions, minlength=height * width)
            there = np.outer(_residue_counts(m, height), _residue_counts(n, width)).ravel()
            chosen = np.flatnonzero(seen)
            if chosen.size < there.size and bool((seen[chosen] == there[chosen]).all()):
                where = region(chosen // width, chosen % width, (height, width))
                return f"{where} of every {height} × {width} tile"
    for side in reversed(PERIODS):
        if 2 * side > max(shape):
            continue
        per_row = -(-n // side)
        seen = np.bincount(rows // side * per_row + columns // side)
        chosen = np.flatnonzero(seen)
        heights = np.minimum(m - chosen // per_row * side, side)
        widths = np.minimum(n - chosen % per_row * side, side)
        if bool((seen[chosen] == heights * widths).all()):
            return f"{chosen.size} whole tiles of {side} × {side}"
    return ""


def _residue_counts(size: int, period: int) -> Indices:
    """The number of integers below `size` with each residue."""
    return np.bincount(np.arange(size) % period, minlength=period)
