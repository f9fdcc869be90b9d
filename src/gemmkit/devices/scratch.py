"""Memory that launches need besides their matrices, apart for all that may overlap in time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gemmkit.devices import driver
from gemmkit.devices.captures import capture_of, is_capturing
from gemmkit.devices.device import Buffer

# The handle that means the calling thread's own default stream.
PER_THREAD_STREAM = 2

COUNTER_BYTES = 4

# Gives so many bytes of a GPU that belong to the graph into which the current stream is being
# captured, as what keeps them and their address; None for memory from the scratch pool.
Temporary = Callable[[int, int], tuple[object, int] | None]


def no_memory(nbytes: int, device: int) -> None:
    """A `Temporary` of what keeps no memory apart for graphs."""


class Source(Protocol):
    """Where scratch memory comes from: a GPU's context."""

    ordinal: int

    def allocate(self, nbytes: int) -> Buffer:
        """Device memory that is ready for any stream, its content undefined."""

    def zeros(self, nbytes: int) -> Buffer:
        """The same, filled with zeros."""


class StreamScratch:
    """A workspace, and semaphores that are zero between launches, for launches one after another.

    What has become too small is kept for launches that still use it, or that a graph replays; as
    sizes double, that is no more than what is in use.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: list[Buffer] = []
        self._sizes = [0, 0]
        self.workspace = 0
        self.semaphores = 0

    def fits(self, workspace_bytes: int, semaphores: int) -> bool:
        """Whether it has as much."""
        return workspace_bytes <= self._sizes[0] and semaphores <= self._sizes[1]

    def grow(self, workspace_bytes: int, semaphores: int) -> None:
        """Have at least so much.

        Raises:
            DeviceError: there is not enough memory.
        """
        if workspace_bytes > self._sizes[0]:
            size = max(workspace_bytes, 2 * self._sizes[0])
            memory = self._source.allocate(size)
            self._kept.append(memory)
            self.workspace, self._sizes[0] = memory.address, size
        if semaphores > self._sizes[1]:
            count = max(semaphores, 2 * self._sizes[1])
            memory = self._source.zeros(COUNTER_BYTES * count)
            self._kept.append(memory)
            self.semaphores, self._sizes[1] = memory.address, count


class ScratchPool:
    """The scratch memory of one GPU: for each stream, and each capture of it into a graph."""

    def __init__(self, source: Source) -> None:
        self._source = source
        # A signal handler may come to it in the thread that holds it.
        self._lock = threading.RLock()
        self._found: dict[tuple[int, int, int], StreamScratch] = {}

    def of(
        self, stream: int, capturing: bool, workspace_bytes: int, semaphores: int
    ) -> StreamScratch:
        """Scratch memory for a launch on a stream.

        A stream that is being captured has memory of its own, for the graph may run beside the
        stream; it stays until the process ends, since nothing tells when the last copy of a graph
        is gone.

        Raises:
            DeviceError: there is not enough memory.
        """
        thread = threading.get_ident() if stream == PER_THREAD_STREAM else 0
        capture = capture_of(stream)[0] if capturing else 0
        key = stream, thread, capture
        with self._lock:
            scratch = self._found.get(key)
            if scratch is None:
                scratch = self._found[key] = StreamScratch(self._source)
            if not scratch.fits(workspace_bytes, semaphores):
                scratch.grow(workspace_bytes, semaphores)
        return scratch


class HeldScratch:
    """Scratch memory for what takes several operations, between which no launch may overwrite it.

    `ScratchPool` serves single launches, which the order of a stream keeps apart.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.RLock()
        # One for each depth: a signal handler may come between them in the same thread.
        self._pools: list[ScratchPool] = []
        self._depth = 0

    @contextmanager
    def pool(self) -> Iterator[ScratchPool]:
        """The pool that nobody else has, until all operations are on their stream."""
        with self._lock:
            self._depth += 1
            try:
                if self._depth > len(self._pools):
                    self._pools.append(ScratchPool(self._source))
                yield self._pools[self._depth - 1]
            finally:
                self._depth -= 1


class LaunchScratch:
    """The scratch memory of one launch, on whatever stream it runs.

    Args:
        source: the GPU's context.
        pool: what it is taken from, unless `on` names another one.
        workspace_bytes, semaphores: what the launch needs.
        temporary: memory of graphs, for the workspace of launches that are captured.
    """

    __slots__ = ("_last", "_needs", "_pool", "_query", "_source", "_temporary")

    def __init__(
        self,
        source: Source,
        pool: ScratchPool,
        workspace_bytes: int,
        semaphores: int,
        temporary: Temporary = no_memory,
    ) -> None:
        self._source, self._pool, self._temporary = source, pool, temporary
        self._needs = workspace_bytes, semaphores
        self._query = driver.capture_query()
        self._last: tuple[int, StreamScratch] | None = None

    def on(self, stream: int, pool: ScratchPool | None = None) -> tuple[int, int]:
        """The addresses of workspace and semaphores for the next launch on a stream.

        Raises:
            DeviceError: there is not enough memory.
        """
        if is_capturing(self._query, stream):
            return self._of_capture(stream, pool or self._pool)
        last = self._last
        if pool is not None:
            scratch = pool.of(stream, False, *self._needs)
        elif last is not None and last[0] == stream:
            scratch = last[1]
        else:
            scratch = self._pool.of(stream, False, *self._needs)
            self._last = stream, scratch
        return scratch.workspace, scratch.semaphores

    def _of_capture(self, stream: int, pool: ScratchPool) -> tuple[int, int]:
        """Memory that is the graph's into which the stream is being captured."""
        nbytes, semaphores = self._needs
        made = self._temporary(nbytes, self._source.ordinal) if nbytes else None
        scratch = pool.of(stream, True, nbytes if made is None else 0, semaphores)
        # What the library gave belongs to the graph, which may use it again for what comes next.
        return scratch.workspace if made is None else made[1], scratch.semaphores
