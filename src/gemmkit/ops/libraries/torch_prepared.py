"""Prepared weights in PyTorch: products with gradients of all but the weight."""

from __future__ import annotations

from typing import Any

import torch

from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.libraries.torch_checks import check_tangent, result_type
from gemmkit.ops.libraries.torch_linear import OF_ARGUMENT, linear_backward
from gemmkit.ops.matmul import matmul
from gemmkit.ops.prepared_operands import PreparedOperand, taken
from gemmkit.ops.tracing import compiling


def prepared_product(
    a: torch.Tensor, b: PreparedOperand, precision: str | None = None
) -> torch.Tensor:
    """a · b, with a gradient to a alone, which is multiplied from b's own tensor.

    Raises:
        UsageError: as `gemmkit.matmul`, or a forward-mode tangent.
    """
    _check(a=a, weight=b.array)
    *_, found, _ = taken(a, b, precision)
    if compiling():
        traced: torch.Tensor = torch.ops.gemmkit.matmul(a, b.array, found)
        return traced
    result: torch.Tensor = _Product.apply(a, b, found)
    return result


def prepared_linear(
    x: torch.Tensor,
    weight: PreparedOperand,
    bias: torch.Tensor | None,
    activation: str,
    precision: str | None = None,
) -> torch.Tensor:
    """activation(x · weightᵀ + bias), with gradients to x and bias.

    Raises:
        UsageError: as `gemmkit.torch.linear`; or the weight was not prepared with `transpose=True`.
    """
    if not weight.is_transpose:
        raise UsageError("weight was prepared as it is: prepare it with transpose=True for linear")
    tensor = weight.array.mT
    given = {} if bias is None else {"bias": bias}
    _check(x=x, weight=tensor, **given)
    *_, found, _ = taken(x, weight.T, precision)
    wanted = torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in (x, bias)
    )
    keep = wanted and activation in OF_ARGUMENT
    if compiling():
        traced: torch.Tensor = torch.ops.gemmkit.linear(x, tensor, bias, activation, keep, found)[0]
        return traced
    arguments = (x, tensor, bias, activation, keep, found, weight.T)
    result: torch.Tensor = _Linear.apply(*arguments)[0]
    return result


def _check(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedType(
                f"{name} has type {type(tensor).__name__}, which is not a PyTorch tensor: use "
                "gemmkit.matmul for arrays of other libraries"
            )
        check_tangent(tensor, name)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """The product with a prepared operand on the right."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: PreparedOperand, precision: str) -> torch.Tensor:
        ctx.prepared, ctx.precision = b, precision
        product: torch.Tensor = matmul(a, b, precision=precision)
        return product

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """dA = dC · Bᵀ."""
        grad = torch.ops.gemmkit.matmul(grads[0], ctx.prepared.array.mT, ctx.precision)
        return grad, None, None


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """A linear layer with a prepared weight; its arguments begin as those of the operator
    `gemmkit::linear`, whose gradients it has."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str,
        keep: bool,
        precision: str,
        prepared: PreparedOperand,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (*x.shape[:-1], weight.shape[0]) if keep else (0,)
        argument = x.new_empty(shape, dtype=result_type(x))
        result: torch.Tensor = matmul(
            x,
            prepared,
            epilogue=activation,
            bias=bias,
            auxiliary=argument if keep else None,
            precision=precision,
        )
        ctx.activation, ctx.kept, ctx.precision = activation, keep, precision
        ctx.set_materialize_grads(False)
        saved = result if activation == "relu" else argument
        ctx.save_for_backward(x, weight, bias, saved)
        return result, argument

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        return (*linear_backward(ctx, *grads), None)
