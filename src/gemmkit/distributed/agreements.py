"""What all ranks do for a product: their shares, what travels, and how; asked for, then kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch

from gemmkit.distributed.agreed_parts import agree_kinds, check_parts
from gemmkit.distributed.agreed_sizes import Sizes, agree_along, check_result, check_spread
from gemmkit.distributed.call_log import CallLog
from gemmkit.distributed.fused import choose_fused
from gemmkit.distributed.panel_predictions import PanelMesh
from gemmkit.distributed.placements import Rule, Word
from gemmkit.distributed.planning import best_panel_strategy, best_strategy
from gemmkit.distributed.predictions import alone
from gemmkit.distributed.refusals import ask_all, confirm, refusing
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team, forgetting
from gemmkit.dtypes import Dtype
from gemmkit.errors import DistributedError, GemmkitError, UnsupportedProblem
from gemmkit.ops.operands import known_dtype
from gemmkit.ops.precision import get_precision, setting, settled
from gemmkit.problem import GemmProblem
from gemmkit.scales import NONE, ScaleKind, Scales


@dataclass(slots=True)
class Agreement:
    """What all ranks do: `main` is the dimension of the mesh whose transfers run under the product,
    None where nothing travels, and `strategy` how. Where panels of k travel, `panels` are the
    dimensions along which those of A do, and those of B, each None where it has all of k. `kinds`
    are those of the scales of A and B. `call` does it, once it is `prepared`, if it can be, but
    with `eager_only` not while a CUDA graph is being captured, which takes another strategy.
    `entries` are what ranks enter into their groups' logs for each call."""

    sizes: tuple[Sizes, ...]
    main: int | None
    strategy: Strategy
    panels: tuple[int | None, int | None] | None = None
    kinds: tuple[ScaleKind, ScaleKind] = (NONE, NONE)
    entries: tuple[tuple[CallLog, int], ...] = ()
    prepared: bool = False
    call: Any = None
    eager_only: bool = False

    @property
    def result(self) -> tuple[Word, ...]:
        """The placements of the result."""
        return tuple(each.rule.result for each in self.sizes)


# What ranks have agreed on, by what they asked for.
_agreed: dict[tuple[object, ...], Agreement] = {}
_MOST_AGREED = 4096


@forgetting
def _forget(teams: Collection[Team]) -> None:
    for key in [key for key in _agreed if any(each in teams for each in _teams_of(key))]:
        del _agreed[key]


def _teams_of(key: tuple[object, ...]) -> list[Team]:
    return [each for each in key if isinstance(each, Team)]


