"""Streams that users give: the handle of any library's object, and whether it can be meant."""

from __future__ import annotations

from typing import Any

from gemmkit.devices.context import Context
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.errors import UnsupportedType, UsageError

# Handles that mean the default stream, legacy or per thread, of whichever GPU is current.
_DEFAULT_STREAMS = (0, 1, 2)

# What libraries call the handle: PyTorch, CuPy, and older objects of cuda.bindings.
_NAMES = ("cuda_stream", "ptr", "handle")


def stream_handle(stream: Any) -> int:
    """The handle of a stream: a number, or an object of any library.

    Raises:
        UsageError: it is no stream, or has been closed.
    """
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        found = (protocol() if callable(protocol) else protocol)[1]
    else:
        found = next((getattr(stream, name) for name in _NAMES if hasattr(stream, name)), stream)
    try:
        handle = int(getattr(found, "value", found))
    except (TypeError, ValueError):
        handle = -1
    if handle < 0 or isinstance(found, (bool, float, str)):
        raise UnsupportedType(
            f"stream = {stream!r} is not an open CUDA stream: give its handle, or an object of "
            "PyTorch, CuPy, Numba or cuda.core"
        )
    return handle


def check_stream(handle: int, context: Context) -> None:
    """Check that a stream is one of this GPU.

    Raises:
        UsageError: it belongs to another GPU, or there is no such stream any more.
    """
    from cuda.bindings import driver

    if handle in _DEFAULT_STREAMS:
        return
    with context.current():
        status, owner, *_ = driver.cuStreamGetCtx(handle)
    if status != 0:
        raise UsageError(
            f"stream {handle:#x} cannot be used ({status.name}): has it been destroyed?"
        )
    if int(owner) != int(context.handle):
        raise UsageError(
            f"stream {handle:#x} belongs to another GPU than the arrays, which are on GPU "
            f"{context.ordinal}"
        )


def finish(stream: int, context: Context) -> None:
    """Wait until all that is on a stream is done.

    Raises:
        DeviceError: a kernel has failed.
    """
    from cuda.bindings import driver

    with cuda_errors("waiting for a stream"), context.current():
        result(driver.cuStreamSynchronize(stream))


def let_wait(stream: int, producer: int, context: Context) -> None:
    """Have a stream wait for all that is on another one now.

    Raises:
        DeviceError: one of them is no stream of this GPU.
    """
    from cuda.bindings import driver

    if stream == producer:
        return
    with cuda_errors("ordering two streams"), context.current():
        flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = result(driver.cuEventCreate(flags))
        try:
            result(driver.cuEventRecord(event, producer))
            result(driver.cuStreamWaitEvent(stream, event, 0))
        finally:
            # The wait stays in force; the driver frees the event when it is over.
            driver.cuEventDestroy(event)
