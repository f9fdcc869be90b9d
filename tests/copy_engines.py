"""Threads in place of GPUs that write to each other's memory: copies and flags run at once."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from gemmkit.distributed import mapped_memory, symmetric
from gemmkit.errors import DistributedError

PATIENCE = 20.0


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    ctypes.memmove(target, source, nbytes)


def write_flag(address: int, value: int, stream: int) -> None:
    ctypes.c_uint32.from_address(address).value = value


def wait_for_flag(address: int, value: int, stream: int) -> None:
    end = time.monotonic() + PATIENCE
    while ctypes.c_int32(ctypes.c_uint32.from_address(address).value - value).value < 0:
        if time.monotonic() > end:
            raise DistributedError(f"no flag of {value} came")
        time.sleep(1e-4)


class Event:
    def record(self, stream: Any = None) -> None:
        pass


STREAM = SimpleNamespace(cuda_stream=0, wait_event=lambda event: None)


class Inbox:
    """As the one of symmetric memory, in memory of this process."""

    def __init__(self, memories: dict[int, list[Any]], rank: int, ranks: int, half: int) -> None:
        self.half, self.calls, self.captured_calls, self.views = half, 0, 0, {}
        self.memory = torch.zeros(symmetric._DATA + 2 * half, dtype=torch.uint8)
        symmetric.clear_flags(self.memory)
        # Whatever is read without having been sent shows up.
        self.memory[symmetric._DATA :] = 0xFF
        memories["barrier"].wait(PATIENCE)
        memories[rank] = self.memory
        memories["barrier"].wait(PATIENCE)
        self.addresses = [memories[each].data_ptr() for each in range(ranks)]
        memories["barrier"].wait(PATIENCE)


class Graphs:
    """CUDA graphs of threads: within `capture`, what is recorded is kept in place of being run."""

    def __init__(self) -> None:
        self._own = threading.local()

    def capturing(self) -> bool:
        return getattr(self._own, "steps", None) is not None

    def recorded(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            if self.capturing():
                self._own.steps.append(lambda: work(*given, **options))
                return None
            return work(*given, **options)

        return call

    @contextmanager
    def capture(self) -> Iterator[Callable[[], None]]:
        steps = self._own.steps = []

        def replay() -> None:
            for each in steps:
                each()

        try:
            yield replay
        finally:
            self._own.steps = None


def run(
    monkeypatch: Any, ranks: int, work: Callable[[Any], Any], graphs: Graphs | None = None
) -> list[Any]:
    """What `work` returns for the communicator of each rank, in a thread each."""
    graphs = graphs or Graphs()
    for each in (copy, write_flag, wait_for_flag):
        monkeypatch.setattr(symmetric, each.__name__, graphs.recorded(each))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: STREAM)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", graphs.capturing)
    monkeypatch.setattr(mapped_memory.WatchedCalls, "_has_ended", lambda self: True)
    memories: dict[Any, Any] = {"barrier": threading.Barrier(ranks)}
    own = threading.local()
    monkeypatch.setattr(
        symmetric, "_Inbox", lambda group, device, half: Inbox(memories, own.rank, ranks, half)
    )
    monkeypatch.setattr(
        mapped_memory.dist, "barrier", lambda group: memories["barrier"].wait(PATIENCE)
    )

    def one(rank: int) -> Any:
        own.rank = rank
        group = SimpleNamespace(
            group=None, rank=rank, size=ranks, stream=lambda device: STREAM, agree=None
        )
        return work(symmetric.SymmetricCommunicator(group, torch.device("cpu")))

    with ThreadPoolExecutor(ranks) as pool:
        return [each.result() for each in [pool.submit(one, rank) for rank in range(ranks)]]
