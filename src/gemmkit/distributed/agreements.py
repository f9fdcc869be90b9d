"""What all ranks do for a product: their shares, what travels, and how; asked for, then kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch

from gemmkit.distributed.call_log import CallLog
from gemmkit.distributed.placements import Rule, Word, rule
from gemmkit.distributed.planning import best_strategy
from gemmkit.distributed.splits import shares
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team
from gemmkit.dtypes import Dtype
from gemmkit.errors import DistributedError, UnsupportedProblem
from gemmkit.ops.operands import known_dtype
from gemmkit.ops.precision import get_precision, setting, settled
from gemmkit.problem import GemmProblem


@dataclass(frozen=True, slots=True)
class Sizes:
    """Each rank's share of m, n and k along one dimension of the mesh, and the rule there."""

    rule: Rule
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


@dataclass(slots=True)
class Agreement:
    """What all ranks do: `main` is the dimension of the mesh whose transfers run under the product,
    None where nothing travels, and `strategy` how. `call` does it, once it is `prepared`, if it can
    be. `entries` are what ranks enter into their groups' logs for each call."""

    sizes: tuple[Sizes, ...]
    main: int | None
    strategy: Strategy
    entries: tuple[tuple[CallLog, int], ...] = ()
    prepared: bool = False
    call: Any = None

    @property
    def result(self) -> tuple[Word, ...]:
        """The placements of the result."""
        return tuple(each.rule.result for each in self.sizes)


# What ranks have agreed on, by what they asked for.
_agreed: dict[tuple[object, ...], Agreement] = {}
_MOST_AGREED = 4096

# Of a whole shape that is given as m, n and k; those of DTensors are longer.
_SHAPE = 3


def _key(asked: SpreadProduct) -> tuple[object, ...]:
    """What a product is known by."""
    product = asked.product
    return (
        *asked.teams,
        *(asked.a.shape, asked.b.shape, asked.part, asked.whole),
        *(asked.a.dtype, asked.dtype, asked.placements, asked.wanted),
        *(product.precision, get_precision() if setting.touched else None),
        *(product.epilogue, product.bias is None, product.residual is None),
        *(product.alpha, asked.strategy, product.engine, product.device),
    )


def known_agreement(asked: SpreadProduct) -> Agreement | None:
    """What ranks have agreed on, where they do so once, and not in each call."""
    if any(team.board is None for team in asked.teams):
        return None
    return _agreed.get(_key(asked))


def agree(asked: SpreadProduct) -> Agreement:
    """What all ranks do. On GPUs, they ask each other the first time that they see such a product;
    on CPUs each time, since another rank's part may have changed alone.

    Raises:
        DistributedError: they ask for different products.
        UnsupportedProblem: there is no such product, or the first call of it is being captured.
    """
    known = known_agreement(asked)
    if known is not None:
        for log, digest in known.entries:
            log.note(digest)
        return known
    product, teams = asked.product, asked.teams
    _check_spread(asked)
    if asked.a.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedProblem(
            "ranks compare what they ask for the first time that they see a product, which a CUDA "
            "graph cannot capture: make a call with the same shapes before"
        )
    logs = [team.log for team in teams]
    for each in logs:
        if each is not None:
            each.ask()
    facts = {
        "type": str(asked.a.dtype),
        "result": str(asked.dtype),
        "placements": [list(each) for each in asked.placements],
        "placement": list(asked.wanted),
        "precision": _precision(product.precision, asked.a.dtype),
        "epilogue": str(asked.epilogue),
        "alpha": product.alpha,
        "strategy": str(asked.strategy),
        "whole": list(asked.whole),
    }
    shapes = tuple(asked.a.shape), tuple(asked.b.shape), asked.part
    told = [team.communicator.agree(json.dumps([facts, shapes])) for team in teams]
    sizes = tuple(
        _agree_along(said, placements, wanted, alone=len(teams) == 1)
        for said, placements, wanted in zip(told, asked.placements, asked.wanted, strict=True)
    )
    _check_result(sizes)
    main = _main(asked, sizes)
    strategy = asked.strategy or Strategy()
    if asked.strategy is None and main is not None:
        # Rank 0 decides: what others have measured may suggest another one to them.
        own = str(_strategy(asked, sizes[main], teams[main]))
        strategy = Strategy.parse(teams[main].communicator.agree(own)[0])
    if len(_agreed) >= _MOST_AGREED:
        _agreed.clear()
    entries = tuple(
        (log, crc32(f"{said}{strategy}".encode()) or 1)
        for log, said in zip(logs, told, strict=True)
        if log is not None
    )
    made = Agreement(sizes, main, strategy, entries)
    if all(team.board is not None for team in teams):
        _agreed[_key(asked)] = made
    return made


