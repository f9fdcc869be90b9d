"""Calls like an earlier one, prepared: nothing is asked, chosen or checked again on the host.

With few rows the host's time is what a product over ranks takes. A prepared call makes its arrays
and calls what transfers and what multiplies; with strategy "collective" that is one operation of
the process group and one launch, both on the current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from gemmkit.distributed.agreed_sizes import Sizes
from gemmkit.distributed.agreements import Agreement, plain_strategy
from gemmkit.distributed.execute import Arrays, run
from gemmkit.distributed.kept_arrays import kept_arrays
from gemmkit.distributed.one_shot_calls import one_shot_call
from gemmkit.distributed.operand_scales import ScaleGatherer, line_scales
from gemmkit.distributed.panel_products import panel_plan, run_plan
from gemmkit.distributed.perform import finished, steps_of
from gemmkit.distributed.process_group import without_gaps
from gemmkit.distributed.repeated_products import (
    gathered_product,
    maker,
    multiplying,
    with_epilogue,
)
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team
from gemmkit.scales import NONE, ScaleKind

# This rank's part of the result, from its parts of A and B, bias and residual, C and what to write
# to, and scales of its parts of A and B, two-dimensional, each None where there is none.
WarmCall = Callable[[Any, Any, Any, Any, Any, Any, Any, Any], Any]


def warm_call(asked: SpreadProduct, agreement: Agreement) -> WarmCall | None:
    """A call for arrays of the same shapes, types, strides and devices as those of `asked`.

    Returns:
        None where an operand or the result is brought to another placement, beside the product.
    """
    a, b = asked.a, asked.b
    if agreement.panels is not None:
        return _in_panels(asked, agreement)
    if a.shape[1] != b.shape[0] or _redistributes(asked, agreement):
        return None
    if agreement.main is None:
        return _local(asked)
    sizes, team = agreement.sizes[agreement.main], asked.teams[agreement.main]
    lines = sizes.n if sizes.rule.transposes else sizes.m
    split = b.shape[1] if sizes.rule.transposes else a.shape[0]
    if sizes.rule.form != "gather" and sum(lines) != split:
        return None
    plain = plain_strategy(asked, sizes.rule)
    kinds = agreement.kinds
    chosen = _by(agreement.strategy, asked, sizes, team, lines, kinds)
    eager = agreement.strategy.means in ("copies", "one-shot")
    if asked.strategy is not None or not eager or chosen is None:
        return chosen
    captured = _by(plain, asked, sizes, team, lines, kinds)
    if captured is None:
        return None

    def call(*given: Any) -> Any:
        which = captured if torch.cuda.is_current_stream_capturing() else chosen
        return which(*given)

    return call


def _redistributes(asked: SpreadProduct, agreement: Agreement) -> bool:
    """Whether anything travels beside what the product itself sends, or an epilogue would follow
    sums that are not complete."""
    for at, (each, team, have) in enumerate(
        zip(agreement.sizes, asked.teams, asked.placements, strict=True)
    ):
        if team.size == 1:
            continue
        found = each.rule
        if (found.a, found.b) != have or found.made != found.result:
            return True
        if found.result == "P" and asked.product.has_epilogue:
            return True
        if at != agreement.main and found.form != "local":
            return True
    return False


def _by(
    strategy: Strategy,
    asked: SpreadProduct,
    sizes: Sizes,
    team: Team,
    lines: Sequence[int],
    kinds: tuple[ScaleKind, ScaleKind],
) -> WarmCall | None:
    form, turned = sizes.rule.form, sizes.rule.transposes
    if strategy.means == "one-shot":
        # Scales of what is gathered take an operation of their own, and an activation of sums is
        # refused: neither is prepared.
        gathers = form == "gather"
        if (gathers and kinds[turned] != NONE) or not (gathers or asked.product.is_linear):
            return None
        return one_shot_call(asked, form, team.one_shot, lines, turned=turned)
    gather_scales = None
    if form == "gather" and kinds[turned] != NONE:
        gather_scales = ScaleGatherer(team, kinds[turned], lines)
    if strategy.means != "collective":
        return _scheduled(strategy, asked, sizes, team, lines, kinds, gather_scales)
    if not without_gaps(lines):
        return None
    if form != "gather" and not asked.product.is_linear:
        return None
    if form == "gather":
        return _gathering(asked, team, lines, gather_scales, turned=turned)
    if form == "scatter":
        return _scattering(asked, team, lines, turned=turned)
    return _reducing(asked, team)


def _local(asked: SpreadProduct) -> WarmCall:
    """A product of what this rank has."""
    multiply = multiplying(asked.product, with_epilogue(asked.product))
    make, rows, columns = maker(asked.a, asked.dtype), asked.a.shape[0], asked.b.shape[1]

    def call(
        a: Any, b: Any, bias: Any, residual: Any, c: Any, out: Any, scale_a: Any, scale_b: Any
    ) -> Any:
        made = make(a, rows, columns) if out is None else out
        multiply(a, b, made, out is None, bias, residual, c, scale_a, scale_b)
        return made

    return call


def _gathering(
    asked: SpreadProduct,
    team: Team,
    sizes: Sequence[int],
    gather_scales: ScaleGatherer | None,
    *,
    turned: bool,
) -> WarmCall:
    """An operand's lines from all ranks, with their scales, then the product."""
    communicator = team.communicator
    gather, gather_many = communicator.gatherer(asked.a.dtype), communicator.gather_many_into
    own, most, total = sizes[team.rank], max(sizes), sum(sizes)
    everything = team.size * most
    width = asked.b.shape[0]
    multiply = gathered_product(asked, total, turned=turned)

    def call(
        a: Any, b: Any, bias: Any, residual: Any, c: Any, out: Any, scale_a: Any, scale_b: Any
    ) -> Any:
        sent = b.T.contiguous() if turned else a.contiguous()
        if own < most:
            padded = sent.new_zeros((most, width))
            padded[:own] = sent
            sent = padded
        lines = kept_arrays.matrix(sent, sent.dtype, everything, width)
        if gather_scales is None:
            gather(lines, sent)
        else:
            scales = gather_scales.sent(scale_b.T if turned else scale_a)
            into, from_here = gather_scales.lines.ends(scales)
            gather_many((lines, into), (sent, from_here))
            array = gather_scales.lines.complete(into)
            scale_a, scale_b = (scale_a, array.T) if turned else (array, scale_b)
        if total < everything:
            lines = lines[:total]
        return multiply(lines, a, b, bias, residual, c, out, scale_a, scale_b)

    return call


