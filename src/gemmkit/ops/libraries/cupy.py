"""CuPy's arrays, on GPUs; memory comes from its pool."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from gemmkit.ops.libraries.numpy import numpy_type
from gemmkit.ops.operands import Operand, View, known_dtype
from gemmkit.problem import Dtype

NAME = "CuPy"
WRITABLE = True
CURRENT_STREAMS = True


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    item = array.itemsize
    return Operand(
        array=array,
        address=array.data.ptr,
        view=View(array.shape, tuple(step // item for step in array.strides)),
        dtype=known_dtype(array.dtype.name, role),
        device=array.device.id,
        writable=True,
    )


def empty(like: Operand, shape: tuple[int, ...], dtype: Dtype, _: int | None = None) -> Operand:
    """As `Library.empty`."""
    import cupy

    with like.array.device:
        return read(cupy.empty(shape, numpy_type(dtype)), "the result")


def empty_like(target: Operand, *, by_columns: bool) -> Operand:
    """As `GpuLibrary.empty_like`."""
    shape = target.view.shape
    if by_columns:
        made = empty(target, (*shape[:-2], shape[-1], shape[-2]), target.dtype)
        return read(made.array.swapaxes(-1, -2), "a copy")
    return empty(target, shape, target.dtype)


def finished(result: Operand) -> Any:
    """As `Library.finished`."""
    return result.array


def copied(operand: Operand, shape: tuple[int, ...], *, by_columns: bool) -> Operand:
    """As `GpuLibrary.copied`."""
    import cupy

    with operand.array.device:
        source = cupy.broadcast_to(operand.array, shape)
        if by_columns:
            flipped = cupy.ascontiguousarray(source.swapaxes(-1, -2))
            return read(flipped.swapaxes(-1, -2), "a copy")
        return read(cupy.ascontiguousarray(source), "a copy")


def assign(target: Operand, source: Operand) -> None:
    """As `GpuLibrary.assign`."""
    import cupy

    with target.array.device:
        cupy.copyto(target.array, cupy.asarray(source.array))


def current_stream(device: int) -> int:
    """As `GpuLibrary.current_stream`."""
    import cupy

    return int(cupy.cuda.get_current_stream(device).ptr)


def on_stream(stream: int, device: int) -> AbstractContextManager[Any]:
    """As `GpuLibrary.on_stream`."""
    import cupy

    with ExitStack() as entered:
        entered.enter_context(cupy.cuda.Device(device))
        entered.enter_context(cupy.cuda.ExternalStream(stream, device))
        return entered.pop_all()


def wait_for(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.wait_for`: arrays are used on the stream where they are current."""


# --- for warm calls -----------------------------------------------------------------------------


def glance(array: Any) -> tuple[int, Hashable]:
    """As `WarmLibrary.glance`."""
    data = array.data
    return data.ptr, (array.shape, array.strides, array.dtype, data.device_id)


def new(like: Any, shape: tuple[int, ...], dtype: Dtype | None) -> tuple[Any, int]:
    """As `WarmLibrary.new`."""
    import cupy

    with like.device:
        made = cupy.empty(shape, like.dtype if dtype is None else dtype)
    return made, made.data.ptr
