"""Memory that launches need besides their matrices, apart for all that may overlap in time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gemmkit.devices.cuda_errors import cuda_errors, result

if TYPE_CHECKING:
    from gemmkit.ops.context import Context, Memory

# The handle that means the calling thread's own default stream.
PER_THREAD_STREAM = 2

COUNTER_BYTES = 4


class Scratch:
    """A workspace, and counters that are zero between launches, for launches one after another.

    What has become too small is kept for launches that still use it, or that a graph replays; as
    sizes double, that is no more than what is in use.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: list[Memory] = []
        self._sizes = [0, 0]
        self.workspace = 0
        self.arrivals = 0

    def fits(self, workspace_bytes: int, arrivals: int) -> bool:
        """Whether it has as much."""
        return workspace_bytes <= self._sizes[0] and arrivals <= self._sizes[1]

    def grow(self, workspace_bytes: int, arrivals: int) -> None:
        """Have at least so much.

        Raises:
            DeviceError: there is not enough memory.
        """
        if workspace_bytes > self._sizes[0]:
            size = max(workspace_bytes, 2 * self._sizes[0])
            memory = self._context.allocate(size)
            self._kept.append(memory)
            self.workspace, self._sizes[0] = memory.address, size
        if arrivals > self._sizes[1]:
            count = max(arrivals, 2 * self._sizes[1])
            memory = self._context.zeros(COUNTER_BYTES * count)
            self._kept.append(memory)
            self.arrivals, self._sizes[1] = memory.address, count


class ScratchPool:
    """The scratch memory of one GPU: for each stream, and each capture of it into a graph."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # A signal handler may come to it in the thread that holds it.
        self._lock = threading.RLock()
        self._found: dict[tuple[int, int, int], Scratch] = {}

    def of(self, stream: int, capturing: bool, workspace_bytes: int, arrivals: int) -> Scratch:
        """Scratch memory for a launch on a stream.

        A stream that is being captured has memory of its own, for the graph may run beside the
        stream; it stays until the process ends, since nothing tells when the last copy of a graph
        is gone.

        Raises:
            DeviceError: there is not enough memory.
        """
        thread = threading.get_ident() if stream == PER_THREAD_STREAM else 0
        capture = _capture_id(stream) if capturing else 0
        key = stream, thread, capture
        with self._lock:
            scratch = self._found.get(key)
            if scratch is None:
                scratch = self._found[key] = Scratch(self._context)
            if not scratch.fits(workspace_bytes, arrivals):
                scratch.grow(workspace_bytes, arrivals)
        return scratch


def _capture_id(stream: int) -> int:
    """The number of the capture that a stream takes part in."""
    from cuda.bindings import driver

    with cuda_errors("asking for the capture of a stream"):
        status, state, number, *_ = driver.cuStreamGetCaptureInfo(stream)
        result((status,))
    active = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return int(number) if state == active else 0
