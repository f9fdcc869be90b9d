"""Whatever has `__cuda_array_interface__` or `__dlpack__`, Numba's device arrays among them.

Nothing tells which stream such libraries work on: gemmkit takes the default stream, or the one that
the caller gives, and orders it after the arrays' own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gemmkit.devices.context import context_of
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.gpu_packages import packages_problem
from gemmkit.devices.streams import let_wait
from gemmkit.dtypes import Dtype, is_narrow
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.loading import load
from gemmkit.ops.libraries.device_array import DeviceArray
from gemmkit.ops.operands import Operand, View, known_dtype

NAME = "an array interface"
WRITABLE = True
CURRENT_STREAMS = False

_DEFAULT_STREAM = 0
_NO_WAITING = -1

# The version of the CUDA array interface that cuda.core reads; it added nothing but the stream.
_INTERFACE_VERSION = 3


class _Newer:
    """An array with an older interface, such as PyTorch's tensors have, as cuda.core reads it."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = {
            **interface,
            "version": _INTERFACE_VERSION,
            "stream": None,
        }


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    if isinstance(array, DeviceArray):
        place = array.memory.address, array.view, array.dtype, array.ordinal
        return Operand(array, *place, writable=True)
    problem = packages_problem()
    if problem is not None:
        raise UsageError(f"{role}, a {type(array).__name__}, cannot be read: {problem}")
    load("cuda.core.utils")
    from cuda.core.utils import StridedMemoryView

    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None and interface.get("version", 0) < _INTERFACE_VERSION:
        source: Any = _Newer(interface)
    else:
        source = array
    try:
        found = StridedMemoryView.from_any_interface(source, stream_ptr=_NO_WAITING)
        name = found.dtype.name
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{role}, a {type(array).__name__}, cannot be read: {error}") from error
    shape = tuple(found.shape)
    strides = View.tight(shape).strides if found.strides is None else tuple(found.strides)
    return Operand(
        array=array,
        address=int(found.ptr),
        view=View(shape, strides),
        dtype=known_dtype(name, role),
        device=int(found.device_id) if found.is_device_accessible else None,
        writable=not found.readonly,
    )


def empty(
    like: Operand, shape: tuple[int, ...], dtype: Dtype, stream: int | None = None
) -> Operand:
    """As `Library.empty`; in host memory it is NumPy's.

    Raises:
        UnsupportedType: it has 8 bits, which arrays of gemmkit's own have not.
    """
    if like.device is None:
        load("gemmkit.ops.libraries.numpy")
        from gemmkit.ops.libraries import numpy as host

        return host.empty(like, shape, dtype)
    if is_narrow(dtype):
        raise UnsupportedType(
            f"no new array of {dtype} can be made for this library: give out, or use PyTorch's "
            "arrays or gemmkit.jax.matmul"
        )
    return read(DeviceArray(shape, dtype, like.device, stream or _DEFAULT_STREAM), "the result")


def empty_like(target: Operand, *, by_columns: bool) -> Operand:
    """As `GpuLibrary.empty_like`."""
    if by_columns:
        raise UsageError("auxiliary must lie in memory as out does: both row by row is best")
    return empty(target, target.view.shape, target.dtype)


def finished(result: Operand) -> Any:
    """As `Library.finished`."""
    return result.array


def copied(operand: Operand, shape: tuple[int, ...], *, by_columns: bool) -> Operand:
    """As `GpuLibrary.copied`."""
    if by_columns:
        raise UsageError("residual must lie in memory as out does: both row by row is best")
    made = empty(operand, shape, operand.dtype)
    assign(made, operand)
    return made


def assign(target: Operand, source: Operand) -> None:
    """As `GpuLibrary.assign`; what is no plain copy is left to CuPy or PyTorch.

    Raises:
        UsageError: neither is installed.
    """
    assert target.device is not None
    context = context_of(target.device)
    if target.view.shape != source.view.shape or not (
        target.view.is_tight and source.view.is_tight
    ):
        _assign_strided(target, source)
        return
    from cuda.bindings import driver

    wait_for(source, _DEFAULT_STREAM)
    nbytes = target.view.extent[1] * target.item_bytes
    with cuda_errors("copying on the GPU"), context.current():
        result(driver.cuMemcpyDtoDAsync(target.address, source.address, nbytes, _DEFAULT_STREAM))


def _assign_strided(target: Operand, source: Operand) -> None:
    try:
        import cupy
    except ImportError:
        pass
    else:
        with cupy.cuda.Device(target.device), cupy.cuda.Stream.null:
            cupy.copyto(cupy.asarray(target.array), cupy.asarray(source.array))
        return
    try:
        import torch
    except ImportError:
        raise UsageError(
            "an array that is not row-major and contiguous is copied by CuPy or PyTorch, and "
            "neither is installed: make it contiguous first"
        ) from None
    device = torch.device("cuda", target.device)
    with torch.cuda.stream(torch.cuda.default_stream(device)):
        own, other = (torch.as_tensor(each.array, device=device) for each in (target, source))
        own.copy_(other)


def current_stream(device: int) -> int:  # noqa: ARG001 (all have the same)
    """As `GpuLibrary.current_stream`."""
    return _DEFAULT_STREAM


def on_stream(stream: int, device: int) -> AbstractContextManager[None]:  # noqa: ARG001
    """As `GpuLibrary.on_stream`: there is none to change."""
    return nullcontext()


def wait_for(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.wait_for`."""
    if operand.device is None:
        return
    interface = getattr(operand.array, "__cuda_array_interface__", None)
    if interface is not None:
        producer = interface.get("stream")
        if producer is not None:
            let_wait(stream, int(producer), context_of(operand.device))
    elif hasattr(operand.array, "__dlpack__"):
        # The capsule is dropped; its making has put the order on the stream.
        operand.array.__dlpack__(stream=stream or 1)


def written_on(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.written_on`."""
    if isinstance(operand.array, DeviceArray):
        operand.array.stream = stream
        operand.array.memory.free_on(stream)