def _scattering(
    asked: SpreadProduct, team: Team, sizes: Sequence[int], *, turned: bool
) -> WarmCall:
    """A product, then this rank's lines of the sums of all ranks."""
    multiply = multiplying(asked.product, asked.product.options)
    follows = asked.product.adds_once
    bare = replace(asked.product, transposed=turned, bias=None, residual=None, c=None)
    scatter, dtype = team.communicator.scatter_into, asked.dtype
    own, most, total = sizes[team.rank], max(sizes), sum(sizes)
    everything = team.size * most
    width = asked.a.shape[0] if turned else asked.b.shape[1]

    def call(
        a: Any, b: Any, bias: Any, residual: Any, c: Any, out: Any, scale_a: Any, scale_b: Any
    ) -> Any:
        sums = kept_arrays.matrix(a, dtype, everything, width)
        written = sums
        if total < everything:
            written = sums[:total]
            sums[total:] = 0
        into = written.T if turned else written
        multiply(a, b, into, True, None, None, None, scale_a, scale_b)
        made = sums.new_empty(most, width)
        scatter(made, sums)
        if own < most:
            made = made[:own]
        if follows or out is not None:
            product = replace(bare, bias=bias, residual=residual, c=c)
            made = finished(product, made, out if out is None or not turned else out.T)
        return made.T if turned else made

    return call


