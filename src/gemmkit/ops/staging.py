"""Products of host arrays on a GPU: there and back in pieces, through pinned memory."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.devices.device import Buffer
from gemmkit.dispatch.choose import choose
from gemmkit.dispatch.groups import choose_tiles
from gemmkit.grouped_problem import GroupedProblem
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.ops.arguments import step_numbers, step_places
from gemmkit.ops.compiled import compiled
from gemmkit.ops.context import Context, context_of
from gemmkit.ops.launcher import Launch
from gemmkit.ops.placement import Step

# One piece is filled or emptied by the host while the other is on its way.
PIECE_BYTES = 4 << 20
PIECES = 2


class _Piece:
    """Pinned host memory, and an event that tells when a copy from or to it is done."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        portable = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every context
        self.address = int(result(driver.cuMemHostAlloc(PIECE_BYTES, portable)))
        flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self.event = result(driver.cuEventCreate(flags))

    def record(self, stream: int) -> None:
        """Have the event tell when all that is on a stream now is done."""
        from cuda.bindings import driver

        result(driver.cuEventRecord(self.event, stream))

    def wait(self) -> None:
        """Wait for what was recorded last."""
        from cuda.bindings import driver

        result(driver.cuEventSynchronize(self.event))


class Staging:
    """A carrier (see `gemmkit.ops.host`) that computes on a GPU, on a stream of its own.

    Raises:
        DeviceError: there is too little memory that could be pinned.
    """

    alignment = 256
    by_columns = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self.spec = context.spec
        self._stream = context.own_stream
        with cuda_errors("pinning host memory"), context.current():
            self._pieces = [_Piece() for _ in range(PIECES)]

    def upload(self, array: NDArray[Any]) -> Buffer:
        """As `Carrier.upload`.

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
                ctypes.memmove(piece.address, array.ctypes.data + start, nbytes)
                result(
                    driver.cuMemcpyHtoDAsync(
                        memory.address + start, piece.address, nbytes, self._stream
                    )
                )
                piece.record(self._stream)
        return memory

    def empty(self, nbytes: int) -> Buffer:
        """As `Carrier.empty`.

        Raises:
            DeviceError: there is not enough memory.
        """
        return self._context.allocate_on(nbytes, self._stream)

    def run(self, step: Step, buffers: Mapping[str, Buffer]) -> None:
        """As `Carrier.run`."""
        choice = choose(step.problem, self.spec)
        plan, binary = compiled(step.problem, choice.kernel, choice.config, self.spec)
        addresses = {
            name: buffers[role].address + offset
            for name, (role, offset) in step_places(step).items()
        }
        self.launch(plan, binary, step_numbers(step) | addresses)

    def tiles(self, problem: GroupedProblem) -> TileConfig:
        """As `Carrier.tiles`."""
        return choose_tiles(problem, self.spec)

    def launch(
        self, plan: LaunchPlan, binary: Binary, arguments: Mapping[str, int | float]
    ) -> None:
        """As `Carrier.launch`.

        Raises:
            DeviceError: the driver refuses it.
        """
        if plan.blocks:
            nowhere = {"workspace": 0, "arrivals": 0}
            Launch(self._context, plan, binary, {**arguments, **nowhere}, {}).run((), self._stream)

    def download(self, buffer: Buffer, out: NDArray[Any]) -> None:
        """As `Carrier.download`.

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
                    ctypes.memmove(out.ctypes.data + start, piece.address, nbytes)


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
    """The carrier of a GPU, while no other thread has it.

    Raises:
        DeviceError: there is no such GPU.
    """
    with _lock:
        spare = _spare.setdefault(ordinal, [])
        carrier = spare.pop() if spare else Staging(context_of(ordinal))
        try:
            yield carrier
        finally:
            spare.append(carrier)
