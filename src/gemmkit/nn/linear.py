"""A fully connected layer: a product whose write-back adds the bias and applies the activation."""

from __future__ import annotations

import math
from typing import Any

from gemmkit.epilogue import Activation, Custom
from gemmkit.nn.namespace import Array, expect_one_type, expect_shape, shape_of
from gemmkit.nn.products import project, recorded
from gemmkit.ops.tracing import recordable


@recordable()
def linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: Activation | Custom | None = "none",
    residual: Array | None = None,
    precision: str | None = None,
    stream: Any = None,
    device: Any = None,
) -> Array:
    """A linear layer, activation(x · weightᵀ + bias) + residual, in one kernel.

    Args:
        x: (…, k).
        weight: (n, k), as PyTorch's `Linear` keeps it; it is read transposed, not copied. A
            constant one may be given as `gemmkit.prepare` makes it with `transpose=True`.
        bias: (n), or None.
        activation: a name, that of an `Epilogue.custom`, or None.
        residual: an array of the result's shape, which is added last.
        precision: as for `gemmkit.matmul`.
        stream: the stream to launch on; by default the caller's current stream.
        device: as for `gemmkit.matmul`.

    Returns:
        (…, n), of x's kind and on its device.

    Raises:
        UsageError: shapes or types do not fit.
    """
    *leading, k = shape_of(x, "x", least=1)
    n = shape_of(weight, "weight", rank=2)[0]
    expect_shape(weight, "weight", (n, k))
    if bias is not None:
        expect_shape(bias, "bias", (n,))
    if residual is not None:
        expect_shape(residual, "residual", (*leading, n))
        residual = _rows(residual)
    if not recorded(x, weight, bias, residual):
        # Under autocast, what records gradients converts.
        expect_one_type(x=x, weight=weight, bias=bias, residual=residual)
    result = project(
        _rows(x),
        weight,
        bias=bias,
        activation=activation,
        residual=residual,
        precision=precision,
        stream=stream,
        device=device,
    )
    return result if len(leading) == 1 else result.reshape((*leading, n))


def _rows(array: Array) -> Array:
    """The matrix whose rows are an array's last axis."""
    *leading, size = array.shape
    return array if len(leading) == 1 else array.reshape((math.prod(leading), size))
