"""What a stream is recording: its capture into a graph, and the kernels that come last in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gemmkit.devices import driver
from gemmkit.devices.cuda_errors import cuda_errors, result

# A capture's number and a node of its graph.
Place = tuple[int, int]


def is_capturing(query: Any, stream: int) -> bool:
    """Whether what is put on a stream is recorded, asked by `driver.capture_query()`."""
    status = ctypes.c_int(0)
    error: int = query(ctypes.c_void_p(stream), ctypes.byref(status))
    return error == 0 and status.value != 0


def capture_of(stream: int) -> tuple[int, tuple[int, ...]]:
    """The number of the capture that a stream takes part in, or 0, and the nodes that what comes
    next on it depends on.

    Raises:
        DeviceError: the capture has failed.
    """
    from cuda.bindings import driver as bindings

    with cuda_errors("asking for the capture of a stream"):
        status, state, number, _, nodes, *_ = bindings.cuStreamGetCaptureInfo(stream)
        result((status,))
    active = bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return (int(number), tuple(map(int, nodes))) if state == active else (0, ())


class DependentLaunches:
    """Which launches of a GPU follow a kernel that lets them start early, in a graph.

    Such a launch gains 0.7 µs after another one. After any other kernel it would lose: 0.3 to 0.8
    µs in graphs with kernels of PyTorch between (H100, driver 580). Only a graph tells what comes
    before; single launches on a stream are ordinary ones.
    """

    def __init__(self) -> None:
        self._query = driver.capture_query()
        self._last: dict[int, Place] = {}

    def launch(
        self, configuration: driver.LaunchConfiguration, call: Callable[[], int], stream: int
    ) -> int:
        """Launch by `call`, which has the configuration of a dependent launch; what it returns.

        Raises:
            DeviceError: the capture of the stream has failed.
        """
        if not is_capturing(self._query, stream):
            configuration.set_early(False)
            return call()
        configuration.set_early(self._follows(stream))
        error = call()
        if not error:
            self._note(stream)
        return error

    def _follows(self, stream: int) -> bool:
        """Whether the next launch depends on nothing but the last one that was noted."""
        number, nodes = capture_of(stream)
        return len(nodes) == 1 and self._last.get(stream) == (number, nodes[0])

    def _note(self, stream: int) -> None:
        """The last launch on a stream that is being captured lets the next one start early."""
        number, nodes = capture_of(stream)
        if len(nodes) == 1:
            self._last[stream] = number, nodes[0]
