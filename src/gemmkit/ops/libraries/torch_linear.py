"""`gemmkit::linear`, the operator of a linear layer: its result, its shape and its gradients."""

from __future__ import annotations

from typing import Any

import torch

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError, unknown_name
from gemmkit.ops.libraries.torch_checks import check_alike, check_together, result_type
from gemmkit.ops.libraries.torch_registry import register
from gemmkit.ops.matmul import matmul
from gemmkit.ops.prepared_operands import PreparedOperand

# Activations whose derivative needs their input, which linear stores beside its result.
OF_ARGUMENT = ("gelu", "gelu_tanh", "silu")
_ACTIVATIONS = ("none", "relu", *OF_ARGUMENT)


def linear_of(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    keep: bool,
    precision: str = "ieee",
    held: PreparedOperand | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the activation's input if it is to be kept; `held` is the transpose of the
    weight as it was prepared."""
    _check_linear(x, weight, bias, activation)
    epilogue = Epilogue(
        bias="" if bias is None else "column",
        activation=activation,  # type: ignore[arg-type]
        auxiliary=keep,
    )
    argument = _argument(x, weight, keep)
    result: torch.Tensor = matmul(
        x,
        weight.t() if held is None else held,
        epilogue=epilogue,
        bias=bias,
        auxiliary=argument if keep else None,
        precision=precision,
    )
    return result, argument


def _argument(x: torch.Tensor, weight: torch.Tensor, keep: bool) -> torch.Tensor:
    """A tensor for the activation's input, of the result's shape, or an empty one."""
    shape = (*x.shape[:-1], weight.shape[0]) if keep else (0,)
    return x.new_empty(shape, dtype=result_type(x))


def linear_shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    keep: bool,
    precision: str = "ieee",  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results without memory."""
    _check_linear(x, weight, bias, activation)
    result = x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=result_type(x))
    return result, _argument(x, weight, keep)


def _check_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> None:
    checked_activation(activation)
    check_alike(x=x, weight=weight)
    check_together(x=x, bias=bias)
    if bias is not None and bias.dtype != result_type(x):
        raise UnsupportedType(
            f"x has type {x.dtype} and bias has type {bias.dtype}: convert the bias to "
            f"{result_type(x)}, the type of the result"
        )
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise UsageError(
            f"x of shape {tuple(x.shape)} and weight of shape {tuple(weight.shape)}: linear needs "
            "(..., k) and (n, k)"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
        raise UsageError(
            f"bias of shape {tuple(bias.shape)}: a weight of shape {tuple(weight.shape)} needs a "
            f"bias of shape ({weight.shape[0]},)"
        )


def checked_activation(activation: str | None) -> str:
    """The activation by its name, which case does not matter for; None is none."""
    named = "none" if activation is None else activation.strip().lower()
    if named not in _ACTIVATIONS:
        raise UsageError(unknown_name("activation", activation, _ACTIVATIONS))
    return named


def linear_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    """What the gradients need."""
    x, weight, bias, activation, keep, ctx.precision = inputs
    result, argument = output
    ctx.activation = activation
    ctx.kept = keep
    # No zeros for the gradient of the input, which only second derivatives produce.
    ctx.set_materialize_grads(False)
    saved = result if activation == "relu" else argument
    ctx.save_for_backward(x, weight, bias, saved)


def linear_backward(
    ctx: Any, grad: torch.Tensor | None, grad_argument: torch.Tensor | None
) -> tuple[Any, ...]:
    """Gradients by gemmkit's products, from the gradient of the activation's input.

    `grad_argument` comes from a second derivative.
    """
    x, weight, bias, saved = ctx.saved_tensors
    if ctx.activation in OF_ARGUMENT and not ctx.kept:
        saved = torch.ops.gemmkit.linear(x, weight, bias, "none", False, ctx.precision)[0]
    inner = grad_argument if ctx.kept else None
    if grad is not None:
        through = _through_activation(ctx.activation, grad, saved)
        inner = through if inner is None else inner + through
    if inner is None:
        return None, None, None, None, None, None
    grad_x = grad_weight = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_x = torch.ops.gemmkit.matmul(inner, weight, ctx.precision)
    rows = inner.unsqueeze(0) if inner.dim() == 1 else inner.flatten(0, -2)
    if ctx.needs_input_grad[1]:
        inputs = x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
        grad_weight = torch.ops.gemmkit.matmul(rows.t(), inputs, ctx.precision)
    if bias is not None and ctx.needs_input_grad[2]:
        grad_bias = rows.sum(0)
    return grad_x, grad_weight, grad_bias, None, None, None


def _through_activation(activation: str, grad: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """The gradient of the activation's input; `saved` is that input, for ReLU its result."""
    aten = torch.ops.aten
    match activation:
        case "relu":
            found = aten.threshold_backward(grad, saved, 0)
        case "gelu":
            found = aten.gelu_backward(grad, saved)
        case "gelu_tanh":
            found = aten.gelu_backward(grad, saved, approximate="tanh")
        case "silu":
            found = _through_silu(grad, saved)
        case _:
            found = grad
    return found


def _through_silu(grad: torch.Tensor, argument: torch.Tensor) -> torch.Tensor:
    """SiLU's derivative, s(1 + z(1 - s)) with s the sigmoid of z, times the gradient.

    PyTorch's own operator for it has no derivative, so it is written out where one may be needed.
    """
    if not torch.is_grad_enabled():
        found: torch.Tensor = torch.ops.aten.silu_backward(grad, argument)
        return found
    z = argument.to(torch.promote_types(argument.dtype, torch.float32))
    sigmoid = z.sigmoid()
    return (grad * (sigmoid * (1 + z * (1 - sigmoid)))).to(argument.dtype)


register(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias, str activation, bool keep, "
    'str precision="ieee") -> (Tensor, Tensor)',
    linear_of,
    linear_shape,
    backward=linear_backward,
    context=linear_context,
)
