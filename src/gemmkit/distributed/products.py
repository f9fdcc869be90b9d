"""`matmul` over ranks, for plain tensors: a rank's part of a product from its parts of A and B."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.perform import perform
from gemmkit.distributed.placements import Rule, Word, rule
from gemmkit.distributed.planning import best_strategy
from gemmkit.distributed.redistribute import redistribute
from gemmkit.distributed.splits import Span, shares
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team
from gemmkit.epilogue import Epilogue
from gemmkit.errors import DistributedError, UnsupportedProblem, UsageError
from gemmkit.ops.libraries.torch_checks import check_alike, result_type
from gemmkit.ops.operands import known_dtype, read_dtype
from gemmkit.ops.precision import settled
from gemmkit.problem import GemmProblem

# Of the result of a product with nothing after it.
_PLAIN = Epilogue()


@dataclass(frozen=True, slots=True)
class SpreadProduct:
    """A product over ranks: this rank's parts, and for each dimension of the mesh a team and the
    placements of A, B and the result, None for what follows from A and B. `whole` are the sizes of
    all of A and B, where the caller knows them; `part` the rows and columns that this rank is to
    have of the result, by default as `torch.chunk` spreads them."""

    a: Any
    b: Any
    teams: tuple[Team, ...]
    placements: tuple[tuple[Word, Word], ...]
    wanted: tuple[Word | None, ...]
    product: LocalProduct = field(default_factory=LocalProduct)
    out_dtype: Any = None
    strategy: Strategy | None = None
    whole: tuple[int, ...] = ()
    part: tuple[int, ...] = ()

    @property
    def dtype(self) -> Any:
        """The type of the result."""
        if self.out_dtype is None:
            return result_type(self.a)
        return getattr(torch, read_dtype(self.out_dtype))

    @property
    def epilogue(self) -> Epilogue:
        """What follows the complete sums."""
        chosen = self.product.epilogue or _PLAIN
        if self.product.bias is not None and not chosen.bias:
            chosen = replace(chosen, bias="column")
        if self.product.residual is not None and not chosen.residual:
            chosen = replace(chosen, residual=True)
        return chosen


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Each rank's share of m, n and k along one dimension of the mesh, and the rule there."""

    rule: Rule
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Agreement:
    """What all ranks do: `main` is the dimension of the mesh whose transfers run under the product,
    None where nothing travels, and `strategy` how."""

    sizes: tuple[_Sizes, ...]
    main: int | None
    strategy: Strategy


# What ranks have agreed on, by what they asked for.
_agreed: dict[tuple[object, ...], _Agreement] = {}
_MOST_AGREED = 4096


def multiply(asked: SpreadProduct) -> tuple[Any, tuple[Word, ...]]:
    """This rank's part of the result, and its placements.

    Raises:
        UsageError: shapes or types do not go together on this rank.
        DistributedError: they do not between ranks, or a rank failed.
        UnsupportedProblem: there is no such product.
    """
    a, b = asked.a, asked.b
    for name, each in (("a", a), ("b", b)):
        if each.dim() != 2:
            raise UsageError(f"{name} has {each.dim()} dimensions: over ranks, matrices have 2")
    check_alike(a=a, b=b)
    agreement = _agree(asked)
    found, place = agreement.sizes, agreement.main
    a, b = _redistributed_first(asked, agreement)
    if a.shape[1] != b.shape[0]:
        raise UsageError(
            f"this rank has {a.shape[1]} columns of A and {b.shape[0]} rows of B: both are its "
            "share of k"
        )
    later = [
        at
        for at, each in enumerate(found)
        if at != place and each.rule.form in ("scatter", "reduce") and asked.teams[at].size > 1
    ]
    then = bool(later) or any(
        each.rule.made != each.rule.result and team.size > 1
        for each, team in zip(found, asked.teams, strict=True)
    )
    product = asked.product
    if then and not product.is_linear:
        raise UnsupportedProblem(
            f"the epilogue '{product.epilogue}' follows complete sums, and here ranks exchange the "
            "result after the product: ask for another placement, or apply it to the result"
        )
    bare = replace(product, bias=None, residual=None, epilogue=None) if then else product
    made = _product(asked, agreement, a, b, bare)
    for at in reversed(range(len(found))):
        each = found[at]
        have: Word = "P" if at in later else each.rule.made
        rows, columns = made.shape
        made = redistribute(
            asked.teams[at].communicator,
            made,
            have,
            each.rule.result,
            each.m if have == "S(0)" else _cut(each.m, rows),
            each.n if have == "S(1)" else _cut(each.n, columns),
        )
    if then and product.has_epilogue:
        made = made.contiguous()
        replace(product, transposed=False).add([made], made, Span(0, len(made)))
    return made, tuple(each.rule.result for each in found)


