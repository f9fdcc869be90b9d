"""PyTorch's tensors, on the CPU or on GPUs; memory comes from its allocator."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gemmkit.errors import UsageError
from gemmkit.ops.libraries import LEGACY_STREAMS
from gemmkit.ops.operands import Operand, View, known_dtype
from gemmkit.problem import Dtype

NAME = "PyTorch"
WRITABLE = True
CURRENT_STREAMS = True


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    _check_gradient(array, role)
    if array.layout != torch.strided:
        raise UsageError(f"{role} is {array.layout}: make it dense with to_dense()")
    if array.device.type not in ("cpu", "cuda"):
        raise UsageError(f"{role} is on {array.device}; gemmkit computes on CUDA and on the CPU")
    negated = array.is_neg()
    if negated:
        array = array.resolve_neg()
    try:
        address = array.data_ptr()
    except RuntimeError as error:
        raise UsageError(
            f"{role} has no memory to read ({error}): use gemmkit.torch.matmul"
        ) from error
    return Operand(
        array=array,
        address=address,
        view=View(tuple(array.shape), array.stride()),
        dtype=known_dtype(str(array.dtype).removeprefix("torch."), role),
        device=array.get_device() if array.is_cuda else None,
        # What stands for the negative of other elements is read by way of a copy.
        writable=not negated,
    )


def empty(like: Operand, shape: tuple[int, ...], dtype: Dtype, _: int | None = None) -> Operand:
    """As `Library.empty`."""
    made = torch.empty(shape, dtype=getattr(torch, dtype), device=like.array.device)
    return read(made, "the result")


def finished(result: Operand) -> Any:
    """As `Library.finished`."""
    return result.array


# --- on a GPU -----------------------------------------------------------------------------------


def empty_like(target: Operand, *, by_columns: bool) -> Operand:
    """As `GpuLibrary.empty_like`."""
    shape = target.view.shape
    if by_columns:
        flipped = (*shape[:-2], shape[-1], shape[-2])
        return read(target.array.new_empty(flipped).mT, "a copy")
    return read(target.array.new_empty(shape), "a copy")


def copied(operand: Operand, shape: tuple[int, ...], *, by_columns: bool) -> Operand:
    """As `GpuLibrary.copied`."""
    source = operand.array.expand(shape)
    if by_columns:
        return read(source.mT.contiguous().mT, "a copy")
    return read(source.contiguous(), "a copy")


def assign(target: Operand, source: Operand) -> None:
    """As `GpuLibrary.assign`."""
    target.array.copy_(source.array)


def current_stream(device: int) -> int:
    """As `GpuLibrary.current_stream`; PyTorch's public way makes an object first."""
    return int(torch._C._cuda_getCurrentRawStream(device))


@contextmanager
def on_stream(stream: int, device: int) -> Iterator[None]:
    """As `GpuLibrary.on_stream`."""
    if stream in LEGACY_STREAMS:
        chosen = torch.cuda.default_stream(device)
    else:
        chosen = torch.cuda.ExternalStream(stream, device)
    with torch.cuda.stream(chosen):
        yield


def wait_for(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.wait_for`: tensors are used on the stream where they are current."""


def written_on(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.written_on`: nothing to be noted."""


# --- for warm calls -----------------------------------------------------------------------------


def glance(array: Any) -> tuple[int, Hashable]:
    """As `WarmLibrary.glance`."""
    if array.requires_grad:
        _check_gradient(array, "an operand")
    if array.is_neg():
        raise _negated()
    return array.data_ptr(), (array.shape, array.stride(), array.dtype, array.get_device())


def glance_at_both(a: Any, b: Any) -> tuple[int, int, Hashable]:
    """As `WarmLibrary.glance_at_both`."""
    if a.requires_grad or b.requires_grad:
        _check_gradient(a, "a")
        _check_gradient(b, "b")
    if a.is_neg() or b.is_neg():
        raise _negated()
    seen_a = a.shape, a.stride(), a.dtype, a.get_device()
    return a.data_ptr(), b.data_ptr(), (seen_a, b.shape, b.stride(), b.dtype, b.get_device())


def new(like: Any, shape: tuple[int, ...], dtype: Dtype | None) -> tuple[Any, int]:
    """As `WarmLibrary.new`."""
    if dtype is not None:
        made = like.new_empty(shape, dtype=getattr(torch, dtype))
    elif shape:
        # PyTorch reads sizes one by one in half the time that a tuple takes it.
        made = like.new_empty(*shape)
    else:
        made = like.new_empty(())
    return made, made.data_ptr()


def temporary(nbytes: int, device: int) -> tuple[object, int] | None:
    """As `WarmLibrary.temporary`: what is allocated during a capture is the graph's."""
    made = torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", device))
    return made, made.data_ptr()


def _negated() -> RuntimeError:
    """What has a call read its operands, for nothing else tells of a view's sign."""
    return RuntimeError("a view stands for the negative of other elements")


def _check_gradient(array: Any, role: str) -> None:
    """Refuse what would lose a gradient without a word."""
    if array.requires_grad and torch.is_grad_enabled():
        raise UsageError(
            f"{role} requires a gradient, which gemmkit.matmul does not record: use "
            "gemmkit.torch.matmul, or detach() it"
        )
