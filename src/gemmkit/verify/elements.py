"""Describes single wrong elements that no hypothesis explains.

A number is close to some element of a large result by chance, so only simple cases are named: zero,
the previous value of C, the wrong sign, and the expected value of an element nearby or in the same
row or column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gemmkit.verify.mismatch import Indices, Mismatch
from gemmkit.verify.reference import Expected, evaluate

# Up to this many wrong elements are described one by one.
FEW = 4

# Rounding errors nearly always stay below this fraction of the bound, which holds for the worst
# order of summation.
LIKELY = 0.25
# A value that would match by chance with a larger probability is not evidence.
CHANCE = 1e-3

_NEIGHBORS = {
    (0, 1): "to its right",
    (0, -1): "to its left",
    (1, 0): "below it",
    (-1, 0): "above it",
    (1, 1): "to its lower right",
    (1, -1): "to its lower left",
    (-1, 1): "to its upper right",
    (-1, -1): "to its upper left",
}


def describe_elements(mismatch: Mismatch) -> tuple[tuple[str, ...], bool]:
    """A clause for each element of the mismatch, and whether all their values have a name."""
    held = [next(_values(mismatch, number), "") for number in range(mismatch.rows.size)]
    return tuple(_clause(mismatch, *each) for each in enumerate(held)), all(held)


def _clause(mismatch: Mismatch, number: int, held: str) -> str:
    if not held:
        more = float(mismatch.found[number] - mismatch.right[number])
        held = f"{abs(more):.6g} {'more' if more > 0 else 'less'} than it should be"
    return f"C[{mismatch.rows[number]}, {mismatch.columns[number]}] is {held}"


def _values(mismatch: Mismatch, number: int) -> Iterator[str]:
    """Descriptions that fit an element's value, the simplest first."""
    row, column = int(mismatch.rows[number]), int(mismatch.columns[number])
    found = float(mismatch.found[number])
    if found == 0:
        yield "zero"
    if mismatch.beta and found == mismatch.c[row, column]:
        yield "the previous value of C"
    magnitude = float(_expected(mismatch, [row], [column]).magnitude[0, 0])
    bound = mismatch.rounding.of_magnitude * magnitude + mismatch.rounding.absolute
    yield from _elsewhere(mismatch, (row, column), found, bound)


def _elsewhere(
    mismatch: Mismatch, own: tuple[int, int], found: float, bound: float
) -> Iterator[str]:
    """The value as the negated expected one, or as that of an element nearby or in its lines."""
    (row, column), (m, n, _) = own, mismatch.shape
    near_by = (
        np.arange(max(row - 1, 0), min(row + 2, m)),
        np.arange(max(column - 1, 0), min(column + 2, n)),
    )
    lines = ((np.array([row]), np.arange(n)), (np.arange(m), np.array([column])))
    spread = max(float(np.std(_expected(mismatch, *each).values)) for each in lines)
    near = LIKELY * bound
    # The probability that a random value is this close to a given one.
    chance = 2 * near / max(spread, 1e-300) if mismatch.inputs.kind == "normal" else 1.0
    right = float(_expected(mismatch, [row], [column]).values[0, 0])
    if right and abs(found + right) <= near and chance <= CHANCE:
        yield "the expected value with the wrong sign"
    for rows, columns in (near_by, *lines):
        values = _expected(mismatch, rows, columns).values
        if chance * values.size > CHANCE:
            continue
        for down, along in np.argwhere(np.abs(values - found) <= near):
            at = int(rows[down]), int(columns[along])
            if at != own:
                side = _NEIGHBORS.get((at[0] - row, at[1] - column), "")
                yield f"what C[{at[0]}, {at[1]}]{side and f' {side}'} should be"


def _expected(
    mismatch: Mismatch, rows: Indices | Sequence[int], columns: Indices | Sequence[int]
) -> Expected:
    return evaluate(mismatch.problem, mismatch.inputs, np.asarray(rows), np.asarray(columns))
