"""Arrays in host memory that a GPU computes with: there and back in pieces, by pinned memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from gemmkit.devices.context import Context, context_of
from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.device import Buffer, Value
from gemmkit.devices.launcher import prepared_launches
from gemmkit.devices.pinned import PinnedMemory
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan

# One piece is filled or emptied by the host while the other is on its way.
PIECE_BYTES = 4 << 20
PIECES = 2


class Staging:
    """A GPU as host arrays use it, for one thread at a time: all is in the order of one stream.

    Raises:
        DeviceError: there is too little memory that could be pinned.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.spec = context.spec
        self._stream = context.own_stream
        with cuda_errors("pinning host memory"), context.current():
            self._pieces = [PinnedMemory(PIECE_BYTES) for _ in range(PIECES)]

    def upload(self, array: NDArray[Any]) -> Buffer:
        """A device copy of a C-contiguous array.

        Raises:
            DeviceError: there is not enough memory, or the copy fails.
        """
        from cuda.bindings import driver

        memory = self._context.allocate_on(array.nbytes, self._stream)
        with cuda_errors("copying to the GPU"), self._context.current():
            for number, start in enumerate(range(0, array.nbytes, PIECE_BYTES)):
                piece = self._pieces[number % PIECES]
                nbytes = min(PIECE_BYTES, array.nbytes - start)
                piece.wait()
                piece.copy_from(array.ctypes.data + start, nbytes)
                result(
                    driver.cuMemcpyHtoDAsync(
                        memory.address + start, piece.address, nbytes, self._stream
                    )
                )
                piece.record(self._stream)
        return memory

    def empty(self, nbytes: int) -> Buffer:
        """Device memory, its content undefined.

        Raises:
            DeviceError: there is not enough memory.
        """
        return self._context.allocate_on(nbytes, self._stream)

    def launch(self, binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]) -> None:
        """Put the plan's grid on the stream.

        Raises:
            DeviceError: the driver refuses it.
        """
        for launch in prepared_launches(self._context, plan, binary, arguments):
            launch.run((), self._stream)

    def download(self, buffer: Buffer, out: NDArray[Any]) -> None:
        """Fill a C-contiguous array from the start of a buffer, when all launches are done.

        Raises:
            DeviceError: the copy fails, or a kernel before it has failed.
        """
        from cuda.bindings import driver

        starts = range(0, out.nbytes, PIECE_BYTES)
        with cuda_errors("copying from the GPU"), self._context.current():
            for number in range(len(starts) + 1):
                if number < len(starts):
                    piece, start = self._pieces[number % PIECES], starts[number]
                    nbytes = min(PIECE_BYTES, out.nbytes - start)
                    result(
                        driver.cuMemcpyDtoHAsync(
                            piece.address, buffer.address + start, nbytes, self._stream
                        )
                    )
                    piece.record(self._stream)
                if number:
                    piece, start = self._pieces[(number - 1) % PIECES], starts[number - 1]
                    piece.wait()
                    nbytes = min(PIECE_BYTES, out.nbytes - start)
                    piece.copy_to(out.ctypes.data + start, nbytes)


# A signal handler may come to it in the thread that holds it, and gets pieces of its own.
_lock = threading.RLock()
_spare: dict[int, list[Staging]] = {}


def _begin_child() -> None:
    """In a forked process, nothing owns what other threads held."""
    global _lock
    _lock = threading.RLock()
    _spare.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


@contextmanager
def staging(ordinal: int) -> Iterator[Staging]:
    """That of a GPU, while no other thread has it.

    Raises:
        DeviceError: there is no such GPU.
    """
    with _lock:
        spare = _spare.setdefault(ordinal, [])
        found = spare.pop() if spare else Staging(context_of(ordinal))
        try:
            yield found
        finally:
            spare.append(found)
