"""Pinned host memory, by way of which arrays go to a GPU and back."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.cuda_errors import cuda_errors, result

if TYPE_CHECKING:
    from gemmkit.devices.context import Context

# CU_MEMHOSTALLOC_PORTABLE of cuda.h: pinned for every context.
_PORTABLE = 1


class PinnedMemory:
    """Page-locked host memory, and an event that tells when its last copy is done.

    Its methods need a current context, and raise what `cuda_errors` turns into a sentence.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self.address = self.nbytes = 0
        self._event: Any = None
        self.resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Have so many bytes, and lose what they held."""
        from cuda.bindings import driver

        if self.address:
            result(driver.cuMemFreeHost(self.address))
            self.address = self.nbytes = 0
        if nbytes:
            self.address = int(result(driver.cuMemHostAlloc(nbytes, _PORTABLE)))
            self.nbytes = nbytes

    def copy_from(self, source: int, nbytes: int) -> None:
        """Hold a copy of the host memory at an address."""
        ctypes.memmove(self.address, source, nbytes)

    def copy_to(self, target: int, nbytes: int) -> None:
        """Copy what it holds to an address of host memory."""
        ctypes.memmove(target, self.address, nbytes)

    def record(self, stream: int) -> None:
        """Have the event tell when all that is on a stream now is done."""
        from cuda.bindings import driver

        if self._event is None:
            flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._event = result(driver.cuEventCreate(flags))
        result(driver.cuEventRecord(self._event, stream))

    def wait(self) -> None:
        """Wait for what was recorded last, if anything was."""
        from cuda.bindings import driver

        if self._event is not None:
            result(driver.cuEventSynchronize(self._event))


def pinned_bytes(nbytes: int, context: Context) -> NDArray[np.uint8]:
    """Page-locked host memory for every GPU, given back with the last array on it.

    Raises:
        DeviceError: so much cannot be pinned.
    """
    from cuda.bindings import driver

    if not nbytes:
        return np.empty(0, np.uint8)
    with cuda_errors(f"pinning {nbytes:,} bytes of host memory"), context.current():
        address = int(result(driver.cuMemHostAlloc(nbytes, _PORTABLE)))
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    # When the process ends, the driver has given it back, or is gone.
    weakref.finalize(memory, _unpin, address, context).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


def _unpin(address: int, context: Context) -> None:
    from cuda.bindings import driver

    with suppress(Exception), context.current():
        result(driver.cuMemFreeHost(address))
