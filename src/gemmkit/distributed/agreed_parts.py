"""Whether each rank's bias, C, scales and the like fit its parts of A, B and the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmkit.distributed.agreed_sizes import Sizes, cut
from gemmkit.distributed.placements import Word
from gemmkit.distributed.scale_parts import kinds_of
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.errors import UsageError
from gemmkit.scales import NONE, ScaleKind


def check_parts(
    asked: SpreadProduct, sizes: Sequence[Sizes], told: Sequence[Sequence[Any]]
) -> None:
    """Refuse arrays that do not lie as the result: over one dimension, of any rank.

    Args:
        asked: this rank's.
        sizes: along each dimension of the mesh.
        told: facts and shapes of all ranks along each dimension.

    Raises:
        UsageError: one has another shape or other placements.
    """
    result = tuple(each.rule.result for each in sizes)
    for name, words in asked.placed:
        if words != result:
            raise UsageError(
                f"{name} is placed as {', '.join(words)} and the result as {', '.join(result)}: "
                f"redistribute {name}, or ask for its placement"
            )
    if len(sizes) == 1:
        for rank, (_, (a, b, _, beside)) in enumerate(told[0]):
            _check_shapes(asked, sizes, (rank,), (a[0], b[1]), beside)
        return
    ranks = tuple(team.rank for team in asked.teams)
    beside = {name: shape for name, shape in asked.shapes_beside if shape is not None}
    _check_shapes(asked, sizes, ranks, (asked.a.shape[0], asked.b.shape[1]), beside)


def _check_shapes(
    asked: SpreadProduct,
    sizes: Sequence[Sizes],
    ranks: tuple[int, ...],
    own: tuple[int, int],
    beside: dict[str, Sequence[int]],
) -> None:
    """Refuse what has another shape than a rank's part of the result, or one of its sides.

    Raises:
        UsageError: an array has.
    """
    if not beside:
        return
    rows, columns = result_shape(asked.placements, sizes, ranks, *own)
    place = f"rank {asked.teams[0].global_ranks[ranks[0]]}"
    if len(ranks) > 1:
        place = f"rank {asked.teams[-1].global_ranks[ranks[-1]]}, at {ranks} of the mesh,"
    for name, shape in beside.items():
        if name in ("c", "out", "residual") and tuple(shape) != (rows, columns):
            raise UsageError(
                f"{place} has {name} of shape {tuple(shape)}, and its part of the result is "
                f"{rows}×{columns}: {name} is placed as the result"
            )
        wanted = rows if asked.epilogue.bias == "row" else columns
        if name == "bias" and tuple(shape) != (wanted,):
            raise UsageError(
                f"{place} has a bias of shape {tuple(shape)}, and its part of the result is "
                f"{rows}×{columns}: it has one element for each "
                f"{'row' if asked.epilogue.bias == 'row' else 'column'}"
            )


def result_shape(
    placements: Sequence[tuple[Word, Word]],
    sizes: Sequence[Sizes],
    ranks: Sequence[int],
    rows: int,
    columns: int,
) -> tuple[int, int]:
    """Rows and columns of a rank's part of the result.

    Args:
        placements: of A and B, along each dimension of the mesh.
        sizes: along each dimension.
        ranks: this rank's places along them.
        rows: of its part of A.
        columns: of its part of B.
    """
    for each, (of_a, of_b) in zip(sizes, placements, strict=True):
        if of_a == "S(0)" and each.rule.made != "S(0)":
            rows = sum(each.m)
        if of_b == "S(1)" and each.rule.made != "S(1)":
            columns = sum(each.n)
    for each, (of_a, of_b), rank in reversed(list(zip(sizes, placements, ranks, strict=True))):
        made, result = each.rule.made, each.rule.result
        if made != result and made == "S(0)":
            rows = sum(each.m)
        if made != result and made == "S(1)":
            columns = sum(each.n)
        if result == "S(0)" and (made != result or of_a != "S(0)"):
            rows = cut(each.m, rows)[rank]
        if result == "S(1)" and (made != result or of_b != "S(1)"):
            columns = cut(each.n, columns)[rank]
    return rows, columns


def agree_kinds(asked: SpreadProduct, told: Sequence[Sequence[Any]]) -> tuple[ScaleKind, ScaleKind]:
    """The kinds of the scales of A and of B, the same on all ranks along each dimension.

    Raises:
        UsageError: scales have a shape that belongs to no kind, or to others than another rank's.
    """
    found = []
    for place, name in enumerate(("scale_a", "scale_b")):
        if dict(asked.shapes_beside)[name] is None:
            found.append(NONE)
            continue
        kinds: list[ScaleKind] | None = None
        for team, along in zip(asked.teams, told, strict=True):
            for rank, (_, shapes) in zip(team.global_ranks, along, strict=True):
                lines, k = shapes[place] if place == 0 else reversed(shapes[place])
                shape = shapes[3][name] if place == 0 else shapes[3][name][::-1]
                here = kinds_of(tuple(shape), lines, k)
                both = [each for each in here if kinds is None or each in kinds]
                if not both:
                    known = ", ".join(each.name for each in kinds or ())
                    raise UsageError(
                        f"rank {rank} has {name} of shape {tuple(shapes[3][name])} for its part "
                        f"{'×'.join(map(str, shapes[place]))} of {name[-1].upper()}"
                        + (f", and ranks before have those of kind {known}" if known else "")
                        + ": scales are one for all, one for each row of A or column of B, or one "
                        "for each 128 of k with these or with blocks of 128"
                    )
                kinds = both
        assert kinds is not None
        found.append(kinds[0])
    return found[0], found[1]
