"""Prepared calls with strategy "one-shot": one launch that exchanges lines, and one product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gemmkit.distributed.kept_arrays import kept_arrays
from gemmkit.distributed.one_shot import Addition, Gathering, OneShot
from gemmkit.distributed.perform import finished
from gemmkit.distributed.repeated_products import gathered_product, multiplying
from gemmkit.distributed.schedule import Form
from gemmkit.distributed.spread import SpreadProduct


def one_shot_call(
    asked: SpreadProduct, form: Form, by: OneShot, sizes: Sequence[int], *, turned: bool
) -> Callable[..., Any]:
    """A `WarmCall` for arrays like those of `asked`, without scales of what is gathered.

    Raises:
        UnsupportedProblem: sums of this type are not added up.
        DistributedError: a rank does not come.
    """
    if form == "gather":
        return _gathering(asked, by, sizes, turned=turned)
    return _adding(asked, by, sizes, turned=turned, shared=form == "reduce")


def _gathering(
    asked: SpreadProduct, by: OneShot, sizes: Sequence[int], *, turned: bool
) -> Callable[..., Any]:
    """An operand's lines from all ranks, then the product."""
    gather = Gathering(by, asked.a.dtype, sizes, asked.b.shape[0])
    multiply = gathered_product(asked, sum(sizes), turned=turned)

    def call(
        a: Any, b: Any, bias: Any, residual: Any, c: Any, out: Any, scale_a: Any, scale_b: Any
    ) -> Any:
        lines = gather(b.T.contiguous() if turned else a.contiguous())
        made = multiply(lines, a, b, bias, residual, c, out, scale_a, scale_b)
        by.ended()
        return made

    return call


def _adding(
    asked: SpreadProduct, by: OneShot, sizes: Sequence[int], *, turned: bool, shared: bool
) -> Callable[..., Any]:
    """A product, then this rank's lines of the sums of all ranks, or, if `shared`, all of them."""
    multiply = multiplying(asked.product, asked.product.options)
    follows, dtype = asked.product.adds_once, asked.dtype
    bare = replace(asked.product, transposed=turned, bias=None, residual=None, c=None)
    width, lines = asked.b.shape[1], asked.a.shape[0]
    if turned:
        width, lines = lines, width
    add = Addition(by, dtype, [lines] * by.size if shared else sizes, width, shared=shared)

    def call(
        a: Any, b: Any, bias: Any, residual: Any, c: Any, out: Any, scale_a: Any, scale_b: Any
    ) -> Any:
        sums = kept_arrays.matrix(a, dtype, lines, width)
        into = sums.T if turned else sums
        multiply(a, b, into, True, None, None, None, scale_a, scale_b)
        made = add(sums)
        by.ended()
        if follows or out is not None:
            product = replace(bare, bias=bias, residual=residual, c=c)
            made = finished(product, made, out if out is None or not turned else out.T)
        return made.T if turned else made

    return call