def _agree_along(
    said: Sequence[str], placements: tuple[Word, Word], wanted: Word | None, *, alone: bool
) -> Sizes:
    """The shares along one dimension of the mesh, which may be `alone`, by what its ranks say.

    Raises:
        DistributedError: ranks ask for different products.
    """
    every = [json.loads(each) for each in said]
    for rank, (other, _) in enumerate(every):
        for name, value in other.items():
            if value != every[0][0][name]:
                raise DistributedError(
                    f"ranks ask for different products: rank 0 has the {name} "
                    f"{every[0][0][name]}, rank {rank} {value}"
                )
    rows_a, columns_a = _sides("a", placements[0], [each[1][0] for each in every])
    rows_b, columns_b = _sides("b", placements[1], [each[1][1] for each in every])
    a, b = placements
    whole_a, whole_b = (
        sum(columns_a) if a == "S(1)" else columns_a[0],
        sum(rows_b) if b == "S(0)" else rows_b[0],
    )
    ranks = range(len(every))
    if a == "S(1)" and b == "S(0)" and columns_a != rows_b:
        rank = next(each for each in ranks if columns_a[each] != rows_b[each])
        raise DistributedError(
            f"rank {rank} has {columns_a[rank]} columns of A and {rows_b[rank]} rows of B: both "
            "are its share of k"
        )
    if alone and whole_a != whole_b:
        raise DistributedError(f"A has {whole_a} columns and B has {whole_b} rows on all ranks")
    whole = every[0][0]["whole"]
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


def _sides(
    name: str, placement: Word, shapes: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Rows and columns that each rank has of a matrix.

    Raises:
        DistributedError: ranks differ where they have all of them.
    """
    rows, columns = [each[0] for each in shapes], [each[1] for each in shapes]
    for side, sizes, spread in (("rows", rows, "S(0)"), ("columns", columns, "S(1)")):
        for rank, size in enumerate(sizes):
            if placement != spread and size != sizes[0]:
                raise DistributedError(
                    f"with the placement {placement}, all ranks need the same number of {side} "
                    f"of {name}: rank 0 has {sizes[0]}, rank {rank} {size}"
                )
    return rows, columns


def _check_spread(asked: SpreadProduct) -> None:
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


def _check_result(found: Sequence[Sizes]) -> None:
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


def _main(asked: SpreadProduct, found: Sequence[Sizes]) -> int | None:
    """The dimension of the mesh whose transfers run under the product; sums go first."""
    order = {"reduce": 3, "scatter": 2, "gather": 1, "local": 0}
    forms = [
        order[each.rule.form] if team.size > 1 else 0
        for each, team in zip(found, asked.teams, strict=True)
    ]
    best = max(forms)
    return forms.index(best) if best else None


def plain_strategy(asked: SpreadProduct, chosen: Rule) -> Strategy:
    """What goes everywhere: one operation of the group, unless an activation follows the sums."""
    if chosen.form == "gather" or asked.product.is_linear:
        return Strategy()
    return Strategy("group", "parts", 1)


def _strategy(asked: SpreadProduct, sizes: Sizes, team: Team) -> Strategy:
    """What is fastest by predictions; on CPUs, what goes everywhere."""
    if team.board is None:
        return plain_strategy(asked, sizes.rule)
    kind, out = _name(asked.a.dtype), _name(asked.dtype)
    problem = GemmProblem(
        m=sum(sizes.m) if sizes.rule.a == "S(0)" else asked.a.shape[0],
        n=sum(sizes.n) if sizes.rule.b == "S(1)" else asked.b.shape[1],
        k=sum(sizes.k),
        dtype=kind,
        out_dtype=out,
        epilogue=asked.epilogue,
        precision=settled(asked.product.precision, kind),
    )
    return best_strategy(
        problem, team.size, sizes.rule, team.board, copies=team.symmetric is not None
    )


def _name(dtype: Any) -> Dtype:
    return known_dtype(str(dtype).removeprefix("torch."), "a")


def _precision(given: str | None, dtype: Any) -> str | None:
    """What ranks compare of it: of float32, the setting counts where none is given."""
    return get_precision() if given is None and dtype == torch.float32 else given
