"""Each rank's share of m, n and k, by what all ranks say of their parts; and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemmkit.distributed.placements import Rule, Word, rule
from gemmkit.distributed.splits import shares
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.errors import DistributedError, UnsupportedProblem

# Of a whole shape that is given as m, n and k; those of DTensors are longer.
_SHAPE = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Each rank's share of m, n and k along one dimension of the mesh, and the rule there."""

    rule: Rule
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


def agree_along(
    every: Sequence[Any],
    placements: tuple[Word, Word],
    wanted: Word | None,
    names: Sequence[int],
    *,
    alone: bool,
) -> Sizes:
    """The shares along one dimension of the mesh, which may be `alone`, by what its ranks say:
    facts that are the same on all, and their shapes. `names` are the ranks' global numbers.

    Raises:
        DistributedError: ranks ask for different products.
    """
    for rank, (other, _) in zip(names, every, strict=True):
        for name, value in other.items():
            if value != every[0][0][name]:
                raise DistributedError(
                    f"ranks ask for different products: rank {names[0]} has the {name} "
                    f"{_told(every[0][0][name])}, rank {rank} {_told(value)}"
                )
    rows_a, columns_a = _sides("a", placements[0], [each[1][0] for each in every], names)
    rows_b, columns_b = _sides("b", placements[1], [each[1][1] for each in every], names)
    a, b = placements
    whole_a, whole_b = (
        sum(columns_a) if a == "S(1)" else columns_a[0],
        sum(rows_b) if b == "S(0)" else rows_b[0],
    )
    ranks = range(len(every))
    if a == "S(1)" and b == "S(0)" and columns_a != rows_b:
        rank = next(each for each in ranks if columns_a[each] != rows_b[each])
        raise DistributedError(
            f"rank {names[rank]} has {columns_a[rank]} columns of A and {rows_b[rank]} rows of B: "
            "both are its share of k"
        )
    if alone and whole_a != whole_b:
        raise DistributedError(f"A has {whole_a} columns and B has {whole_b} rows on all ranks")
    whole = every[0][0]["shape"]
    if alone and len(whole) == _SHAPE:
        found_shape = [
            sum(rows_a) if a == "S(0)" else rows_a[0],
            sum(columns_b) if b == "S(1)" else columns_b[0],
            whole_a,
        ]
        if found_shape != whole:
            raise DistributedError(
                f"shape = {tuple(whole)} is given as (m, n, k), and all ranks together have "
                f"{tuple(found_shape)}"
            )
    bytes_a = sum(rows_a) * whole_a if a == "S(0)" else rows_a[0] * whole_a
    bytes_b = whole_a * (sum(columns_b) if b == "S(1)" else columns_b[0])
    found = rule(a, b, wanted, bytes_a=bytes_a, bytes_b=bytes_b)
    k = columns_a if a == "S(1)" else rows_b if b == "S(0)" else _shares(whole_a, len(every))
    m = rows_a if a == "S(0)" else _shares(rows_a[0], len(every))
    n = columns_b if b == "S(1)" else _shares(columns_b[0], len(every))
    part = every[0][1][2]
    if part and wanted == "S(0)":
        m = [each[1][2][0] for each in every]
    if part and wanted == "S(1)":
        n = [each[1][2][1] for each in every]
    return Sizes(found, tuple(m), tuple(n), tuple(k))


def _shares(size: int, ranks: int) -> list[int]:
    return [each.size for each in shares(size, ranks)]


def cut(known: Sequence[int], size: int) -> Sequence[int]:
    """The ranks' shares of a side, of which another dimension of the mesh may have gathered more
    since they were agreed on."""
    return known if sum(known) == size else _shares(size, len(known))


def _told(value: Any) -> str:
    """A fact in words; sizes and names are sequences."""
    return f"({', '.join(map(str, value))})" if isinstance(value, list) else str(value)


def _sides(
    name: str, placement: Word, shapes: Sequence[Sequence[int]], names: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Rows and columns that each rank has of a matrix.

    Raises:
        DistributedError: ranks differ where they have all of them.
    """
    rows, columns = [each[0] for each in shapes], [each[1] for each in shapes]
    for side, sizes, spread in (("rows", rows, "S(0)"), ("columns", columns, "S(1)")):
        for rank, size in zip(names, sizes, strict=True):
            if placement != spread and size != sizes[0]:
                raise DistributedError(
                    f"with the placement {placement}, all ranks need the same number of {side} "
                    f"of {name}: rank {names[0]} has {sizes[0]}, rank {rank} {size}"
                )
    return rows, columns


def check_spread(asked: SpreadProduct) -> None:
    """Refuse a side of a matrix that is spread over two dimensions of the mesh, and k spread over
    different ones where it would have to be over one.

    Raises:
        UnsupportedProblem: there is one.
    """
    for side in (0, 1):
        for word in ("S(0)", "S(1)"):
            if sum(each[side] == word for each in asked.placements) > 1:
                raise UnsupportedProblem(
                    f"{'ab'[side]} is spread as {word} over two dimensions of the mesh: "
                    "redistribute it over one"
                )
    of_a = [at for at, (a, _) in enumerate(asked.placements) if a == "S(1)"]
    of_b = [at for at, (_, b) in enumerate(asked.placements) if b == "S(0)"]
    sums = {at for at in (*of_a, *of_b) if _is_of_sums(asked.placements[at])}
    if sums and len({*of_a, *of_b}) > 1:
        raise UnsupportedProblem(
            "k is spread over different dimensions of the mesh in a and in b: redistribute one "
            "of them"
        )


def _is_of_sums(placements: tuple[Word, Word]) -> bool:
    return rule(*placements).a == "S(1)"


def check_result(found: Sequence[Sizes]) -> None:
    """Refuse results of which a side is spread over two dimensions of the mesh.

    Raises:
        UnsupportedProblem: it would be one.
    """
    for words in ([each.rule.made for each in found], [each.rule.result for each in found]):
        spread = [each for each in words if each in ("S(0)", "S(1)")]
        if len(set(spread)) < len(spread):
            raise UnsupportedProblem(
                f"the result would be spread as {spread[0]} over two dimensions of the mesh: ask "
                "for another placement"
            )
