"""Gradients of products over ranks, which are products over ranks too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.placements import Word, transposed
from gemmkit.distributed.process_group import reduce_collectively
from gemmkit.distributed.products import multiply
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.team import Team


def differentiable(asked: SpreadProduct) -> tuple[Any, tuple[Word, ...]]:
    """As `multiply`, recorded for autograd where an operand requires a gradient.

    The gradient of a matrix that is spread has its placement; of one that all ranks have, or hold
    sums of, all ranks get all of it.
    """
    product = asked.product
    given = asked.a, asked.b, product.bias, product.residual, product.c
    if not (torch.is_grad_enabled() and any(_needs(each) for each in given)):
        return multiply(asked)
    if product.is_linear:
        bare = replace(asked, product=replace(product, bias=None, residual=None, c=None))
        box: list[tuple[Word, ...]] = []
        return _Product.apply(*given, bare, box), box[0]
    # The derivative needs the argument of the activation, which the fused product does not keep.
    chosen = asked.epilogue
    linear = replace(chosen, activation="none", scale=1.0, residual=False)
    first = replace(asked, product=replace(product, epilogue=linear, residual=None))
    argument, placements = differentiable(first)
    made = _activated(argument, chosen.activation)
    if chosen.scale != 1:
        made = made * chosen.scale
    return made if product.residual is None else made + product.residual, placements


def _needs(array: Any) -> bool:
    return array is not None and bool(array.requires_grad)


def _activated(argument: Any, activation: Any) -> Any:
    functions = torch.nn.functional
    if activation == "none":
        return argument
    if activation == "relu":
        return functions.relu(argument)
    if activation == "silu":
        return functions.silu(argument)
    if activation in ("gelu", "gelu_tanh"):
        return functions.gelu(argument, approximate="tanh" if "tanh" in activation else "none")
    from gemmkit.errors import UnsupportedProblem

    raise UnsupportedProblem(
        f"the activation {activation} has no derivative here: detach() the operands, or apply it "
        "to the result"
    )


def _of_gradient(word: Word) -> Word:
    """The placement of the gradient of what has one: of a sum, each term's is that of the sum."""
    return "R" if word == "P" else word


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """A product with β·C, bias and residual, and nothing after them."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Any,
        b: Any,
        bias: Any,
        residual: Any,
        c: Any,
        asked: SpreadProduct,
        box: list[tuple[Word, ...]],
    ) -> Any:
        product = replace(
            asked.product,
            bias=None if bias is None else bias.detach(),
            residual=None if residual is None else residual.detach(),
            c=None if c is None else c.detach(),
        )
        detached = replace(asked, a=a.detach(), b=b.detach(), product=product)
        made, placements = multiply(detached)
        box.append(placements)
        ctx.save_for_backward(a, b)
        ctx.asked, ctx.placements = asked, placements
        by_rows = asked.product.epilogue is not None and asked.product.epilogue.bias == "row"
        ctx.bias = None if bias is None else (bias.dtype, by_rows)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        asked, (a, b) = ctx.asked, ctx.saved_tensors
        result = tuple(_of_gradient(each) for each in ctx.placements)
        given = gradient.to(a.dtype)
        product = LocalProduct(
            alpha=asked.product.alpha,
            precision=asked.product.precision,
            device=asked.product.device,
        )

        def part(
            left: Any,
            right: Any,
            placements: Sequence[tuple[Word, Word]],
            wanted: Sequence[Word],
            of: Any,
        ) -> Any:
            made, _ = multiply(
                SpreadProduct(
                    left,
                    right,
                    asked.teams,
                    tuple(placements),
                    tuple(wanted),
                    product,
                    # The sizes are the same, and their roles are others.
                    whole=(*asked.whole, 0) if asked.whole else (),
                    part=tuple(of.shape),
                )
            )
            return made

        made_a = made_b = made_bias = None
        pairs = list(zip(result, asked.placements, strict=True))
        if ctx.needs_input_grad[0]:
            placements = [(out, transposed(of_b)) for out, (_, of_b) in pairs]
            wanted = [_of_gradient(of_a) for _, (of_a, _) in pairs]
            made_a = part(given, b.detach().T, placements, wanted, a)
        if ctx.needs_input_grad[1]:
            placements = [(transposed(of_a), out) for out, (of_a, _) in pairs]
            wanted = [_of_gradient(of_b) for _, (_, of_b) in pairs]
            made_b = part(a.detach().T, given, placements, wanted, b)
        if ctx.needs_input_grad[2]:
            made_bias = _bias_gradient(gradient, asked.teams, result, *ctx.bias)
        made_residual = gradient if ctx.needs_input_grad[3] else None
        made_c = gradient * asked.product.beta if ctx.needs_input_grad[4] else None
        return made_a, made_b, made_bias, made_residual, made_c, None, None


def _bias_gradient(
    gradient: Any, teams: Sequence[Team], placements: Sequence[Word], dtype: Any, by_rows: bool
) -> Any:
    """The sum of the gradient's lines over all ranks, in fp32 where it has 16 bits."""
    wide = gradient.float() if gradient.itemsize < 4 else gradient
    made = wide.sum(1 if by_rows else 0)
    spread = "S(1)" if by_rows else "S(0)"
    for team, word in zip(teams, placements, strict=True):
        if word == spread and team.size > 1:
            made = reduce_collectively(team.communicator, made)
    return made.to(dtype)
