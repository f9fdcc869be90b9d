"""gemmkit's products in PyTorch: custom operators with gradients, usable under `torch.compile`.

`matmul` and `linear` call the operators `torch.ops.gemmkit.matmul` and `torch.ops.gemmkit.linear`,
whose gradients are gemmkit's products too.
"""

from __future__ import annotations

from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("gemmkit.torch needs PyTorch: pip install 'gemmkit[torch]'") from error

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError, unknown_name
from gemmkit.ops.libraries import torch_operators  # noqa: F401 (it registers)
from gemmkit.ops.libraries.torch import check_kind
from gemmkit.ops.libraries.torch_checks import (
    check_alike,
    check_tangent,
    check_together,
    product_shape,
    result_type,
    tangents_checked,
)
from gemmkit.ops.libraries.torch_registry import register
from gemmkit.ops.matmul import matmul as _gemmkit_matmul
from gemmkit.ops.precision import settled
from gemmkit.ops.tracing import recordable

__all__ = ["linear", "matmul"]

# Activations whose derivative needs their input, which linear stores beside its result.
_OF_ARGUMENT = ("gelu", "gelu_tanh", "silu")
_ACTIVATIONS = ("none", "relu", *_OF_ARGUMENT)


@recordable()
def matmul(a: torch.Tensor, b: torch.Tensor, *, precision: str | None = None) -> torch.Tensor:
    """The product of two tensors by the rules of `torch.matmul`, computed by gemmkit.

    Twice differentiable; a single operator for `torch.compile`; on the current CUDA stream, and
    safe to capture in a CUDA graph after a first call with the same shapes. Under autocast,
    float32, float16 and bfloat16 tensors are converted to its type first, as for
    `torch.matmul`.

    Args:
        a: float32, float64, float16 or bfloat16, with at least 1 dimension and any strides; or
            float8_e4m3fn or float8_e5m2, with a result in float32 and without gradients.
        b: with the same type and device.
        precision: as for `gemmkit.matmul`; gradients are computed in it too.

    Raises:
        UsageError: shapes, types or devices that cannot be multiplied, or a forward-mode tangent.
    """
    precision, a, b = _ready(precision, a=a, b=b)
    with tangents_checked():
        product: torch.Tensor = torch.ops.gemmkit.matmul(a, b, precision)
    return product


@recordable()
def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = "none",
    *,
    precision: str | None = None,
) -> torch.Tensor:
    """A linear layer, activation(x Wᵀ + bias), in one kernel; the weight is read in place.

    Twice differentiable. If a gradient is needed, "gelu", "gelu_tanh" and "silu" store their input
    as well, for the derivative; "relu" needs only its result. `torch.compile`, CUDA graphs and
    autocast are as for `matmul`.

    Args:
        x: of shape (..., k).
        weight: of shape (n, k), as in `torch.nn.Linear`.
        bias: of shape (n,) and the type of the result, or None.
        activation: "none" or None, "relu", "gelu" (by the error function), "gelu_tanh" or "silu".
        precision: as for `matmul`.

    Returns:
        A tensor of shape (..., n).

    Raises:
        UsageError: shapes, types or devices that cannot be multiplied, an unknown activation, or a
            forward-mode tangent.
    """
    activation = _checked_activation(activation)
    if bias is None:
        precision, x, weight = _ready(precision, x=x, weight=weight)
    else:
        precision, x, weight, bias = _ready(precision, x=x, weight=weight, bias=bias)
    wanted = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, bias)
    )
    keep = wanted and activation in _OF_ARGUMENT
    with tangents_checked():
        result: torch.Tensor = torch.ops.gemmkit.linear(
            x, weight, bias, activation, keep, precision
        )[0]
    return result


