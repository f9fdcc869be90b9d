"""Memory of a GPU that all ranks of a host map, and the watch over calls that wait there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric_memory

from gemmkit.devices.context import context_of
from gemmkit.distributed.process_group import failures
from gemmkit.distributed.watchdog import Watchdog, timeout_of


class MappedMemory:
    """Memory of this GPU, all zeros, to which all ranks write: `addresses` are theirs, by rank, as
    this process sees them. All ranks come to it together, with as many bytes.

    Raises:
        DistributedError: a rank does not come.
    """

    def __init__(self, group: Any, device: Any, nbytes: int) -> None:
        # Memory of its own: what `symmetric_memory.empty` gives may be part of a pool.
        self.memory = symmetric_memory._SymmetricMemory.empty_strided_p2p(
            (nbytes,), (1,), torch.uint8, device, group.group_name
        )
        with failures("mapping the memory of other ranks' GPUs"):
            # Kept: the mapping goes with it.
            self.handle = symmetric_memory.rendezvous(self.memory, group)
        ranks = range(dist.get_world_size(group))
        self.addresses = [
            self.handle.get_buffer(rank, (1,), torch.uint8).data_ptr() for rank in ranks
        ]
        self.memory.zero_()

    def ready(self, group: Any, device: Any) -> None:
        """Wait until all ranks have written what their memory begins with."""
        torch.cuda.synchronize(device)
        with failures("waiting for other ranks' memory"):
            dist.barrier(group)


def before_larger(group: Any, device: Any) -> None:
    """Wait until no rank reads or writes what is mapped any more."""
    torch.cuda.synchronize(device)
    with failures("making memory of all ranks larger"):
        dist.barrier(group)


class WatchedCalls:
    """Calls of a group that wait for other ranks on the GPU, each of which has to end within the
    group's time-out; `late`, a method of what has them, says which ranks are late."""

    def __init__(self, group: Any, device: Any, late: Callable[[], str]) -> None:
        self._device, self._ended = device, torch.cuda.Event()
        # What `late` belongs to has these calls, and is freed with its group.
        known = WeakMethod(late)

        def said() -> str:
            found = known()
            return "" if found is None else str(found())

        self._watchdog = Watchdog(timeout_of(group, device), said)

    def ended_on(self, stream: Any) -> None:
        """A call ends with what is on a stream now."""
        self._ended.record(stream)
        self._watchdog.started(self._has_ended)

    def wait_on(self, stream: Any) -> None:
        """Have a stream wait for the last call."""
        stream.wait_event(self._ended)

    def _has_ended(self) -> bool:
        # A thread that captures a graph would lose it by another one's question.
        with context_of(self._device.index).current():
            return bool(self._ended.query())


def read_apart(memory: Any, device: Any) -> Any:
    """The numbers of a part of a GPU's memory, whatever its streams wait for."""
    with torch.cuda.stream(torch.cuda.Stream(device)):
        return memory.tolist()
