"""PyTorch's tensors, on the CPU or on GPUs; memory comes from its allocator."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from gemmkit.errors import UsageError
from gemmkit.ops.operands import Operand, View, known_dtype
from gemmkit.problem import Dtype

NAME = "PyTorch"
WRITABLE = True
CURRENT_STREAMS = True


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    import torch

    _check_gradient(array, role)
    if array.layout != torch.strided:
        raise UsageError(f"{role} is {array.layout}: make it dense with to_dense()")
    if array.device.type not in ("cpu", "cuda"):
        raise UsageError(f"{role} is on {array.device}; gemmkit computes on CUDA and on the CPU")
    if array.is_neg():
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
        writable=True,
    )


def empty(like: Operand, shape: tuple[int, ...], dtype: Dtype, _: int | None = None) -> Operand:
    """As `Library.empty`."""
    import torch

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
    """As `GpuLibrary.current_stream`."""
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)


@contextmanager
def on_stream(stream: int, device: int) -> Iterator[None]:
    """As `GpuLibrary.on_stream`."""
    import torch

    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device)):
        yield


def wait_for(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.wait_for`: tensors are used on the stream where they are current."""


# --- for warm calls -----------------------------------------------------------------------------


def glance(array: Any) -> tuple[int, Hashable]:
    """As `WarmLibrary.glance`."""
    if array.requires_grad:
        _check_gradient(array, "an operand")
    return array.data_ptr(), (array.shape, array.stride(), array.dtype, array.get_device())


def new(like: Any, shape: tuple[int, ...], dtype: Dtype | None) -> tuple[Any, int]:
    """As `WarmLibrary.new`."""
    if dtype is None:
        made = like.new_empty(shape)
    else:
        import torch

        made = like.new_empty(shape, dtype=getattr(torch, dtype))
    return made, made.data_ptr()


def _check_gradient(array: Any, role: str) -> None:
    """Refuse what would lose a gradient without a word."""
    import torch

    if array.requires_grad and torch.is_grad_enabled():
        raise UsageError(
            f"{role} requires a gradient, which gemmkit.matmul does not record: use "
            "gemmkit.torch.matmul, or detach() it"
        )