# --- what all ranks ask for ---------------------------------------------------------------------


def _agree(asked: SpreadProduct) -> _Agreement:
    """What all ranks do. On GPUs, they ask each other the first time that they see such a product;
    on CPUs each time, since another rank's part may have changed alone.

    Raises:
        DistributedError: they ask for different products.
    """
    facts = {
        "type": str(asked.a.dtype),
        "result": str(asked.dtype),
        "placements": [list(each) for each in asked.placements],
        "placement": list(asked.wanted),
        "precision": asked.product.precision,
        "epilogue": str(asked.epilogue),
        "alpha": asked.product.alpha,
        "strategy": str(asked.strategy),
        "whole": list(asked.whole),
    }
    shapes = tuple(asked.a.shape), tuple(asked.b.shape), asked.part
    key = (*(id(team) for team in asked.teams), shapes, json.dumps(facts))
    known = _agreed.get(key)
    if known is not None and all(team.board is not None for team in asked.teams):
        return known
    _check_spread(asked)
    if len(_agreed) >= _MOST_AGREED:
        _agreed.clear()
    sizes = tuple(
        _agree_along(team, facts, shapes, placements, wanted, alone=len(asked.teams) == 1)
        for team, placements, wanted in zip(
            asked.teams, asked.placements, asked.wanted, strict=True
        )
    )
    _check_result(sizes)
    main = _main(asked, sizes)
    strategy = asked.strategy or Strategy()
    if asked.strategy is None and main is not None:
        # Rank 0 decides: what others have measured may suggest another one to them.
        own = str(_strategy(asked, sizes[main], asked.teams[main]))
        strategy = Strategy.parse(asked.teams[main].communicator.agree(own)[0])
    made = _agreed[key] = _Agreement(sizes, main, strategy)
    return made


def _agree_along(
    team: Team,
    facts: dict[str, Any],
    shapes: tuple[tuple[int, ...], ...],
    placements: tuple[Word, Word],
    wanted: Word | None,
    *,
    alone: bool,
) -> _Sizes:
    """The shares along one dimension of the mesh, which may be `alone`.

    Raises:
        DistributedError: ranks ask for different products.
    """
    said = team.communicator.agree(json.dumps([facts, shapes]))
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
    ranks = range(team.size)
    if a == "S(1)" and b == "S(0)" and columns_a != rows_b:
        rank = next(each for each in ranks if columns_a[each] != rows_b[each])
        raise DistributedError(
            f"rank {rank} has {columns_a[rank]} columns of A and {rows_b[rank]} rows of B: both "
            "are its share of k"
        )
    if alone and whole_a != whole_b:
        raise DistributedError(f"A has {whole_a} columns and B has {whole_b} rows on all ranks")
    bytes_a = sum(rows_a) * whole_a if a == "S(0)" else rows_a[0] * whole_a
    bytes_b = whole_a * (sum(columns_b) if b == "S(1)" else columns_b[0])
    found = rule(a, b, wanted, bytes_a=bytes_a, bytes_b=bytes_b)
    k = columns_a if a == "S(1)" else rows_b if b == "S(0)" else _shares(whole_a, team.size)
    m = rows_a if a == "S(0)" else _shares(rows_a[0], team.size)
    n = columns_b if b == "S(1)" else _shares(columns_b[0], team.size)
    if shapes[2] and wanted == "S(0)":
        m = [each[1][2][0] for each in every]
    if shapes[2] and wanted == "S(1)":
        n = [each[1][2][1] for each in every]
    return _Sizes(found, tuple(m), tuple(n), tuple(k))