def _reducing(asked: SpreadProduct, team: Team) -> WarmCall:
    """A product, then the sums of all ranks."""
    multiply = multiplying(asked.product, asked.product.options)
    follows = asked.product.adds_once
    bare = replace(asked.product, bias=None, residual=None, c=None)
    add_up, make = team.communicator.reduce, maker(asked.a, asked.dtype)
    rows, columns = asked.a.shape[0], asked.b.shape[1]

    def call(
        a: Any, b: Any, bias: Any, residual: Any, c: Any, out: Any, scale_a: Any, scale_b: Any
    ) -> Any:
        # β·C is read when the sums are complete, and may be what is to be written.
        new = out is None or c is not None or not out.is_contiguous()
        sums = make(a, rows, columns) if new else out
        multiply(a, b, sums, new, None, None, None, scale_a, scale_b)
        add_up(sums)
        if follows:
            return finished(replace(bare, bias=bias, residual=residual, c=c), sums, out)
        if out is not None and new:
            out.copy_(sums)
            return out
        return sums

    return call


def _scheduled(
    strategy: Strategy,
    asked: SpreadProduct,
    sizes: Sizes,
    team: Team,
    lines: Sequence[int],
    kinds: tuple[ScaleKind, ScaleKind],
    gather_scales: ScaleGatherer | None,
) -> WarmCall | None:
    """Products of parts, with transfers under them."""
    form, turned = sizes.rule.form, sizes.rule.transposes
    if strategy.way == "whole" and form != "gather" and not asked.product.is_linear:
        return None
    bare = replace(asked.product, transposed=turned, bias=None, residual=None, c=None)
    dtype, means = asked.dtype, team.means(strategy)
    steps = steps_of(form, strategy, lines, team, on_gpu=asked.a.is_cuda)
    sent = str(asked.a.dtype if form == "gather" else dtype).removeprefix("torch.")
    count = lines[team.rank] if form == "scatter" else sum(lines)
    scaled = kinds != (NONE, NONE)

    def call(
        a: Any, b: Any, bias: Any, residual: Any, c: Any, out: Any, scale_a: Any, scale_b: Any
    ) -> Any:
        split, fixed = (b.T, a.T) if turned else (a, b)
        if form == "gather":
            # In memory of its own before anything is sent: what sends waits for it once.
            split = split.contiguous()
        width = fixed.shape[1]
        product = bare
        if bias is not None or residual is not None or c is not None:
            product = replace(bare, bias=bias, residual=residual, c=c)
        if scaled:
            own = line_scales(scale_a, scale_b, kinds)
            of_lines, of_fixed = (own[1], own[0]) if turned else own
            if gather_scales is not None and of_lines is not None:
                of_lines = gather_scales(of_lines)
            product = replace(product, scale_lines=of_lines, scale_fixed=of_fixed)

        def new(lines: int) -> Any:
            return fixed.new_empty((lines, width), dtype=dtype)

        made = new(count) if out is None else out.T if turned else out
        run(steps, Arrays(split, fixed, made, product, new, product.add), means, sent)
        return made.T if turned else made

    return call


def _in_panels(asked: SpreadProduct, agreement: Agreement) -> WarmCall | None:
    """Products of panels of k, with the transfers of others under them."""
    after = any(
        each.rule.made != each.rule.result and team.size > 1
        for each, team in zip(agreement.sizes, asked.teams, strict=True)
    )
    sums = any(
        each.rule.result == "P" and team.size > 1
        for each, team in zip(agreement.sizes, asked.teams, strict=True)
    )
    if after or (sums and asked.product.has_epilogue) or agreement.strategy.means == "collective":
        return None
    plan = panel_plan(asked, agreement, agreement.strategy)
    bare, kinds = replace(asked.product, bias=None, residual=None, c=None), agreement.kinds

    def call(
        a: Any, b: Any, bias: Any, residual: Any, c: Any, out: Any, scale_a: Any, scale_b: Any
    ) -> Any:
        product = bare
        if bias is not None or residual is not None or c is not None:
            product = replace(bare, bias=bias, residual=residual, c=c)
        return run_plan(plan, a, b, product, out, line_scales(scale_a, scale_b, kinds))

    return call
