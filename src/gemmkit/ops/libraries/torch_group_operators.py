"""`grouped_matmul` of tensors as PyTorch operators; see `torch_operators`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import library as operators

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.ops.libraries.torch_checks import (
    check_device,
    check_tangents,
    check_tensors,
    check_written,
    product_shape,
    tangents_checked,
    tensor_of,
)
from gemmkit.ops.libraries.torch_operators import NUMBERS, as_number, decode, encode
from gemmkit.ops.tracing import compiling, inside_operator

Tensors = list[torch.Tensor]


def multiply(
    arrays: Mapping[str, Any],
    alpha: float,
    beta: float,
    epilogue: Epilogue | str | None,
    stream: Any,
    device: Any,
) -> list[Any]:
    """The products of tensors, by an operator; `arrays` has a list, or None, for each role.

    Raises:
        UsageError: an argument that an operator does not take, and what the shapes and types of the
            tensors show.
    """
    if compiling() and any(isinstance(each, np.ndarray) for each in arrays["a"]):
        tensors = {
            role: None if members is None else [tensor_of(each) for each in members]
            for role, members in arrays.items()
        }
        if arrays["c"] is arrays["out"]:
            tensors["c"] = tensors["out"]
        made = multiply(tensors, alpha, beta, epilogue, stream, device)
        return [each.numpy() for each in made] if arrays["out"] is None else arrays["out"]
    for role, members in arrays.items():
        if members is not None:
            check_tensors((f"{role}[{place}]", each) for place, each in enumerate(members))
            if len(members) != len(arrays["a"]):
                raise UsageError(
                    f"{role} has {len(members)} arrays and a has {len(arrays['a'])}: give one for "
                    "each product"
                )
    a, b, out, c = (arrays[role] for role in ("a", "b", "out", "c"))
    auxiliary = arrays["auxiliary"]
    encoded = encode(epilogue, arrays["residual"] is not None, auxiliary is not None)
    beta = as_number(beta)
    if beta != 0 and c is None:
        raise UsageError(f"beta = {beta} needs c; c=out adds to what out holds")
    adds = c is not None and c is out
    c = [] if beta == 0 or adds else c
    rest = arrays["bias"] or [], arrays["residual"] or [], as_number(alpha), beta, *encoded
    named = check_device(stream, device)
    if out is None and auxiliary is None:
        with tangents_checked():
            found: Tensors = torch.ops.gemmkit.grouped_product(a, b, c, *rest, named)
        return found
    if out is None:
        out = _like(a, b)
    check_written(
        (f"{role}[{place}]", each)
        for role, members in arrays.items()
        for place, each in enumerate(members or ())
    )
    with tangents_checked():
        torch.ops.gemmkit.grouped_product_out(a, b, out, auxiliary or [], c, *rest, named)
    written: Tensors = out
    return written


def _like(a: Tensors, b: Tensors) -> Tensors:
    """New tensors for the results."""
    return [x.new_empty(product_shape(x, y)) for x, y in zip(a, b, strict=True)]


# --- the operators ------------------------------------------------------------------------------


def _product(
    a: Tensors,
    b: Tensors,
    c: Tensors,
    bias: Tensors,
    residual: Tensors,
    alpha: float,
    beta: float,
    epilogue: str,
    values: Sequence[float],
    scale: float,
    device: str | None,
) -> Tensors:
    from gemmkit.ops.grouped import grouped_matmul

    check_tangents(**_named(a=a, b=b, c=c, bias=bias, residual=residual))
    with inside_operator():
        return grouped_matmul(
            *(a, b),
            alpha=alpha,
            c=c or None,
            beta=beta,
            epilogue=decode(epilogue, values, scale),
            bias=bias or None,
            residual=residual or None,
            device=device,
        )


def _named(**roles: Tensors) -> dict[str, torch.Tensor]:
    """The tensors of all roles by names such as `a[0]`."""
    return {
        f"{role}[{place}]": tensor
        for role, members in roles.items()
        for place, tensor in enumerate(members)
    }


def _product_like(a: Tensors, b: Tensors, *_: Any) -> Tensors:
    return _like(a, b)


def _product_out(
    a: Tensors,
    b: Tensors,
    out: Tensors,
    auxiliary: Tensors,
    c: Tensors,
    bias: Tensors,
    residual: Tensors,
    alpha: float,
    beta: float,
    epilogue: str,
    values: Sequence[float],
    scale: float,
    device: str | None,
) -> None:
    from gemmkit.ops.grouped import grouped_matmul

    check_tangents(**_named(a=a, b=b, c=c, bias=bias, residual=residual))
    with inside_operator():
        grouped_matmul(
            *(a, b),
            out=out,
            alpha=alpha,
            c=c or (out if beta != 0 else None),
            beta=beta,
            epilogue=decode(epilogue, values, scale),
            bias=bias or None,
            residual=residual or None,
            auxiliary=auxiliary or None,
            device=device,
        )


def _product_out_like(a: Tensors, b: Tensors, out: Tensors, *_: Any) -> None:
    for place, (x, y, z) in enumerate(zip(a, b, out, strict=True)):
        wanted = product_shape(x, y)
        if tuple(z.shape) != wanted:
            raise UsageError(
                f"out[{place}] has the shape {tuple(z.shape)}; the product has {wanted}"
            )


def _register() -> None:
    """Make the operators known to PyTorch."""
    tail = f"Tensor[] c, Tensor[] bias, Tensor[] residual, {NUMBERS}, str? device"
    made = operators.custom_op(
        "gemmkit::grouped_product",
        _product,
        mutates_args=(),
        schema=f"(Tensor[] a, Tensor[] b, {tail}) -> Tensor[]",
    )
    made.register_fake(_product_like)
    into = operators.custom_op(
        "gemmkit::grouped_product_out",
        _product_out,
        mutates_args=("out", "auxiliary"),
        schema=f"(Tensor[] a, Tensor[] b, Tensor(a!)[] out, Tensor(b!)[] auxiliary, {tail}) -> ()",
    )
    into.register_fake(_product_out_like)


_register()
