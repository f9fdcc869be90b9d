"""Rows of A of more than one dimension: which of them is spread, and how they become lines."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gemmkit.distributed.placements import Word, read_placement
from gemmkit.distributed.splits import shares
from gemmkit.distributed.team import Team
from gemmkit.errors import UnsupportedProblem


def row_dimension(a: Any, dimensions: int, placements: Any, placement: Any, spread: bool) -> int:
    """The dimension of a and of the result that is spread as rows, 0 if none is.

    Raises:
        UnsupportedProblem: there are two.
    """
    given: list[Any] = list(a.placements) if spread else _listed(placements[0])
    given += _listed(placement)
    found = set()
    for each in given:
        place = getattr(each, "dim", None)
        if place is None and isinstance(each, str) and read_placement(each, dimensions) == "S(0)":
            place = int("".join(mark for mark in each if mark in "-0123456789"))
        if place is not None and place % dimensions != dimensions - 1:
            found.add(place % dimensions)
    if len(found) > 1:
        raise UnsupportedProblem(
            f"a and the result are spread along the dimensions {sorted(found)}: redistribute a "
            "along one of them"
        )
    return found.pop() if found else 0


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def flat(array: Any, rows: int) -> tuple[Any, tuple[int, ...]]:
    """Rows of two dimensions, the spread one first, and the sizes of the leading dimensions."""
    if array.dim() == 2:
        return array, tuple(array.shape[:1])
    turned = array.movedim(rows, 0)
    return turned.flatten(0, -2), tuple(turned.shape[:-1])


def matrix_of_scales(scales: Any, rows: int) -> Any:
    """Scales of an operand's lines as a matrix, of one element or with the rows of `flat`."""
    if scales.dim() == 2:
        return scales
    return scales.reshape(1, 1) if scales.numel() == 1 else flat(scales, rows)[0]


def part_of_rows(
    leading: Sequence[int],
    columns: int,
    teams: Sequence[Team],
    words: Sequence[tuple[Word, Word]],
    wanted: Sequence[Word | None],
) -> tuple[int, ...]:
    """The rows and columns that this rank is to have of a result whose rows have several dimensions
    and become spread: whole lines of the others, and not what `torch.chunk` makes of all rows."""
    if len(leading) == 1:
        return ()
    for team, (of_a, _), of_result in zip(teams, words, wanted, strict=True):
        if of_result == "S(0)" and of_a != "S(0)":
            own = shares(leading[0], team.size)[team.rank].size
            return own * prod(leading[1:]), columns
    return ()


def unflat(made: Any, leading: Sequence[int], rows: int) -> Any:
    """Lines as rows of as many dimensions as they had."""
    if len(leading) == 1:
        return made
    # How many lines there are of the spread dimension may have changed.
    return made.unflatten(0, (-1, *leading[1:])).movedim(0, rows)
