"""`matmul` and `grouped_matmul` of tensors as PyTorch operators, with all that they take.

They serve what has no memory at hand or is being traced: `torch.compile` and `torch.export`,
FakeTensors, meta tensors, the tensors of `torch.vmap`, and subclasses with a dispatch of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import library as operators

from gemmkit.epilogue import Custom, Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.call import ARRAYS, Call
from gemmkit.ops.libraries.torch_checks import (
    check_device,
    check_tangents,
    check_tensors,
    check_written,
    product_shape,
    tangents_checked,
    tensor_of,
)
from gemmkit.ops.operands import read_dtype
from gemmkit.ops.tracing import compiling, inside_operator

# An epilogue, as operators take it: words, or "bias;activation", or "bias;custom;expression;names";
# the values of the names; the scale.
Encoded = tuple[str, list[float], float]

NUMBERS = "float alpha, float beta, str epilogue, float[] values, float scale"


def multiply(call: Call) -> Any:
    """The product of tensors, by an operator; under `torch.compile` of NumPy's arrays as well.

    Raises:
        UsageError: an argument that an operator does not take, and what the shapes and types of the
            tensors show.
    """
    if compiling() and isinstance(call.a, np.ndarray):
        arrays = [tensor_of(each) for each in call[: len(ARRAYS)]]
        made = multiply(Call(*arrays, *call[len(ARRAYS) :]))
        return made.numpy() if call.out is None else call.out
    check_tensors(zip(ARRAYS, call, strict=False))
    if compiling():
        # Here the error reaches the caller; from inside the operator it comes with Dynamo's log.
        product_shape(call.a, call.b)
    out, c, auxiliary = call.out, call.c, call.auxiliary
    if out is not None or auxiliary is not None:
        check_written(zip(ARRAYS, call, strict=False))
    encoded = encode(call.epilogue, call.residual is not None, auxiliary is not None)
    beta = as_number(call.beta)
    if beta != 0 and c is None:
        raise UsageError(f"beta = {beta} needs c; c=out adds to what out holds")
    c = None if beta == 0 else c
    dtype = _dtype(call.out_dtype)
    device = check_device(call.stream, call.device)
    rest = call.bias, call.residual, as_number(call.alpha), beta, *encoded
    if out is None and auxiliary is None:
        with tangents_checked():
            found: torch.Tensor = torch.ops.gemmkit.product(call.a, call.b, c, *rest, dtype, device)
        return found
    if out is None:
        out = call.a.new_empty(product_shape(call.a, call.b), dtype=dtype)
    adds = c is not None and c is out
    c = None if adds else c
    with tangents_checked():
        torch.ops.gemmkit.product_out(call.a, call.b, out, auxiliary, c, *rest, dtype, device)
    written: torch.Tensor = out
    return written


def encode(epilogue: Epilogue | str | None, residual: bool, auxiliary: bool) -> Encoded:
    """An epilogue as operators take it.

    Raises:
        UsageError: it needs an array that is not there.
    """
    if epilogue is None or isinstance(epilogue, str):
        return epilogue or "none", [], 1.0
    if not isinstance(epilogue, Epilogue):
        raise UnsupportedType(
            f"epilogue = {epilogue!r}: give an Epilogue or its words, such as 'bias+relu'"
        )
    for name, wanted, there in (
        ("residual", epilogue.residual, residual),
        ("auxiliary", epilogue.auxiliary, auxiliary),
    ):
        if wanted and not there:
            raise UsageError(f"the epilogue needs the array {name}")
    activation = epilogue.activation
    if isinstance(activation, Custom):
        names = ",".join([name for name, _ in activation.parameters])
        values = [value for _, value in activation.parameters]
        return f"{epilogue.bias};custom;{activation.expression};{names}", values, epilogue.scale
    return f"{epilogue.bias};{activation}", [], epilogue.scale


def decode(text: str, values: Sequence[float], scale: float) -> Epilogue:
    """The way back."""
    if ";" not in text:
        return Epilogue.parse(text)
    bias, activation, *custom = text.split(";")
    chosen: Any = activation
    if custom:
        names = custom[1].split(",") if custom[1] else []
        chosen = Custom(custom[0], tuple(zip(names, values, strict=True)))
    return Epilogue(bias, chosen, scale=scale)  # type: ignore[arg-type]


def as_number(value: Any) -> float:
    """A number as the operators' schemas take it; symbolic ones stay."""
    return value if isinstance(value, float) else float(value)


def _dtype(given: Any) -> torch.dtype | None:
    if given is None or isinstance(given, torch.dtype):
        return given
    found: torch.dtype = getattr(torch, read_dtype(given))
    return found


# --- the operators ------------------------------------------------------------------------------


def _run(call: Call) -> Any:
    """The product of tensors that have memory, whatever modes are active."""
    from gemmkit.ops.product import product

    with inside_operator():
        return product(*call)


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    alpha: float,
    beta: float,
    epilogue: str,
    values: Sequence[float],
    scale: float,
    out_dtype: torch.dtype | None,
    device: str | None,
) -> torch.Tensor:
    check_tangents(a=a, b=b, c=c, bias=bias, residual=residual)
    decoded = decode(epilogue, values, scale)
    found: torch.Tensor = _run(
        Call(a, b, None, c, bias, residual, None, alpha, beta, decoded, out_dtype, None, device)
    )
    return found


def _product_like(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,  # noqa: ARG001
    bias: torch.Tensor | None,  # noqa: ARG001
    residual: torch.Tensor | None,  # noqa: ARG001
    alpha: float,  # noqa: ARG001
    beta: float,  # noqa: ARG001
    epilogue: str,  # noqa: ARG001
    values: Sequence[float],  # noqa: ARG001
    scale: float,  # noqa: ARG001
    out_dtype: torch.dtype | None,
    device: str | None,  # noqa: ARG001
) -> torch.Tensor:
    return a.new_empty(product_shape(a, b), dtype=out_dtype)


def _product_out(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    auxiliary: torch.Tensor | None,
    c: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    alpha: float,
    beta: float,
    epilogue: str,
    values: Sequence[float],
    scale: float,
    out_dtype: torch.dtype | None,
    device: str | None,
) -> None:
    check_tangents(a=a, b=b, out=out, c=c, bias=bias, residual=residual)
    decoded = decode(epilogue, values, scale)
    added = out if c is None and beta != 0 else c
    _run(
        Call(
            *(a, b, out, added, bias, residual, auxiliary),
            *(alpha, beta, decoded, out_dtype, None, device),
        )
    )


def _product_out_like(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *_: Any) -> None:
    wanted = product_shape(a, b)
    if tuple(out.shape) != tuple(wanted):
        raise UsageError(f"out has the shape {tuple(out.shape)}; the result has {tuple(wanted)}")


def _register() -> None:
    """Make the operators known to PyTorch; schemas are written out, as of all its versions."""
    tail = (
        f"Tensor? c, Tensor? bias, Tensor? residual, {NUMBERS}, ScalarType? out_dtype, str? device"
    )
    made = operators.custom_op(
        "gemmkit::product",
        _product,
        mutates_args=(),
        schema=f"(Tensor a, Tensor b, {tail}) -> Tensor",
    )
    made.register_fake(_product_like)
    into = operators.custom_op(
        "gemmkit::product_out",
        _product_out,
        mutates_args=("out", "auxiliary"),
        schema=f"(Tensor a, Tensor b, Tensor(a!) out, Tensor(b!)? auxiliary, {tail}) -> ()",
    )
    into.register_fake(_product_out_like)


_register()
