"""What single wrong elements hold, where no hypothesis explains them: a few numbers prove little.

One number is near to some element of a large result by chance, so only what is simple is named:
zero, what C held before, the wrong sign, and what an element nearby or in the same line must be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gemmkit.verify.reference import Expected, evaluate
from gemmkit.verify.scene import Places, Scene

# So many wrong elements are told one by one.
FEW = 4

# Rounding nearly always stays below this share of its bound, which is for the worst order of terms.
LIKELY = 0.25
# A value that is found by accident with a larger chance tells nothing.
CHANCE = 1e-3

_NEIGHBOURS = {
    (0, 1): "to its right",
    (0, -1): "to its left",
    (1, 0): "below it",
    (-1, 0): "above it",
    (1, 1): "to its lower right",
    (1, -1): "to its lower left",
    (-1, 1): "to its upper right",
    (-1, -1): "to its upper left",
}


def told(scene: Scene) -> tuple[tuple[str, ...], bool]:
    """A clause for each element of the scene, and whether each is a value that has a name."""
    held = [next(_values(scene, number), "") for number in range(scene.rows.size)]
    return tuple(_clause(scene, *each) for each in enumerate(held)), all(held)


def _clause(scene: Scene, number: int, held: str) -> str:
    if not held:
        more = float(scene.found[number] - scene.right[number])
        held = f"{abs(more):.6g} {'more' if more > 0 else 'less'} than it must be"
    return f"C[{scene.rows[number]}, {scene.columns[number]}] is {held}"


def _values(scene: Scene, number: int) -> Iterator[str]:
    """What an element's value may be, in words, the simplest first."""
    row, column = int(scene.rows[number]), int(scene.columns[number])
    found = float(scene.found[number])
    if found == 0:
        yield "zero"
    if scene.beta and found == scene.c[row, column]:
        yield "what C held there before"
    magnitude = float(_expected(scene, [row], [column]).magnitude[0, 0])
    bound = scene.rounding.of_magnitude * magnitude + scene.rounding.absolute
    yield from _elsewhere(scene, (row, column), found, bound)


def _elsewhere(scene: Scene, place: tuple[int, int], found: float, bound: float) -> Iterator[str]:
    """Whose value it is: its own with the other sign, or that of another in its row or column."""
    (row, column), (m, n, _) = place, scene.shape
    near_by = (
        np.arange(max(row - 1, 0), min(row + 2, m)),
        np.arange(max(column - 1, 0), min(column + 2, n)),
    )
    lines = ((np.array([row]), np.arange(n)), (np.arange(m), np.array([column])))
    spread = max(float(np.std(_expected(scene, *each).values)) for each in lines)
    near = LIKELY * bound
    # A value drawn at random is so near to one of a number of values with this chance.
    chance = 2 * near / max(spread, 1e-300) if scene.inputs.kind == "normal" else 1.0
    right = float(_expected(scene, [row], [column]).values[0, 0])
    if right and abs(found + right) <= near and chance <= CHANCE:
        yield "the expected number with the wrong sign"
    for rows, columns in (near_by, *lines):
        values = _expected(scene, rows, columns).values
        if chance * values.size > CHANCE:
            continue
        for down, along in np.argwhere(np.abs(values - found) <= near):
            at = int(rows[down]), int(columns[along])
            if at != place:
                side = _NEIGHBOURS.get((at[0] - row, at[1] - column), "")
                yield f"what C[{at[0]}, {at[1]}]{side and f' {side}'} must be"


def _expected(
    scene: Scene, rows: Places | Sequence[int], columns: Places | Sequence[int]
) -> Expected:
    return evaluate(scene.problem, scene.inputs, np.asarray(rows), np.asarray(columns))
