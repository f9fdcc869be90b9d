"""The function that XLA calls for gemmkit's products, on the CPU and on CUDA GPUs."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gemmkit.devices.gpu_packages import check_packages
from gemmkit.errors import DeviceError, UsageError
from gemmkit.jax.call_frame import Buffer, Call, make_handler
from gemmkit.jax.dlpack import CUDA, DlpackArray
from gemmkit.ops.matmul import matmul
from gemmkit.ops.operands import View
from gemmkit.ops.prepared_operands import PreparedOperand

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET, PREPARED_TARGET = "gemmkit_matmul", "gemmkit_prepared_matmul"


def _on_host(call: Call) -> None:
    a, b, out = (_numpy_view(each) for each in (*call.arguments, *call.results))
    ours, other = (letter == "t" for letter in call.attributes["layout"])
    matmul(
        a.swapaxes(1, 2) if ours else a,
        b.swapaxes(1, 2) if other else b,
        out=out,
        precision=call.attributes["precision"],
    )


def _on_gpu(call: Call) -> None:
    (a, b), (out,) = call.arguments, call.results
    if not out.address:
        return
    ours, other = (letter == "t" for letter in call.attributes["layout"])
    place = CUDA, _gpu_of(out.address)
    matmul(
        _gpu_array(a, place, ours),
        _gpu_array(b, place, other),
        out=_gpu_array(out, place),
        precision=call.attributes["precision"],
        stream=call.stream(),
    )


def _prepared_on_host(call: Call) -> None:
    a, out = (_numpy_view(each) for each in (*call.arguments, *call.results))
    matmul(a, _held(call), out=out)


def _prepared_on_gpu(call: Call) -> None:
    (a,), (out,) = call.arguments, call.results
    if not out.address:
        return
    place = CUDA, _gpu_of(out.address)
    matmul(_gpu_array(a, place), _held(call), out=_gpu_array(out, place), stream=call.stream())


def _held(call: Call) -> PreparedOperand:
    """The operand of the program.

    Raises:
        UsageError: the program was made by another process.
    """
    found = PreparedOperand.held_by(call.attributes["key"])
    if found is None or found.precision != call.attributes["precision"]:
        raise UsageError("the program multiplies a prepared operand of another process")
    return found


def _numpy_view(buffer: Buffer) -> NDArray[Any]:
    dtype = jax.numpy.dtype(buffer.dtype)
    if not prod(buffer.shape):
        return np.empty(buffer.shape, dtype)
    memory = (ctypes.c_char * (prod(buffer.shape) * dtype.itemsize)).from_address(buffer.address)
    return np.frombuffer(memory, dtype).reshape(buffer.shape)


def _gpu_array(buffer: Buffer, place: tuple[int, int], swapped: bool = False) -> DlpackArray:
    view = View.tight(buffer.shape)
    if swapped:
        stack, rows, columns = view.strides
        size, *sides = buffer.shape
        view = View((size, *reversed(sides)), (stack, columns, rows))
    return DlpackArray(buffer.address, view, buffer.dtype, place)


def _gpu_of(address: int) -> int:
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


# XLA may call them until the process ends.
_HANDLERS = {"cpu": make_handler(_on_host), "CUDA": make_handler(_on_gpu)}
_PREPARED_HANDLERS = {
    "cpu": make_handler(_prepared_on_host),
    "CUDA": make_handler(_prepared_on_gpu),
}


@cache
def finish_at_exit() -> None:
    """Have the process wait for its results before it ends.

    Threads of XLA's that come into Python after its end never come back, and XLA waits for them.
    """
    atexit.register(lambda: [array.block_until_ready() for array in jax.live_arrays("cpu")])


def register_target() -> None:
    """Make the functions known to XLA under the name `TARGET`."""
    _register(TARGET, _HANDLERS)


def register_prepared_target() -> None:
    """The same of prepared operands, under the name `PREPARED_TARGET`."""
    _register(PREPARED_TARGET, _PREPARED_HANDLERS)


def _register(name: str, handlers: Mapping[str, Any]) -> None:
    for platform, made in handlers.items():
        address = ctypes.cast(made, ctypes.c_void_p).value
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform=platform)