def _ready(precision: str | None, **tensors: torch.Tensor) -> list[Any]:
    """The precision of the product, and the tensors converted to the autocast type, if autocast is
    on; float64 is unchanged, and so are products of 8 bits.

    Raises:
        UsageError: one is not a tensor, is refused by `check_kind`, has a forward-mode tangent,
            which PyTorch would drop, or requires a gradient and has 8 bits; or there is no such
            precision of its type.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedType(
                f"{name} has type {type(tensor).__name__}, which is not a PyTorch tensor: use "
                "gemmkit.matmul for arrays of other libraries"
            )
        check_kind(tensor, name)
        check_tangent(tensor, name)
        if tensor.itemsize == 1 and tensor.requires_grad and torch.is_grad_enabled():
            raise UsageError(
                f"{name} requires a gradient, which products of {tensor.dtype} do not have: "
                "detach it, or convert it with .to()"
            )
    given = list(tensors.values())
    found = settled(precision, str(given[0].dtype).removeprefix("torch."))
    kind = given[0].device.type
    narrow = given[0].itemsize == 1
    if narrow or kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return [found, *given]
    dtype = torch.get_autocast_dtype(kind)
    converted = [
        tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
        for tensor in given
    ]
    # What is converted to 16 bits has none.
    return [found if converted[0].dtype == torch.float32 else "ieee", *converted]


# -- matmul


# PyTorch leaves out arguments that are the schema's default.
def _matmul(a: torch.Tensor, b: torch.Tensor, precision: str = "ieee") -> torch.Tensor:
    product: torch.Tensor = _gemmkit_matmul(a, b, precision=precision)
    return product


def _matmul_shape(
    a: torch.Tensor,
    b: torch.Tensor,
    precision: str = "ieee",  # noqa: ARG001
) -> torch.Tensor:
    return a.new_empty(product_shape(a, b), dtype=result_type(a))


def _matmul_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    a, b, ctx.precision = inputs
    ctx.save_for_backward(a, b)


def _matmul_backward(
    ctx: Any, grad: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    """dA = dC B^T and dB = A^T dC, summed over broadcast dimensions."""
    a, b = ctx.saved_tensors
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    if b.dim() == 1:
        grad = grad.unsqueeze(-1)
    if a.dim() == 1:
        grad = grad.unsqueeze(-2)
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = torch.ops.gemmkit.matmul(grad, right.mT, ctx.precision)
        grad_a = grad_a.sum_to_size(left.shape).reshape(a.shape)
    if ctx.needs_input_grad[1]:
        if right.dim() == 2:
            # The stack shares B: one product with a long k instead of a sum over the stack.
            left, grad = left.flatten(0, -2), grad.flatten(0, -2)
        grad_b = torch.ops.gemmkit.matmul(left.mT, grad, ctx.precision)
        grad_b = grad_b.sum_to_size(right.shape).reshape(b.shape)
    return grad_a, grad_b, None


# -- linear


def _linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    keep: bool,
    precision: str = "ieee",
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_linear(x, weight, bias, activation)
    epilogue = Epilogue(
        bias="" if bias is None else "column",
        activation=activation,  # type: ignore[arg-type]
        auxiliary=keep,
    )
    argument = _argument(x, weight, keep)
    result: torch.Tensor = _gemmkit_matmul(
        x,
        weight.t(),
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


def _linear_shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    keep: bool,
    precision: str = "ieee",  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_linear(x, weight, bias, activation)
    result = x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=result_type(x))
    return result, _argument(x, weight, keep)


def _check_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> None:
    _checked_activation(activation)
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
            "bias of shape ({weight.shape[0]},)"
        )


def _checked_activation(activation: str | None) -> str:
    """The activation by its name, which case does not matter for; None is none."""
    named = "none" if activation is None else activation.strip().lower()
    if named not in _ACTIVATIONS:
        raise UsageError(unknown_name("activation", activation, _ACTIVATIONS))
    return named


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, weight, bias, activation, keep, ctx.precision = inputs
    result, argument = output
    ctx.activation = activation
    ctx.kept = keep
    # No zeros for the gradient of the input, which only second derivatives produce.
    ctx.set_materialize_grads(False)
    saved = result if activation == "relu" else argument
    ctx.save_for_backward(x, weight, bias, saved)


def _linear_backward(
    ctx: Any, grad: torch.Tensor | None, grad_argument: torch.Tensor | None
) -> tuple[Any, ...]:
    """Gradients by gemmkit's products, from the gradient of the activation's input.

    `grad_argument` comes from a second derivative.
    """
    x, weight, bias, saved = ctx.saved_tensors
    if ctx.activation in _OF_ARGUMENT and not ctx.kept:
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
    "matmul",
    '(Tensor a, Tensor b, str precision="ieee") -> Tensor',
    _matmul,
    _matmul_shape,
    backward=_matmul_backward,
    context=_matmul_context,
)
register(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias, str activation, bool keep, "
    'str precision="ieee") -> (Tensor, Tensor)',
    _linear,
    _linear_shape,
    backward=_linear_backward,
    context=_linear_context,
)