def _key(asked: SpreadProduct) -> tuple[object, ...]:
    """What a product is known by."""
    product = asked.product
    return (
        *asked.teams,
        *(asked.a.shape, asked.b.shape, asked.part, asked.whole),
        *(asked.a.dtype, asked.dtype, asked.placements, asked.wanted),
        *(product.precision, get_precision() if setting.touched else None),
        *(product.epilogue, product.alpha, product.beta, asked.strategy),
        *(asked.shapes_beside, asked.placed, product.engine, product.device),
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
        UsageError: something is wrong with this rank's arrays; the others are told.
        DistributedError: they ask for different products, or one of them cannot take part.
        UnsupportedProblem: there is no such product, or the first call of it is being captured.
    """
    with refusing(lambda: asked.teams):
        asked.check()
        known = known_agreement(asked)
        if known is None:
            check_spread(asked)
    if known is not None:
        for log, digest in known.entries:
            log.note(digest)
        return known
    if asked.a.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedProblem(
            "ranks compare what they ask for the first time that they see a product, which a CUDA "
            "graph cannot capture: make a call with the same shapes before"
        )
    logs = [team.log for team in asked.teams]
    for each in logs:
        if each is not None:
            each.ask()
    told = ask_all(asked.teams, [_facts(asked), _shapes(asked)])
    made, found = None, None
    try:
        made = _agreed_on(asked, told)
    except GemmkitError as error:
        found = error
    confirm(asked.teams, found)
    assert made is not None
    if made.main is not None or made.panels is not None:
        made.strategy = _agreed_strategy(asked, made)
    if len(_agreed) >= _MOST_AGREED:
        _agreed.clear()
    made.entries = tuple(
        (log, crc32(f"{said}{made.strategy}".encode()) or 1)
        for log, said in zip(logs, told, strict=True)
        if log is not None
    )
    if all(team.board is not None for team in asked.teams):
        _agreed[_key(asked)] = made
    return made


def _facts(asked: SpreadProduct) -> dict[str, Any]:
    """What is the same on all ranks."""
    product = asked.product
    return {
        "type": str(asked.a.dtype),
        "result type": str(asked.dtype),
        "placements": [list(each) for each in asked.placements],
        "placement": list(asked.wanted),
        "precision": _precision(product.precision, asked.a.dtype),
        "epilogue": str(asked.epilogue),
        "alpha": product.alpha,
        "beta": product.beta,
        "strategy": str(asked.strategy),
        "arrays": [name for name, shape in asked.shapes_beside if shape is not None],
        "shape": list(asked.whole),
    }


def _shapes(asked: SpreadProduct) -> list[Any]:
    """What is not: those of A, B and the result's part, and of the arrays beside them."""
    beside = {name: shape for name, shape in asked.shapes_beside if shape is not None}
    return [asked.a.shape, asked.b.shape, asked.part, beside]


def _agreed_on(asked: SpreadProduct, told: Sequence[Sequence[Any]]) -> Agreement:
    """What follows from what all ranks have said.

    Raises:
        DistributedError: they ask for different products.
        UsageError: arrays do not fit.
        UnsupportedProblem: there is no such product.
    """
    teams = asked.teams
    sizes = tuple(
        agree_along(said, placements, wanted, team.global_ranks, alone=len(teams) == 1)
        for said, placements, wanted, team in zip(
            told, asked.placements, asked.wanted, teams, strict=True
        )
    )
    check_result(sizes)
    check_parts(asked, sizes, told)
    kinds = agree_kinds(asked, told)
    main = _main(asked, sizes)
    panels = _panels(asked, sizes) if main is None else None
    return Agreement(sizes, main, asked.strategy or Strategy(), panels, kinds)


def _agreed_strategy(asked: SpreadProduct, made: Agreement) -> Strategy:
    """The one that was asked for, or what rank 0 decides: what others have measured may suggest
    another one to them."""
    if asked.strategy is not None:
        _check_asked(asked.strategy, asked, made)
        return asked.strategy
    if made.main is not None:
        team = asked.teams[made.main]
        own = str(_strategy(asked, made.sizes[made.main], team, made.kinds))
        return Strategy.parse(team.communicator.agree(own)[0])
    own = str(_panel_strategy(asked, made))
    for team in asked.teams:
        own = team.communicator.agree(own)[0]
    return Strategy.parse(own)


def _check_asked(strategy: Strategy, asked: SpreadProduct, made: Agreement) -> None:
    """Refuse a strategy that was asked for where it does not apply, or a rank cannot follow it.

    Raises:
        UnsupportedProblem: on all ranks, with what the first of them says.
    """
    if made.panels is not None and strategy.means == "one-shot":
        raise UnsupportedProblem(
            "strategy 'one-shot' sends shares of an operand or sums, and here panels of k travel: "
            "take 'collective', 'copies-1' or 'group-1'"
        )
    if strategy.way != "fused":
        return
    if made.main is None:
        raise UnsupportedProblem(f"strategy '{strategy}': here panels of k travel, not shares")
    sizes, team = made.sizes[made.main], asked.teams[made.main]
    team.means(strategy)
    if team.board is None:
        return
    lines, said = sizes.n if sizes.rule.transposes else sizes.m, ""
    try:
        own = alone(_problem(asked, sizes, made.kinds), team.size, sizes.rule)
        choose_fused(own, sizes.rule, lines, team.board)
    except UnsupportedProblem as error:
        said = str(error)
    # Ranks that have tuned may choose other kernels than others.
    reason = next(filter(None, team.communicator.agree(said)), "")
    if reason:
        raise UnsupportedProblem(f"strategy '{strategy}': {reason}")


def _main(asked: SpreadProduct, found: Sequence[Sizes]) -> int | None:
    """The dimension of the mesh whose transfers run under the product; sums go first."""
    order = {"reduce": 3, "scatter": 2, "gather": 1, "local": 0}
    forms = [
        order[each.rule.form] if team.size > 1 else 0
        for each, team in zip(found, asked.teams, strict=True)
    ]
    best = max(forms)
    return forms.index(best) if best else None


def _panels(asked: SpreadProduct, found: Sequence[Sizes]) -> tuple[int | None, int | None] | None:
    """Along which dimensions of the mesh panels of A and of B travel; None where none do, or
    something else travels before the product.

    Raises:
        DistributedError: A and B have different k.
    """
    places: list[int | None] = [None, None]
    for at, (each, team, have) in enumerate(zip(found, asked.teams, asked.placements, strict=True)):
        if team.size == 1:
            continue
        if have in (("S(1)", "S(1)"), ("S(0)", "S(0)")):
            places[have == ("S(0)", "S(0)")] = at
        elif (each.rule.a, each.rule.b) != have:
            return None
    if places == [None, None]:
        return None
    deep = [
        side if at is None else sum(found[at].k)
        for at, side in zip(places, (asked.a.shape[1], asked.b.shape[0]), strict=True)
    ]
    if deep[0] != deep[1]:
        raise DistributedError(f"A has {deep[0]} columns and B has {deep[1]} rows on all ranks")
    return places[0], places[1]


def plain_strategy(asked: SpreadProduct, chosen: Rule) -> Strategy:
    """What goes everywhere: one operation of the group, unless an activation follows the sums."""
    if chosen.form == "gather" or asked.product.is_linear:
        return Strategy()
    return Strategy("group", "parts", 1)


def _strategy(
    asked: SpreadProduct, sizes: Sizes, team: Team, kinds: tuple[ScaleKind, ScaleKind]
) -> Strategy:
    """What is fastest by predictions; on CPUs, what goes everywhere."""
    if team.board is None:
        return plain_strategy(asked, sizes.rule)
    return best_strategy(
        _problem(asked, sizes, kinds),
        team.size,
        sizes.rule,
        team.board,
        copies=team.symmetric is not None,
    )


def _problem(asked: SpreadProduct, sizes: Sizes, kinds: tuple[ScaleKind, ScaleKind]) -> GemmProblem:
    """The whole product along a dimension of the mesh."""
    kind, out = _name(asked.a.dtype), _name(asked.dtype)
    return GemmProblem(
        m=sum(sizes.m) if sizes.rule.a == "S(0)" else asked.a.shape[0],
        n=sum(sizes.n) if sizes.rule.b == "S(1)" else asked.b.shape[1],
        k=sum(sizes.k),
        dtype=kind,
        out_dtype=out,
        epilogue=asked.epilogue,
        precision=settled(asked.product.precision, kind),
        scales=Scales(*kinds),
    )


def plain_panel_strategy(made: Agreement) -> Strategy:
    """What goes everywhere: one operation of each group, unless ranks have scales of their own for
    all of their part of k."""
    alike = all(
        at is None or kind == NONE or kind.of_chunks
        for at, kind in zip(made.panels or (), made.kinds, strict=True)
    )
    return Strategy() if alike else Strategy("group", "parts", 1)


def _panel_strategy(asked: SpreadProduct, made: Agreement) -> Strategy:
    """What is fastest by predictions; on CPUs, what goes everywhere."""
    plain = plain_panel_strategy(made)
    boards = [team.board for team in asked.teams]
    if boards[0] is None or made.panels is None:
        return plain
    over = [1 if at is None else asked.teams[at].size for at in made.panels]
    depth = next(sum(made.sizes[at].k) for at in made.panels if at is not None)
    kind, out = _name(asked.a.dtype), _name(asked.dtype)
    problem = GemmProblem(
        m=asked.a.shape[0],
        n=asked.b.shape[1],
        k=depth,
        dtype=kind,
        out_dtype=out,
        epilogue=asked.epilogue,
        precision=settled(asked.product.precision, kind),
    )
    copies = all(team.symmetric is not None for team in asked.teams if team.size > 1)
    return best_panel_strategy(
        problem, PanelMesh(*over), boards[0], copies=copies, parts_only=plain != Strategy()
    )


def _name(dtype: Any) -> Dtype:
    return known_dtype(str(dtype).removeprefix("torch."), "a")


def _precision(given: str | None, dtype: Any) -> str | None:
    """What ranks compare of it: of float32, the setting counts where none is given."""
    return get_precision() if given is None and dtype == torch.float32 else given
