"""`gemmkit::matmul`, the operator of a product: its result, its shape and its gradients."""

from __future__ import annotations

from typing import Any

import torch

from gemmkit.ops.libraries.torch_checks import product_shape, result_type
from gemmkit.ops.libraries.torch_registry import register
from gemmkit.ops.matmul import matmul


# PyTorch leaves out arguments that are the schema's default.
def _matmul(a: torch.Tensor, b: torch.Tensor, precision: str = "ieee") -> torch.Tensor:
    product: torch.Tensor = matmul(a, b, precision=precision)
    return product


def matmul_shape(
    a: torch.Tensor,
    b: torch.Tensor,
    precision: str = "ieee",  # noqa: ARG001
) -> torch.Tensor:
    """A result without memory."""
    return a.new_empty(product_shape(a, b), dtype=result_type(a))


def matmul_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    """What the gradients need."""
    a, b, ctx.precision = inputs
    ctx.save_for_backward(a, b)


def matmul_backward(
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


register(
    "matmul",
    '(Tensor a, Tensor b, str precision="ieee") -> Tensor',
    _matmul,
    matmul_shape,
    backward=matmul_backward,
    context=matmul_context,
)
