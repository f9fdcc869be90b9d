"""`gemmkit::ragged_matmul`, the operator of a ragged product: its result, its shape, its gradients.

That of B is a product of each group's rows by each other, `gemmkit::ragged_outer`, whose depths are
sizes of the launch: offsets on a GPU are waited for there.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from gemmkit.errors import UsageError
from gemmkit.ops.grouped import grouped_matmul
from gemmkit.ops.libraries.torch_checks import result_type
from gemmkit.ops.libraries.torch_registry import register
from gemmkit.ops.ragged import ragged_matmul


# PyTorch leaves out arguments that are the schema's default.
def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    bias: torch.Tensor | None = None,
    precision: str = "ieee",
) -> torch.Tensor:
    _product_shape(a, b, offsets)
    # Rows past the last end are zero, so that nothing undefined reaches a gradient.
    whole = offsets.device.type == "cpu" and offsets.numel() and int(offsets[-1]) == len(a)
    out = (torch.empty if whole else torch.zeros)(
        (len(a), b.shape[2]), dtype=result_type(a), device=a.device
    )
    ragged_matmul(a, b, offsets, out=out, bias=bias, precision=precision)
    return out


def _product_shape(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    bias: torch.Tensor | None = None,  # noqa: ARG001
    precision: str = "ieee",  # noqa: ARG001
) -> torch.Tensor:
    """A result without memory."""
    if a.dim() != 2 or b.dim() != 3:
        raise UsageError(
            f"a has the shape {tuple(a.shape)} and b {tuple(b.shape)}: they must be (rows, k) and "
            "(groups, k, n)"
        )
    if a.shape[1] != b.shape[1]:
        raise UsageError(
            f"a has {a.shape[1]} columns and each matrix of b {b.shape[1]} rows: k must be the same"
        )
    if offsets.shape != b.shape[:1]:
        raise UsageError(
            f"offsets have the shape {tuple(offsets.shape)}; b has {b.shape[0]} groups, each of "
            "which has an end"
        )
    return a.new_empty((a.shape[0], b.shape[2]), dtype=result_type(a))


def _product_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    """What the gradients need."""
    a, b, offsets, bias, ctx.precision = inputs
    ctx.save_for_backward(a, b, offsets)
    ctx.bias = None if bias is None else (bias.dim(), bias.dtype)


def _product_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """dA = dC B^T and dB = A^T dC of each group; the gradient of a bias is a sum of rows."""
    a, b, offsets = ctx.saved_tensors
    grad_a = grad_b = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_a = torch.ops.gemmkit.ragged_matmul(grad, b.mT, offsets, None, ctx.precision)
    if ctx.needs_input_grad[1]:
        grad_b = torch.ops.gemmkit.ragged_outer(a, grad, offsets, ctx.precision)
    if ctx.bias is not None and ctx.needs_input_grad[3]:
        dims, dtype = ctx.bias
        rows = torch.arange(len(grad), device=grad.device)
        group = torch.searchsorted(offsets.to(grad.device, torch.int64), rows, right=True)
        # In fp32 at least; rows past the last end are those of one group more.
        wide = torch.promote_types(grad.dtype, torch.float32)
        sums = grad.new_zeros((len(b) + 1, grad.shape[1]), dtype=wide)
        sums = sums.index_add(0, group, grad.to(wide))[:-1]
        grad_bias = (sums if dims == 2 else sums.sum(0)).to(dtype)
    return grad_a, grad_b, None, grad_bias, None


def _outer(
    a: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor, precision: str = "ieee"
) -> torch.Tensor:
    """A^T C of each group's rows, zero for an empty one."""
    result = _outer_shape(a, grad, offsets)
    parts = list(pairwise((0, *offsets.tolist())))
    grouped_matmul(
        [a[start:end].mT for start, end in parts],
        [grad[start:end] for start, end in parts],
        out=list(result),
        precision=precision,
    )
    return result


def _outer_shape(
    a: torch.Tensor,
    grad: torch.Tensor,
    offsets: torch.Tensor,
    precision: str = "ieee",  # noqa: ARG001
) -> torch.Tensor:
    return a.new_empty((offsets.shape[0], a.shape[1], grad.shape[1]), dtype=result_type(a))


def _outer_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    a, grad, offsets, ctx.precision = inputs
    ctx.save_for_backward(a, grad, offsets)


def _outer_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, c, offsets = ctx.saved_tensors
    grad_a = grad_c = None
    if ctx.needs_input_grad[0]:
        grad_a = torch.ops.gemmkit.ragged_matmul(c, grad.mT, offsets, None, ctx.precision)
    if ctx.needs_input_grad[1]:
        grad_c = torch.ops.gemmkit.ragged_matmul(a, grad, offsets, None, ctx.precision)
    return grad_a, grad_c, None, None


register(
    "ragged_matmul",
    '(Tensor a, Tensor b, Tensor offsets, Tensor? bias=None, str precision="ieee") -> Tensor',
    _product,
    _product_shape,
    backward=_product_backward,
    context=_product_context,
)
register(
    "ragged_outer",
    '(Tensor a, Tensor grad, Tensor offsets, str precision="ieee") -> Tensor',
    _outer,
    _outer_shape,
    backward=_outer_backward,
    context=_outer_context,
)
