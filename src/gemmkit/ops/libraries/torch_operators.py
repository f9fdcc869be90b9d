"""`matmul` and `grouped_matmul` of tensors as PyTorch operators, with all that they take.

They serve what has no memory at hand or is being traced: `torch.compile` and `torch.export`,
FakeTensors, meta tensors, the tensors of `torch.vmap`, and subclasses with a dispatch of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import library as operators
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from gemmkit.epilogue import Custom, Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.call import ARRAYS, Call
from gemmkit.ops.libraries.torch import check_gradient
from gemmkit.ops.operands import known_dtype, read_dtype
from gemmkit.ops.tracing import compiling, inside_operator

# An epilogue, as operators take it: words, or "bias;activation", or "bias;custom;expression;names";
# the values of the names; the scale.
Encoded = tuple[str, list[float], float]

NUMBERS = "float alpha, float beta, str epilogue, float[] values, float scale"


def multiply(call: Call) -> torch.Tensor:
    """The product of tensors, by an operator.

    Raises:
        UsageError: an argument that an operator does not take, and what the shapes and types of the
            tensors show.
    """
    check_tensors(zip(ARRAYS, call, strict=False))
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
        shape = product_shape(call.a, call.b)
        out = call.a.new_empty(shape, dtype=dtype)
    adds = c is not None and c is out
    c = None if adds else c
    with tangents_checked():
        torch.ops.gemmkit.product_out(call.a, call.b, out, auxiliary, c, *rest, dtype, device)
    written: torch.Tensor = out
    return written


def check_tensors(arrays: Any) -> None:
    """Refuse arrays, in pairs with their names, that no operator of gemmkit's may get.

    Raises:
        UnsupportedType: one is not a tensor, or of a kind whose elements do not lie in strides.
        UsageError: one requires a gradient, or carries a forward-mode tangent.
    """
    for name, tensor in arrays:
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedType(
                f"{name} is a {type(tensor).__name__} beside tensors that are traced, or stand for "
                "others: give a tensor"
            )
        if tensor.is_nested or tensor.layout != torch.strided:
            kind = "a nested tensor" if tensor.is_nested else str(tensor.layout)
            raise UnsupportedType(f"{name} is {kind}: gemmkit takes dense tensors")
        if type(tensor).__module__.startswith("torch.distributed"):
            raise UnsupportedType(
                f"{name} is a {type(tensor).__name__}, spread over processes: multiply what its "
                "to_local() gives"
            )
        check_gradient(tensor, name)
        check_tangent(tensor, name)


def check_tangent(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor with a forward-mode tangent, which PyTorch would drop.

    Raises:
        UsageError: it has one.
    """
    if forward_ad._current_level < 0:
        return
    if forward_ad.unpack_dual(tensor).tangent is not None:
        raise UsageError(
            f"{name} carries a forward-mode tangent: gemmkit has gradients in reverse mode only, "
            "by gemmkit.torch with backward() or torch.autograd.grad"
        )


def check_written(arrays: Any) -> None:
    """Refuse tensors, in pairs with their names, among which results are written, and cannot be.

    Raises:
        UsageError: they are on several devices, or one is a batch of `torch.vmap`'s.
    """
    given = [(name, tensor) for name, tensor in arrays if tensor is not None]
    (first, other), *_ = given
    for name, tensor in given:
        if tensor.device != other.device:
            raise UsageError(f"{first} is on {other.device} and {name} on {tensor.device}")
        if not compiling() and torch._C._functorch.is_batchedtensor(tensor):
            raise UsageError(
                f"{name} is a batch of torch.vmap, which cannot write to arrays that it is given: "
                "take the result instead"
            )


class _Front(threading.local):
    """Whether what calls an operator has looked for forward-mode tangents."""

    checked = False


_front = _Front()


@contextmanager
def tangents_checked() -> Iterator[None]:
    """Call an operator with tensors that have been looked at by `check_tangent`."""
    if compiling():
        yield
        return
    before, _front.checked = _front.checked, True
    try:
        yield
    finally:
        _front.checked = before


def check_tangents(**tensors: torch.Tensor | None) -> None:
    """Inside an operator, refuse forward-mode tangents, which PyTorch would drop.

    Raises:
        UsageError: a tensor has one, or may have had one when the operator was called by its name
            inside `torch.func.jvp`, which hides them here.
    """
    if forward_ad._current_level < 0 or _front.checked:
        return
    for name, tensor in tensors.items():
        if tensor is not None:
            check_tangent(tensor, name)
    if getattr(eager_transforms, "JVP_NESTING", 0):
        raise UsageError(
            "torch.func.jvp does not go through gemmkit's operators: gemmkit has gradients in "
            "reverse mode only"
        )


def check_device(stream: Any, device: Any) -> str | None:
    """What an operator gets as `device`.

    Raises:
        UsageError: a stream, or a device that is not given by its name.
    """
    if stream is not None:
        raise UsageError(
            "stream is not for tensors that are traced, or stand for others: enter "
            "torch.cuda.stream instead"
        )
    if device is not None and not isinstance(device, str):
        raise UnsupportedType(
            f"device = {device!r}: for tensors that are traced, or stand for others, give its "
            "name, 'cuda' or 'emulator'"
        )
    return device


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


def product_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
    """The shape of the product by the rules of `torch.matmul`; sizes may be symbols.

    Raises:
        UsageError: the shapes, types or devices cannot be multiplied.
    """
    check_alike(a=a, b=b)
    for name, tensor in (("a", a), ("b", b)):
        known_dtype(str(tensor.dtype).removeprefix("torch."), name)
        if tensor.dim() == 0:
            raise UsageError(f"{name} is a number; matmul takes tensors of 1 dimension or more")
    inner = b.shape[-2] if b.dim() > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise UsageError(
            f"a of shape {tuple(a.shape)} has {a.shape[-1]} columns and b of shape "
            f"{tuple(b.shape)} has {inner} rows: a·b needs as many of both"
        )
    try:
        stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise UsageError(
            f"the stacks of a {tuple(a.shape)} and b {tuple(b.shape)} do not broadcast: sizes "
            "before the last two must be equal, or 1"
        ) from None
    rows = a.shape[-2:-1] if a.dim() > 1 else ()
    columns = b.shape[-1:] if b.dim() > 1 else ()
    return (*stack, *rows, *columns)


def check_alike(**tensors: torch.Tensor | None) -> None:
    """Refuse tensors of different types or devices.

    Raises:
        UsageError: two differ.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    (first, other), *rest = given.items()
    for name, tensor in rest:
        if tensor.dtype != other.dtype:
            raise UnsupportedType(
                f"{first} holds {other.dtype} and {name} {tensor.dtype}: convert one with .to(), "
                "gemmkit never does so on its own"
            )
        if tensor.device != other.device:
            raise UsageError(
                f"{first} is on {other.device} and {name} on {tensor.device}: move one with .to()"
            )


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
    """The product of tensors with memory, whoever watches."""
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
    tail = f"Tensor? c, Tensor? bias, Tensor? residual, {NUMBERS}, ScalarType? out_dtype, str? device"
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
