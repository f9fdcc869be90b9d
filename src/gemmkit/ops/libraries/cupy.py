"""CuPy's arrays, on GPUs; memory comes from its pool."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import Dtype, is_narrow
from gemmkit.errors import UnsupportedType
from gemmkit.ops.arrays import Glances
from gemmkit.ops.libraries import LEGACY_STREAMS
from gemmkit.ops.libraries.numpy import numpy_type
from gemmkit.ops.operands import Operand, View, element_strides, known_dtype

NAME = "CuPy"
WRITABLE = True
CURRENT_STREAMS = True


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    return Operand(
        array=array,
        address=array.data.ptr,
        view=View(array.shape, element_strides(array.strides, array.itemsize, role)),
        dtype=known_dtype(array.dtype.name, role),
        device=array.device.id,
        writable=True,
    )


def empty(like: Operand, shape: tuple[int, ...], dtype: Dtype, _: int | None = None) -> Operand:
    """As `Library.empty`.

    Raises:
        UnsupportedType: CuPy has no such type.
    """
    if is_narrow(dtype):
        raise UnsupportedType(f"CuPy has no {dtype}: give out, an array of PyTorch, say")
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
    with operand.array.device:
        source = cupy.broadcast_to(operand.array, shape)
        if by_columns:
            flipped = cupy.ascontiguousarray(source.swapaxes(-1, -2))
            return read(flipped.swapaxes(-1, -2), "a copy")
        return read(cupy.ascontiguousarray(source), "a copy")


def assign(target: Operand, source: Operand) -> None:
    """As `GpuLibrary.assign`."""
    with target.array.device:
        cupy.copyto(target.array, cupy.asarray(source.array))


def current_stream(device: int) -> int:
    """As `GpuLibrary.current_stream`."""
    return int(cupy.cuda.get_current_stream(device).ptr)


def on_stream(stream: int, device: int) -> AbstractContextManager[Any]:
    """As `GpuLibrary.on_stream`."""
    with ExitStack() as entered:
        entered.enter_context(cupy.cuda.Device(device))
        legacy = stream in LEGACY_STREAMS
        chosen = cupy.cuda.Stream.null if legacy else cupy.cuda.ExternalStream(stream, device)
        entered.enter_context(chosen)
        return entered.pop_all()


def wait_for(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.wait_for`: arrays are used on the stream where they are current."""


def written_on(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.written_on`: nothing to be noted."""


# --- for warm calls -----------------------------------------------------------------------------


def watched() -> bool:
    """As `WarmLibrary.watched`: CuPy has no tracers."""
    return False


def glance(array: Any) -> tuple[int, Hashable]:
    """As `WarmLibrary.glance`."""
    data = array.data
    return data.ptr, (array.shape, array.strides, array.dtype, data.device_id)


def glance_at_matrices(a: Any, b: Any, out: Any) -> tuple[int, int, int, Hashable]:
    """As `WarmLibrary.glance_at_matrices`."""
    (address_a, key_a), (address_b, key_b) = glance(a), glance(b)
    address, key = (0, None) if out is None else glance(out)
    return address_a, address_b, address, (key_a, key_b, key)


def glance_at_many(arrays: list[Any]) -> Glances:
    """As `WarmLibrary.glance_at_many`."""
    places = [each.data for each in arrays]
    (device,) = {each.device_id for each in places}
    (dtype,) = {each.dtype for each in arrays}
    shapes = tuple([each.shape for each in arrays])
    item = dtype.itemsize
    strides = tuple([tuple([step // item for step in each.strides]) for each in arrays])
    if any(step % item for each in arrays for step in each.strides):
        raise ValueError("strides are not whole elements")
    addresses = np.fromiter((each.ptr for each in places), np.int64, len(places))
    return Glances(addresses, shapes, strides, (dtype, device))


def new(like: Any, shape: tuple[int, ...], dtype: Dtype | None) -> tuple[Any, int]:
    """As `WarmLibrary.new`."""
    with like.device:
        made = cupy.empty(shape, like.dtype if dtype is None else dtype)
    return made, made.data.ptr


def new_matrices(
    like: Any, rows: list[int], columns: int, dtype: Dtype | None
) -> tuple[list[Any], NDArray[np.int64]]:
    """As `WarmLibrary.new_matrices`."""
    made = [new(like, (number, columns), dtype) for number in rows]
    addresses = np.fromiter((address for _, address in made), np.int64, len(made))
    return [array for array, _ in made], addresses


def overwritten(array: Any) -> None:
    """As `WarmLibrary.overwritten`: nothing to be noted."""


def temporary(nbytes: int, device: int) -> tuple[object, int] | None:  # noqa: ARG001
    """As `WarmLibrary.temporary`: its pool knows no graphs."""
    return None
