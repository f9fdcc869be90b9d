"""Tables that a kernel reads: brought to a GPU by way of pinned memory, in a stream's order."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from numpy.typing import NDArray

from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.ops.context import Context
from gemmkit.ops.launcher import ROLES, Launch
from gemmkit.ops.scratch import ScratchPool

# Tables that may be on their way at once before a call waits for the oldest.
SLOTS = 8
LEAST_BYTES = 1 << 16


class Tables:
    """The tables of one GPU: pinned memory that is used in turn, and a place for each stream."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # Not the context's own: what others put there would come between a copy and its launch.
        # One for each depth: a signal handler may come between them in the same thread.
        self._places = [ScratchPool(context)]
        self._depth = 0
        self._lock = threading.RLock()
        self._ring = [_Pinned() for _ in range(SLOTS)]
        self._next = 0
        # Graphs read these at each replay, and nothing tells when the last of them is gone.
        self._captured: list[_Pinned] = []

    def launch(
        self,
        plan: LaunchPlan,
        binary: Binary,
        arguments: Mapping[str, int | float],
        table: NDArray[Any],
        stream: int,
    ) -> None:
        """Put a copy of a table on a stream, and then the launch that reads it at `groups`.

        Raises:
            DeviceError: the driver refuses one, or there is not enough memory.
        """
        places = {"groups": (ROLES[0], 0)}
        launch = Launch(self._context, plan, binary, {**arguments, "groups": 0}, places)
        with self._lock:
            self._depth += 1
            try:
                address = self._copy(table, stream)
                launch.run((address,), stream)
            finally:
                self._depth -= 1

    def _copy(self, table: NDArray[Any], stream: int) -> int:
        from cuda.bindings import driver

        with cuda_errors("copying a table to the GPU"), self._context.current():
            status, state = driver.cuStreamIsCapturing(stream)
            none = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
            capturing = status == 0 and state != none
            if self._depth > len(self._places):
                self._places.append(ScratchPool(self._context))
            places = self._places[self._depth - 1]
            address = places.of(stream, capturing, table.nbytes, 0).workspace
            if capturing:
                pinned = _Pinned()
                self._captured.append(pinned)
            else:
                pinned = self._ring[self._next]
                self._next = (self._next + 1) % SLOTS
            pinned.fill(table)
            result(driver.cuMemcpyHtoDAsync(address, pinned.address, table.nbytes, stream))
            if not capturing:
                pinned.record(stream)
        return address


class _Pinned:
    """Pinned host memory, and an event that tells when its copy is done."""

    def __init__(self) -> None:
        self.address = 0
        self._nbytes = 0
        self._event: Any = None

    def fill(self, table: NDArray[Any]) -> None:
        """Hold a table, once the last one has been copied."""
        from cuda.bindings import driver

        if self._event is not None:
            result(driver.cuEventSynchronize(self._event))
        if table.nbytes > self._nbytes:
            if self.address:
                result(driver.cuMemFreeHost(self.address))
                self.address = self._nbytes = 0
            nbytes = max(LEAST_BYTES, 1 << (table.nbytes - 1).bit_length())
            self.address = int(result(driver.cuMemAllocHost(nbytes)))
            self._nbytes = nbytes
        ctypes.memmove(self.address, table.ctypes.data, table.nbytes)

    def record(self, stream: int) -> None:
        """Have the event tell when all that is on the stream now is done."""
        from cuda.bindings import driver

        if self._event is None:
            flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._event = result(driver.cuEventCreate(flags))
        result(driver.cuEventRecord(self._event, stream))


@cache
def tables_of(context: Context) -> Tables:
    """The tables of a GPU."""
    return Tables(context)
