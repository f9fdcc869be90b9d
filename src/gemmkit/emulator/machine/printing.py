"""printf: the output of a launch's threads, in the order of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.layout import LANES, WINDOW_BYTES, WINDOWS
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.printf import format_printf
from gemmkit.errors import DeviceError


class Printer:
    """Collects the output of a launch; blocks may run in any order."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._texts: list[tuple[int, str]] = []

    def lines(self) -> tuple[str, ...]:
        """All lines, block after block."""
        ordered = sorted(self._texts, key=lambda each: each[0])
        return tuple("".join(text for _, text in ordered).splitlines())

    def call(
        self,
        worker: Worker,
        warp: int,
        formats: NDArray[Any],
        buffers: NDArray[Any],
        active: NDArray[np.bool_],
        read: Callable[[int, int, Sequence[tuple[int, int]]], None] | None = None,
    ) -> None:
        """One call of `vprintf` by a warp: addresses of format strings and argument buffers.

        `read` is called with the bytes of local memory that a thread prints: the thread, the
        buffer's address, and for each argument its first byte in the buffer and its size.
        """
        for lane in np.flatnonzero(active).tolist():
            data = self._arguments(worker, warp * LANES + lane, int(buffers[lane]))
            taken: list[tuple[int, int]] = []
            text = format_printf(self._string(int(formats[lane])), data, self._string, taken)
            offset = int(buffers[lane]) - WINDOWS["local"]
            if read is not None and 0 <= offset < WINDOW_BYTES:
                read(warp * LANES + lane, offset, taken)
            self._texts.append((worker.field("block"), text))

    def _arguments(self, worker: Worker, thread: int, address: int) -> bytes:
        offset = address - WINDOWS["local"]
        if 0 <= offset < WINDOW_BYTES:
            return worker.local_memory(thread)[offset:].tobytes()
        return self._bytes_from(address) if address else b""

    def _bytes_from(self, address: int) -> bytes:
        found = self._memory.find(address)
        if found is None:
            raise DeviceError(f"printf reads at {address:#x}, where no memory is allocated")
        return self._memory.view(address, found.address + found.nbytes - address).tobytes()

    def _string(self, address: int) -> str:
        return self._bytes_from(address).split(b"\0", 1)[0].decode("utf-8", "replace")
