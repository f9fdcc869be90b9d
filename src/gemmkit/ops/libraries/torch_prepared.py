"""Prepared weights in PyTorch: products with gradients of all but the weight.

Compiled programs have operators, `gemmkit::prepared_matmul` and `gemmkit::prepared_linear`, which
get the weight and the key of what holds its prepared form. They multiply that if it is still of
the weight's memory, else the weight.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.libraries.torch_checks import check_tangent, result_type
from gemmkit.ops.libraries.torch_linear import (
    OF_ARGUMENT,
    linear_backward,
    linear_context,
    linear_of,
    linear_shape,
)
from gemmkit.ops.libraries.torch_matmul import matmul_backward, matmul_context, matmul_shape
from gemmkit.ops.libraries.torch_registry import register
from gemmkit.ops.matmul import matmul
from gemmkit.ops.prepared_forms import holders
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
        traced: torch.Tensor = torch.ops.gemmkit.prepared_matmul(a, b.array, b.key, found)
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
        return traced_linear(x, tensor, bias, activation, keep, weight.precision, weight.key)
    arguments = (x, tensor, bias, activation, keep, found, weight.T)
    result: torch.Tensor = _Linear.apply(*arguments)[0]
    return result


def traced_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    keep: bool,
    precision: str,
    key: str,
) -> torch.Tensor:
    """The layer as `torch.compile` records it; `key` is that of what holds the prepared weight."""
    arguments = (x, weight, bias, activation, keep, precision, key)
    traced: torch.Tensor = torch.ops.gemmkit.prepared_linear(*arguments)[0]
    return traced


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


# --- the operators ------------------------------------------------------------------------------


def _held(weight: torch.Tensor, key: str, precision: str) -> PreparedOperand | None:
    """What holds the prepared form of this very weight, a matrix or its transpose, as B."""
    holder = PreparedOperand.held_by(key)
    layer = None if holder is not None else holders.get(key)
    if layer is not None:
        # A module, which looks whether its weight has changed.
        holder = layer.prepared().T
    if holder is None or holder.precision != precision:
        return None
    own = holder.array
    same = own.data_ptr() == weight.data_ptr() and own.device == weight.device
    laid_out = {(own.shape, own.stride()), (own.mT.shape, own.mT.stride())}
    return holder if same and (weight.shape, weight.stride()) in laid_out else None


def _matmul(a: torch.Tensor, b: torch.Tensor, key: str, precision: str) -> torch.Tensor:
    product: torch.Tensor = matmul(a, _held(b, key, precision) or b, precision=precision)
    return product


def _matmul_like(a: torch.Tensor, b: torch.Tensor, key: str, precision: str) -> torch.Tensor:  # noqa: ARG001
    return matmul_shape(a, b, precision)


def _matmul_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, _, precision = inputs
    matmul_context(ctx, (a, b, precision), output)


def _matmul_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return (*matmul_backward(ctx, grad), None)


def _linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    keep: bool,
    precision: str,
    key: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    held = _held(weight, key, precision)
    return linear_of(x, weight, bias, activation, keep, precision, held)


def _linear_like(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return linear_shape(*arguments[:-1])


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    linear_context(ctx, inputs[:-1], output)


def _linear_backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
    return (*linear_backward(ctx, *grads), None)


register(
    "prepared_matmul",
    "(Tensor a, Tensor b, str key, str precision) -> Tensor",
    _matmul,
    _matmul_like,
    backward=_matmul_backward,
    context=_matmul_context,
)
register(
    "prepared_linear",
    "(Tensor x, Tensor weight, Tensor? bias, str activation, bool keep, str precision, str key) "
    "-> (Tensor, Tensor)",
    _linear,
    _linear_like,
    backward=_linear_backward,
    context=_linear_context,
)
