"""Functions that XLA calls, by name and platform, and the arrays that its buffers are."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gemmkit.devices.gpu_packages import check_packages
from gemmkit.errors import DeviceError
from gemmkit.jax.call_frame import Buffer, Call, make_handler
from gemmkit.ops.libraries.dlpack import CUDA, DlpackArray
from gemmkit.ops.operands import View

if TYPE_CHECKING:
    from numpy.typing import NDArray

# XLA may call them until the process ends.
_HANDLERS: list[Any] = []


def register(name: str, on_host: Callable[[Call], None], on_gpu: Callable[[Call], None]) -> None:
    """Make a function known to XLA, for its buffers in host memory and for those on a GPU, with
    which it is called on XLA's stream if the result has elements."""

    def where_there_is_memory(call: Call) -> None:
        (out,) = call.results
        if out.address and prod(out.shape):
            on_gpu(call)

    for platform, work in (("cpu", on_host), ("CUDA", where_there_is_memory)):
        made = make_handler(work)
        _HANDLERS.append(made)
        address = ctypes.cast(made, ctypes.c_void_p).value
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform=platform)


@cache
def finish_at_exit() -> None:
    """Have the process wait for its results before it ends.

    Threads of XLA's that come into Python after its end never come back, and XLA waits for them.
    """
    atexit.register(_finish)


def _finish() -> None:
    for array in jax.live_arrays("cpu"):
        array.block_until_ready()
    # Results that nobody holds are not among these. XLA runs what a thread has queued in order.
    jax.jit(lambda x: x + 1)(np.zeros(())).block_until_ready()


def numpy_view(buffer: Buffer) -> NDArray[Any]:
    """Memory of XLA's on the host."""
    dtype = jax.numpy.dtype(buffer.dtype)
    if not prod(buffer.shape):
        return np.empty(buffer.shape, dtype)
    memory = (ctypes.c_char * (prod(buffer.shape) * dtype.itemsize)).from_address(buffer.address)
    return np.frombuffer(memory, dtype).reshape(buffer.shape)


def gpu_array(buffer: Buffer, place: tuple[int, int], swapped: bool = False) -> DlpackArray:
    """Memory of XLA's on a GPU; with the last two dimensions swapped if that is said."""
    view = View.tight(buffer.shape)
    if swapped:
        *stack, rows, columns = buffer.shape
        *steps, down, across = view.strides
        view = View((*stack, columns, rows), (*steps, across, down))
    return DlpackArray(buffer.address, view, buffer.dtype, place)


def place_of(buffer: Buffer) -> tuple[int, int]:
    """The GPU that a buffer is on, as DLPack has it."""
    return CUDA, gpu_of(buffer.address)


def gpu_of(address: int) -> int:
    """The ordinal of the GPU whose memory an address is in.

    Raises:
        DeviceError: it is in none, or a package of the extra `gpu` is missing.
    """
    check_packages()
    from cuda.bindings import driver

    wanted = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, ordinal = driver.cuPointerGetAttribute(wanted, address)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"XLA's buffer at {address:#x} is in no GPU's memory: {status.name}")
    return int(ordinal)
