"""Copies between host matrices and a device: direct where memory is pinned, else by staging."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.streamed import Event, StreamedDevice
from gemmkit.ops.streamed.host_matrices import HostStack

# A piece of staging memory, and how many each direction of a device has: some are filled or
# emptied by threads while others are on their way.
PIECE_BYTES, PIECES = 4 << 20, 16

# Raises what stops a product, if anything does.
Check = Callable[[], None]


class _Piece:
    """Staging memory, the copy that last used it, and the thread's work that did."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self.event: Event | None = None
        self.work: Future[None] | None = None

    def shaped(self, shape: tuple[int, int], item: int) -> NDArray[Any]:
        """So many of its first elements."""
        count = shape[0] * shape[1] * item
        return self._memory[:count].view(f"u{item}").reshape(shape)

    def idle(self) -> None:
        """Wait until it is free.

        Raises:
            GemmkitError: what used it has failed.
        """
        work, self.work = self.work, None
        if work is not None:
            work.result()
        event, self.event = self.event, None
        if event is not None:
            event.wait()


class Transfers:
    """One direction of one device, for one thread.

    Args:
        device: the device, which has been entered.
        threads: what fills and empties staging memory.
        check: called between pieces.
    """

    def __init__(self, device: StreamedDevice, threads: ThreadPoolExecutor, check: Check) -> None:
        self._device, self._threads, self._check = device, threads, check
        self._pieces: list[_Piece] = []
        self._next = 0

    def load(
        self, lines: NDArray[Any], stack: HostStack, address: int, pitch: int, item: int
    ) -> None:
        """Put copies of lines to a device on its stream `in`, `pitch` bytes apart there.

        `item` are the bytes of an element there; see `HostStack.read`.

        Raises:
            GemmkitError: a file cannot be read, or the device refuses a copy.
        """
        if not lines.size:
            return
        if item == stack.item and stack.is_direct(lines):
            self._device.copy_in(lines, address, pitch)
            return
        filled: deque[tuple[_Piece, NDArray[Any], int]] = deque()
        for part, row, column in _cut(lines, item):
            self._check()
            if len(filled) == PIECES:
                self._send(*filled.popleft(), pitch)
            piece = self._piece()
            room = piece.shaped((part.shape[0], part.shape[1]), item)
            piece.work = self._threads.submit(stack.read, part, room)
            filled.append((piece, room, address + row * pitch + column * item))
        while filled:
            self._send(*filled.popleft(), pitch)

    def _send(self, piece: _Piece, room: NDArray[Any], address: int, pitch: int) -> None:
        piece.idle()
        self._device.copy_in(room, address, pitch)
        piece.event = self._device.record("in")

    def store(self, lines: NDArray[Any], stack: HostStack, address: int, pitch: int) -> None:
        """Copy from a device, in the order of its stream `out`, and wait.

        Raises:
            GemmkitError: a file cannot be written, or a copy or a launch before it has failed.
        """
        if not lines.size:
            return
        if stack.is_direct(lines):
            self._device.copy_out(address, pitch, lines)
            self._device.record("out").wait()
            return
        coming: deque[tuple[_Piece, NDArray[Any], NDArray[Any]]] = deque()
        for part, row, column in _cut(lines, stack.item):
            self._check()
            if len(coming) == PIECES // 2:
                self._empty(*coming.popleft(), stack)
            piece = self._piece()
            room = piece.shaped((part.shape[0], part.shape[1]), stack.item)
            self._device.copy_out(address + row * pitch + column * stack.item, pitch, room)
            piece.event = self._device.record("out")
            coming.append((piece, room, part))
        while coming:
            self._empty(*coming.popleft(), stack)
        for piece in self._pieces:
            piece.idle()

    def _empty(
        self, piece: _Piece, room: NDArray[Any], part: NDArray[Any], stack: HostStack
    ) -> None:
        piece.idle()
        piece.work = self._threads.submit(stack.write, part, room)

    def _piece(self) -> _Piece:
        """The next piece, when it is free."""
        if len(self._pieces) < PIECES:
            if not self._pieces:
                self._memory = self._device.staging(PIECES * PIECE_BYTES)
            start = len(self._pieces) * PIECE_BYTES
            self._pieces.append(_Piece(self._memory[start : start + PIECE_BYTES]))
            return self._pieces[-1]
        piece = self._pieces[self._next]
        self._next = (self._next + 1) % PIECES
        piece.idle()
        return piece

    def finish(self) -> None:
        """Wait for threads that still use staging memory, whatever came of it."""
        for piece in self._pieces:
            if piece.work is not None:
                piece.work.exception()


def _cut(lines: NDArray[Any], item: int) -> Iterator[tuple[NDArray[Any], int, int]]:
    """Parts of lines that fit in a piece, and the first line and element of each."""
    count, length = lines.shape
    most = PIECE_BYTES // item
    columns = min(length, most)
    rows = max(most // columns, 1)
    for row in range(0, count, rows):
        for column in range(0, length, columns):
            yield lines[row : row + rows, column : column + columns], row, column
