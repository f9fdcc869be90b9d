"""The products that layers are made of; where PyTorch records gradients, by operators that do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gemmkit.epilogue import Activation, Bias, Custom, Epilogue
from gemmkit.errors import UsageError
from gemmkit.nn.namespace import Array
from gemmkit.ops.matmul import gemm, matmul
from gemmkit.ops.tracing import compiling, needs_operator


def multiply(
    a: Array,
    b: Array,
    *,
    alpha: float = 1,
    total: Array | None = None,
    row_bias: Array | None = None,
    activation: Activation | Custom | None = "none",
    out_dtype: str | None = None,
    precision: str | None = None,
    writable: bool = True,
    device: Any = None,
) -> Array:
    """activation(alpha · a · b + total + row_bias), for stacks as `gemmkit.matmul` multiplies them.

    If it is `writable`, `total` is where the result is, unless a gradient is recorded.
    """
    if recorded(a, b, total, row_bias):
        return _recorded_product(a, b, alpha, total, row_bias, activation, out_dtype, precision)
    return matmul(
        a,
        b,
        out=total if writable and _writes_at_once(a, b, total) else None,
        alpha=alpha,
        c=total,
        beta=0 if total is None else 1,
        epilogue=_epilogue("" if row_bias is None else "row", activation),
        bias=row_bias,
        out_dtype=out_dtype,
        precision=precision,
        device=device,
    )


def project(
    rows: Array,
    weight: Array,
    *,
    total: Array | None = None,
    bias: Array | None = None,
    activation: Activation | Custom | None = "none",
    residual: Array | None = None,
    precision: str | None = None,
    stream: Any = None,
    device: Any = None,
) -> Array:
    """activation(rows · weightᵀ + total + bias) + residual, for matrices; of `total` and bias one.

    `total` is where the result is, if its library lets it be written and no gradient is recorded.
    """
    if recorded(rows, weight, total, bias, residual):
        return _recorded_projection(
            rows, weight, total, bias, activation, residual, precision, stream
        )
    if not _writes_at_once(rows, weight, total):
        return matmul(
            rows,
            weight.T,
            c=total,
            beta=1,
            epilogue=_epilogue("", activation),
            bias=bias,
            residual=residual,
            precision=precision,
            stream=stream,
            device=device,
        )
    return gemm(
        rows,
        weight,
        total,
        transb=True,
        beta=0 if total is None else 1,
        epilogue=_epilogue("", activation),
        bias=bias,
        residual=residual,
        precision=precision,
        stream=stream,
        device=device,
    )


def _writes_at_once(a: Array, b: Array, total: Array | None) -> bool:
    """Whether a total may be overwritten; for traced tensors the result is a new one."""
    return total is None or not needs_operator((a, b, total))


def _epilogue(bias: Bias, activation: Activation | Custom | None) -> Epilogue:
    return (
        Epilogue(bias, activation or "none") if compiling() else _cached_epilogue(bias, activation)
    )


@lru_cache(maxsize=256)
def _cached_epilogue(bias: Bias, activation: Activation | Custom) -> Epilogue:
    return Epilogue(bias, activation)


def recorded(*arrays: Array | None) -> bool:
    """Whether PyTorch is to record how a result follows from these."""
    if not any(getattr(each, "requires_grad", False) for each in arrays if not _is_numpys(each)):
        return False
    import torch

    return bool(torch.is_grad_enabled())


def _is_numpys(array: Array | None) -> bool:
    """Whether an array is one of NumPy's, whose attributes torch.compile does not all know."""
    return isinstance(array, np.ndarray)


def _recorded_product(
    a: Any,
    b: Any,
    alpha: float,
    total: Any,
    row_bias: Any,
    activation: Activation | Custom | None,
    out_dtype: str | None,
    precision: str | None,
) -> Any:
    import torch

    from gemmkit.torch import matmul as recorded_matmul

    if out_dtype is not None:
        a, b = (each.to(getattr(torch, out_dtype)) for each in (a, b))
    result = recorded_matmul(a, b, precision=precision)
    result = result if alpha == 1 else alpha * result
    result = result if total is None else total + result
    result = result if row_bias is None else result + row_bias[:, None]
    return _activated(result, activation)


def _recorded_projection(
    rows: Any,
    weight: Any,
    total: Any,
    bias: Any,
    activation: Activation | Custom | None,
    residual: Any,
    precision: str | None,
    stream: Any,
) -> Any:
    from gemmkit.torch import linear

    if stream is not None:
        raise UsageError(
            "where a gradient is recorded, PyTorch's current stream is used: leave stream out, and "
            "enter torch.cuda.stream"
        )
    if total is not None:
        return _activated(total + linear(rows, weight, precision=precision), activation)
    result = linear(rows, weight, bias, _differentiable(activation), precision=precision)
    return result if residual is None else result + residual


def _activated(x: Any, activation: Activation | Custom | None) -> Any:
    from torch.nn import functional

    match _differentiable(activation):
        case "relu":
            return functional.relu(x)
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "silu":
            return functional.silu(x)
        case _:
            return x


def _differentiable(activation: Activation | Custom | None) -> Activation:
    """The activation, if its derivative is known.

    Raises:
        UsageError: it is the user's own.
    """
    activation = _epilogue("", activation).activation
    if isinstance(activation, Custom):
        raise UsageError(
            f"the derivative of {activation} is not known: use detach(), torch.no_grad(), or an "
            "activation that has a name"
        )
    return activation
