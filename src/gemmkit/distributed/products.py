"""`matmul` over ranks, for plain tensors: a rank's part of a product from its parts of A and B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gemmkit.distributed.agreed_sizes import Sizes, cut
from gemmkit.distributed.agreements import (
    Agreement,
    agree,
    plain_panel_strategy,
    plain_strategy,
)
from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.operand_scales import (
    check_scales,
    gathered_panels,
    line_scales,
)
from gemmkit.distributed.panel_products import multiply_panels
from gemmkit.distributed.perform import finished, perform
from gemmkit.distributed.placements import Rule, Word
from gemmkit.distributed.redistribute import redistribute
from gemmkit.distributed.splits import Span
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.warm import warm_call
from gemmkit.errors import UnsupportedProblem, UsageError


def multiply(asked: SpreadProduct) -> tuple[Any, tuple[Word, ...]]:
    """This rank's part of the result, and its placements.

    Raises:
        UsageError: shapes or types do not go together on this rank.
        DistributedError: they do not between ranks, or a rank failed.
        UnsupportedProblem: there is no such product.
    """
    agreement = agree(asked)
    if not agreement.prepared:
        check_scales(asked, agreement)
        agreement.call, agreement.prepared = warm_call(asked, agreement), True
        agreement.eager_only = agreement.panels is not None and asked.strategy is None
    product = asked.product
    if agreement.call is not None and not (agreement.eager_only and _captured(asked)):
        beside = product.bias, product.residual, product.c, asked.out
        made = agreement.call(asked.a, asked.b, *beside, asked.scale_a, asked.scale_b)
        return made, agreement.result
    found, place = agreement.sizes, agreement.main
    strategy = _strategy(asked, agreement)
    in_panels = agreement.panels is not None and strategy.means != "collective"
    a, b = asked.a, asked.b
    if agreement.panels is None:
        a, b = _redistributed_first(asked, agreement)
    if agreement.panels is None and a.shape[1] != b.shape[0]:
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
    _check_complete(asked, found)
    if then and not product.is_linear:
        raise UnsupportedProblem(
            f"the epilogue '{product.epilogue}' follows complete sums, and here ranks exchange the "
            "result after the product: ask for another placement, or apply it to the result"
        )
    # What the product itself does, and where it writes.
    bare, out = (product.of_sums, None) if then else (product, asked.out)
    if in_panels:
        made = multiply_panels(asked, agreement, strategy, bare, out)
    else:
        made = _product(asked, agreement, strategy, a, b, bare, out)
    for at in reversed(range(len(found))):
        each = found[at]
        have: Word = "P" if at in later else each.rule.made
        rows, columns = made.shape
        made = redistribute(
            asked.teams[at].communicator,
            made,
            have,
            each.rule.result,
            each.m if have == "S(0)" else cut(each.m, rows),
            each.n if have == "S(1)" else cut(each.n, columns),
        )
    if then:
        made = made.contiguous() if product.adds_once else made
        made = finished(replace(product, transposed=False), made, asked.out)
    return made, agreement.result


def _strategy(asked: SpreadProduct, agreement: Agreement) -> Strategy:
    """How a product is made now: where none is asked for and a CUDA graph is being captured, by
    what a graph takes everywhere."""
    if asked.strategy is not None or not _captured(asked):
        return agreement.strategy
    if agreement.main is not None:
        return plain_strategy(asked, agreement.sizes[agreement.main].rule)
    return plain_panel_strategy(agreement) if agreement.panels is not None else agreement.strategy


def _captured(asked: SpreadProduct) -> bool:
    """Whether a CUDA graph is being captured."""
    return bool(asked.a.is_cuda and torch.cuda.is_current_stream_capturing())


# --- the product --------------------------------------------------------------------------------


def _redistributed_first(asked: SpreadProduct, agreement: Agreement) -> tuple[Any, Any]:
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


def _product(
    asked: SpreadProduct,
    agreement: Agreement,
    strategy: Strategy,
    a: Any,
    b: Any,
    product: LocalProduct,
    out: Any,
) -> Any:
    """The product of what this rank has, with the transfers of one dimension of the mesh."""
    own = line_scales(asked.scale_a, asked.scale_b, agreement.kinds)
    if agreement.main is None:
        if agreement.panels is not None:
            a, b, own = gathered_panels(asked, agreement, own)
        if out is None:
            out = a.new_empty((a.shape[0], b.shape[1]), dtype=asked.dtype)
        product = replace(product, scale_lines=own[0], scale_fixed=own[1])
        product(a, b, out, None, Span(0, len(out)))
        return out
    sizes, team = agreement.sizes[agreement.main], asked.teams[agreement.main]
    chosen = sizes.rule
    if strategy.way == "whole":
        _check_linear(product, chosen, strategy)
    turned = chosen.transposes
    lines: Sequence[int] = sizes.n if turned else sizes.m
    if chosen.form != "gather":
        lines = cut(lines, b.shape[1] if turned else a.shape[0])
    of_lines, of_fixed = (own[1], own[0]) if turned else (own[0], own[1])
    made = perform(
        team,
        chosen.form,
        strategy,
        *((b.T, a.T) if turned else (a, b)),
        lines,
        replace(product, transposed=turned, scale_lines=of_lines, scale_fixed=of_fixed),
        asked.dtype,
        out if out is None or not turned else out.T,
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


def _check_complete(asked: SpreadProduct, found: Sequence[Sizes]) -> None:
    """Refuse an epilogue of results that are to be added up by someone else.

    Raises:
        UnsupportedProblem: there is one.
    """
    spread = any(
        each.rule.result == "P" and team.size > 1
        for each, team in zip(found, asked.teams, strict=True)
    )
    if spread and asked.product.has_epilogue:
        raise UnsupportedProblem(
            f"the epilogue '{asked.epilogue}' follows complete sums, and the result has the "
            "placement P: ask for another one, or apply it to the sum"
        )
