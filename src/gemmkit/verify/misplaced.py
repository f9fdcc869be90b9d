"""Expected values at wrong positions: shifted, exchanged or permuted rows, columns and tiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemmkit.verify.mismatch import Indices, Mismatch, Numbers
from gemmkit.verify.regions import PERIODS

# Results with more elements are not searched for values.
MOST_RESULTS = 2**20
# At least this fraction of the wrong elements must have a value that occurs once in the result.
LEAST_KNOWN = 0.5
SHOWN = 3

# The row and column that the value of each wrong element belongs to.
Sources = tuple[Indices, Indices]


def misplaced_values(mismatch: Mismatch, values: Numbers) -> tuple[str, str] | None:
    """Name and clause of the permutation that explains all wrong elements, or None."""
    m, n, _ = mismatch.shape
    if m * n > MOST_RESULTS or m * n < 2:
        return None
    right = mismatch.whole
    sources, known = _sources(right, values, 2 * mismatch.tolerance)
    if known is None or not mismatch.convincing(m * n):
        return None
    from_rows, from_columns = sources // n, sources % n
    right = right.reshape(m, n)
    for describe in (_shift, _row_map, _column_map, _within_tiles, _tile_map):
        found = describe(mismatch, (from_rows, from_columns), known)
        if found is None:
            continue
        name, clause, (rows, columns) = found
        inside = (rows >= 0) & (rows < m) & (columns >= 0) & (columns < n)
        if inside.all() and mismatch.fits(right[rows, columns]):
            return name, clause
    return None


def _sources(
    right: Numbers, values: Numbers, tolerance: float
) -> tuple[Indices, NDArray[np.bool_] | None]:
    """The index of each value among the expected ones, and which values occur there only once.

    The second is None if some value is not among them, or too few occur only once.
    """
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    low = np.searchsorted(ordered, values - tolerance, "left")
    high = np.searchsorted(ordered, values + tolerance, "right")
    indices = order[np.minimum(low, right.size - 1)]
    known = high - low == 1
    if (high == low).any() or np.count_nonzero(known) < max(1, LEAST_KNOWN * known.size):
        return indices, None
    return indices, known


Found = tuple[str, str, Sources]


def _shift(mismatch: Mismatch, sources: Sources, known: NDArray[np.bool_]) -> Found | None:
    """All values are displaced by the same number of rows and columns."""
    down = np.unique((sources[0] - mismatch.rows)[known])
    along = np.unique((sources[1] - mismatch.columns)[known])
    if down.size != 1 or along.size != 1 or not (down[0] or along[0]):
        return None
    moves = []
    if down[0]:
        moves.append(
            _lines(abs(int(down[0])), "row", "further down" if down[0] > 0 else "further up")
        )
    if along[0]:
        side = "further right" if along[0] > 0 else "further left"
        moves.append(_lines(abs(int(along[0])), "column", side))
    place = mismatch.rows + down[0], mismatch.columns + along[0]
    return "shifted", f"each element holds the value that belongs {' and '.join(moves)}", place


def _lines(count: int, what: str, side: str) -> str:
    return f"{count} {what}{'s' * (count > 1)} {side}"


def _row_map(mismatch: Mismatch, sources: Sources, known: NDArray[np.bool_]) -> Found | None:
    if (sources[1] != mismatch.columns)[known].any():
        return None
    found = _line_map(mismatch.rows, sources[0], known)
    if found is None:
        return None
    return (
        "rows permuted",
        _permutation(found, "row"),
        (_mapped(found, mismatch.rows), mismatch.columns),
    )


def _column_map(mismatch: Mismatch, sources: Sources, known: NDArray[np.bool_]) -> Found | None:
    if (sources[0] != mismatch.rows)[known].any():
        return None
    found = _line_map(mismatch.columns, sources[1], known)
    if found is None:
        return None
    clause = _permutation(found, "column")
    return "columns permuted", clause, (mismatch.rows, _mapped(found, mismatch.columns))


def _line_map(lines: Indices, sources: Indices, known: NDArray[np.bool_]) -> dict[int, int] | None:
    """The line that each line's values come from; None if it is not one line, or unknown."""
    pairs = np.unique(np.stack([lines[known], sources[known]]), axis=1)
    found = {int(line): int(source) for line, source in pairs.T}
    if len(found) != pairs.shape[1] or set(found) != set(map(int, np.unique(lines))):
        return None
    return found


def _mapped(found: dict[int, int], lines: Indices) -> Indices:
    table = np.full(max(found) + 1, -1, np.intp)
    table[list(found)] = list(found.values())
    return table[lines]


def _permutation(found: dict[int, int], what: str) -> str:
    """A permutation of lines, in words."""
    shown = [f"{what} {line} holds {what} {source}" for line, source in sorted(found.items())]
    example = "; ".join(shown[:SHOWN]) + (" …" if len(shown) > SHOWN else "")
    size = max(found) + 1
    for period in (*PERIODS, size):
        ends = {line: line // period * period + period - 1 for line in found}
        turned = {line: ends[line] - line % period for line in found}
        if period > 2 and all(turned[line] == source for line, source in found.items()):
            whose = "" if period == size else f" of each block of {period}"
            return f"the {what}s{whose} are in reverse order ({example})"
    masks = {line ^ source for line, source in found.items()}
    if all(found.get(source) == line for line, source in found.items()):
        mask = masks.pop() if len(masks) == 1 else 0
        if mask and mask.bit_count() == 1 and len(found) > 2:
            whose = f"adjacent {what}s" if mask == 1 else f"blocks of {mask} {what}s"
            return f"{whose} are exchanged ({example})"
        return f"{what}s are exchanged ({example})"
    return f"{what}s are permuted ({example})"


def _within_tiles(mismatch: Mismatch, sources: Sources, known: NDArray[np.bool_]) -> Found | None:
    """Each tile of the result is transposed in place."""
    for side in PERIODS:
        rows = mismatch.rows // side * side + mismatch.columns % side
        columns = mismatch.columns // side * side + mismatch.rows % side
        if (rows == sources[0])[known].all() and (columns == sources[1])[known].all():
            clause = f"each {side} × {side} tile of C is transposed in place"
            return "tiles transposed", clause, (rows, columns)
    return None


def _tile_map(mismatch: Mismatch, sources: Sources, known: NDArray[np.bool_]) -> Found | None:
    """Whole tiles are permuted."""
    n = mismatch.shape[1]
    for side in reversed(PERIODS):
        per_row = -(-n // side)
        down, along = mismatch.rows % side, mismatch.columns % side
        if not ((sources[0] % side == down) & (sources[1] % side == along))[known].all():
            continue
        tiles = mismatch.rows // side * per_row + mismatch.columns // side
        from_tiles = sources[0] // side * per_row + sources[1] // side
        found = _line_map(tiles, from_tiles, known)
        if found is None:
            continue
        shown = [
            f"({tile // per_row}, {tile % per_row}) holds ({source // per_row}, {source % per_row})"
            for tile, source in sorted(found.items())
        ]
        example = "; ".join(shown[:SHOWN]) + (" …" if len(shown) > SHOWN else "")
        source = _mapped(found, tiles)
        place = source // per_row * side + down, source % per_row * side + along
        clause = f"tiles of {side} × {side} are permuted: tile {example}"
        return "tiles permuted", clause, place
    return None
