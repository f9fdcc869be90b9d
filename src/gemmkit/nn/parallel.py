"""Linear layers over several ranks: a column-parallel one, and the row-parallel one after it."""

from __future__ import annotations

from typing import Any

from gemmkit.epilogue import Activation, Custom, Epilogue
from gemmkit.nn.namespace import Array


def column_parallel_linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: Activation | Custom | None = "none",
    sequence_parallel: bool = False,
    group: Any = None,
    precision: str | None = None,
    device: Any = None,
) -> Array:
    """This rank's columns of activation(x · weightᵀ + bias), for PyTorch's tensors.

    Args:
        x: (…, k): all rows, or with `sequence_parallel` this rank's share of the first dimension,
            which is gathered under the product.
        weight: (n / ranks, k), this rank's share of the rows.
        bias: (n / ranks), likewise, or None.
        activation: as for `gemmkit.nn.linear`.
        sequence_parallel: whether the first dimension of x is spread.
        group: a process group of PyTorch's, by default that of all ranks.
        precision: as for `gemmkit.matmul`.
        device: as for `gemmkit.matmul`.

    Returns:
        (…, n / ranks).

    Raises:
        UsageError: shapes or types do not fit.
        DistributedError: ranks ask for different products, or one has failed.
        ImportError: there is no PyTorch; the message says how to get it.
    """
    placements = "S(0)" if sequence_parallel else "R", "S(1)"
    return _product(x, weight, bias, activation, group, precision, device, placements, "S(-1)")


def row_parallel_linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: Activation | Custom | None = "none",
    sequence_parallel: bool = False,
    group: Any = None,
    precision: str | None = None,
    device: Any = None,
) -> Array:
    """activation(Σ x · weightᵀ + bias) over all ranks, for PyTorch's tensors.

    Args:
        x: (…, k / ranks), as `column_parallel_linear` returns it.
        weight: (n, k / ranks), this rank's share of the columns.
        bias: (n), the same on all ranks, or None.
        activation: as for `gemmkit.nn.linear`.
        sequence_parallel: whether each rank gets its share of the first dimension only.
        group: a process group of PyTorch's, by default that of all ranks.
        precision: as for `gemmkit.matmul`.
        device: as for `gemmkit.matmul`.

    Returns:
        (…, n), or this rank's share of it.

    Raises:
        UsageError: shapes or types do not fit.
        DistributedError: ranks ask for different products, or one has failed.
        ImportError: there is no PyTorch; the message says how to get it.
    """
    placement = "S(0)" if sequence_parallel else "R"
    placements = "S(-1)", "S(0)"
    return _product(x, weight, bias, activation, group, precision, device, placements, placement)


def _product(
    x: Array,
    weight: Array,
    bias: Array | None,
    activation: Activation | Custom | None,
    group: Any,
    precision: str | None,
    device: Any,
    placements: tuple[str, str],
    placement: str,
) -> Array:
    from gemmkit.distributed import matmul

    return matmul(
        x,
        weight.T,
        group=group,
        placements=placements,
        placement=placement,
        epilogue=Epilogue(bias=bias is not None, activation=activation or "none"),
        bias=bias,
        precision=precision,
        device=device,
    )
