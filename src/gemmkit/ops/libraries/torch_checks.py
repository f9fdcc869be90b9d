"""Which tensors gemmkit's operators take, and the shape of their product."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._C import _functorch
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.libraries.torch import check_gradient, check_kind
from gemmkit.ops.operands import known_dtype
from gemmkit.ops.tracing import compiling


def tensor_of(array: Any) -> Any:
    """One of NumPy's arrays as the tensor for which `torch.compile` takes it."""
    return torch.as_tensor(array) if isinstance(array, np.ndarray) else array


def check_tensors(arrays: Iterable[tuple[str, Any]]) -> None:
    """Refuse arrays, in pairs with their names, that no operator of gemmkit's may get.

    Raises:
        UnsupportedType: one is not a tensor, or of a kind whose elements do not lie in strides.
        UsageError: one requires a gradient, or carries a forward-mode tangent.
    """
    for name, tensor in arrays:
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedType(
                f"{name} has type {type(tensor).__name__}, beside tensors that are traced, or "
                "stand for "
                "others: give a tensor"
            )
        check_kind(tensor, name)
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


def check_transform(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor that `torch.func` differentiates, which PyTorch does of its own operators.

    Raises:
        UsageError: it is one of `grad`, `vjp`, `jacrev` or `hessian`.
    """
    if compiling():
        return
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tracked = _functorch.is_gradtrackingtensor(tensor) and tensor.requires_grad
        if tracked and torch.is_grad_enabled():
            raise UsageError(
                f"{name} is differentiated by a transform of torch.func (grad, vjp, jacrev …), "
                "which do not go through gemmkit's operators: use backward() or "
                "torch.autograd.grad"
            )
        tensor = _functorch.get_unwrapped(tensor)


def check_written(arrays: Iterable[tuple[str, Any]]) -> None:
    """Refuse tensors, in pairs with their names, among which results are written, and cannot be.

    Raises:
        UsageError: they are on several devices, or one is a batch of `torch.vmap`'s.
    """
    given = list(arrays)
    (first, other), *_ = given
    for name, tensor in given:
        if tensor.device != other.device:
            raise UsageError(f"{first} is on {other.device} and {name} on {tensor.device}")
        if not compiling() and _functorch.is_batchedtensor(tensor):
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


def check_tangents(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Inside an operator, refuse forward-mode tangents, which PyTorch would drop.

    Tensors come in pairs with their names.

    Raises:
        UsageError: a tensor has one, or may have had one when the operator was called by its name
            inside `torch.func.jvp`, which hides them here.
    """
    if forward_ad._current_level < 0 or _front.checked:
        return
    for name, tensor in tensors:
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
            f"{tuple(b.shape)} has {inner} rows: a·b needs the same number of both"
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


def result_type(tensor: torch.Tensor) -> torch.dtype:
    """The type of a product of tensors of this one's, where none is given."""
    found: torch.dtype = torch.float32 if tensor.itemsize == 1 else tensor.dtype
    return found


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
                f"{first} has type {other.dtype} and {name} has type {tensor.dtype}: convert "
                "one with .to(), "
                "gemmkit never does so on its own"
            )
    check_together(**tensors)


def check_together(**tensors: torch.Tensor | None) -> None:
    """Refuse tensors on different devices.

    Raises:
        UsageError: two differ.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    (first, other), *rest = given.items()
    for name, tensor in rest:
        if tensor.device != other.device:
            raise UsageError(
                f"{first} is on {other.device} and {name} on {tensor.device}: move one with .to()"
            )