def _shares(size: int, ranks: int) -> list[int]:
    return [each.size for each in shares(size, ranks)]


def _cut(known: Sequence[int], size: int) -> Sequence[int]:
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
                    f"with the placement {placement}, all ranks have as many {side} of {name}: "
                    f"rank 0 has {sizes[0]}, rank {rank} {size}"
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


def _check_result(found: Sequence[_Sizes]) -> None:
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


# --- the product --------------------------------------------------------------------------------


def _redistributed_first(asked: SpreadProduct, agreement: _Agreement) -> tuple[Any, Any]:
    """A and B as the rules have them before the product."""
    a, b = asked.a, asked.b
    for at in reversed(range(len(agreement.sizes))):
        each, team = agreement.sizes[at], asked.teams[at].communicator
        have_a, have_b = asked.placements[at]
        a = redistribute(team, a, have_a, each.rule.a, each.m, each.k)
        b = redistribute(team, b, have_b, each.rule.b, each.k, each.n)
        if each.rule.form == "gather" and at != agreement.main:
            # Only one operand travels under the product.
            if each.rule.transposes:
                b = redistribute(team, b, "S(1)", "R", each.k, each.n)
            else:
                a = redistribute(team, a, "S(0)", "R", each.m, each.k)
    return a, b


def _main(asked: SpreadProduct, found: Sequence[_Sizes]) -> int | None:
    """The dimension of the mesh whose transfers run under the product; sums go first."""
    order = {"reduce": 3, "scatter": 2, "gather": 1, "local": 0}
    forms = [
        order[each.rule.form] if team.size > 1 else 0
        for each, team in zip(found, asked.teams, strict=True)
    ]
    best = max(forms)
    return forms.index(best) if best else None


def _product(
    asked: SpreadProduct, agreement: _Agreement, a: Any, b: Any, product: LocalProduct
) -> Any:
    """The product of what this rank has, with the transfers of one dimension of the mesh."""
    if agreement.main is None:
        made = a.new_empty((a.shape[0], b.shape[1]), dtype=asked.dtype)
        product(a, b, made, None, Span(0, len(made)))
        return made
    sizes, team = agreement.sizes[agreement.main], asked.teams[agreement.main]
    strategy, chosen = agreement.strategy, sizes.rule
    if asked.strategy is None and a.is_cuda and torch.cuda.is_current_stream_capturing():
        strategy = _plain(asked, chosen)
    if strategy.way == "whole":
        _check_linear(product, chosen, strategy)
    turned = chosen.transposes
    lines: Sequence[int] = sizes.n if turned else sizes.m
    if chosen.form != "gather":
        lines = _cut(lines, b.shape[1] if turned else a.shape[0])
    made = perform(
        team,
        chosen.form,
        strategy,
        *((b.T, a.T) if turned else (a, b)),
        lines,
        replace(product, transposed=turned),
        asked.dtype,
    )
    return made.T if turned else made


def _check_linear(product: LocalProduct, chosen: Rule, strategy: Strategy) -> None:
    """Refuse an activation of sums that are added up after the products.

    Raises:
        UnsupportedProblem: there is one.
    """
    if chosen.form != "gather" and not product.is_linear:
        raise UnsupportedProblem(
            f"the epilogue '{product.epilogue}' follows complete sums, and strategy '{strategy}' "
            "adds them up after the products: take one with parts, such as 'group-1'"
        )


def _plain(asked: SpreadProduct, chosen: Rule) -> Strategy:
    """What goes everywhere: one operation of the group, unless an activation follows the sums."""
    if chosen.form == "gather" or asked.product.is_linear:
        return Strategy()
    return Strategy("group", "parts", 1)


def _strategy(asked: SpreadProduct, sizes: _Sizes, team: Team) -> Strategy:
    """What is fastest by predictions; on CPUs, what goes everywhere."""
    if team.board is None:
        return _plain(asked, sizes.rule)
    kind, out = (
        known_dtype(str(each).removeprefix("torch."), "a") for each in (asked.a.dtype, asked.dtype)
    )
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
