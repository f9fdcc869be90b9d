"""Ranks as threads of this process, with NumPy's arrays: for tests, and to try a placement out."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np

from gemmkit.distributed.communicator import Outgoing
from gemmkit.distributed.schedule import Schedule, Transfer
from gemmkit.errors import DistributedError

_Result = TypeVar("_Result")


class Hub:
    """Where threads leave what they send to each other.

    Args:
        ranks: how many threads there are.
        timeout: the seconds for which one waits for another.
    """

    def __init__(self, ranks: int, timeout: float = 60.0) -> None:
        self.ranks, self.timeout = ranks, timeout
        self._boxes: dict[tuple[object, ...], SimpleQueue[Any]] = defaultdict(SimpleQueue)
        self._lock = threading.Lock()

    def box(self, *key: object) -> SimpleQueue[Any]:
        """The queue for a transfer."""
        with self._lock:
            return self._boxes[key]

    def take(self, what: str, *key: object) -> Any:
        """What is put into a box, once it is there.

        Raises:
            DistributedError: it does not come in time.
        """
        try:
            return self.box(*key).get(timeout=self.timeout)
        except Empty:
            raise DistributedError(
                f"{what} did not come within {self.timeout:g} s: that rank has ended, or makes "
                "other calls"
            ) from None

    def run(self, work: Callable[[ThreadCommunicator], _Result]) -> list[_Result]:
        """What `work` returns on each rank, in a thread each; the first error is raised."""
        with ThreadPoolExecutor(self.ranks) as pool:
            made = [pool.submit(work, ThreadCommunicator(self, rank)) for rank in range(self.ranks)]
            return [each.result() for each in made]


class ThreadCommunicator:
    """One of the threads of a hub."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size = hub, rank, hub.ranks
        self._calls = 0

    def start(self, schedule: Schedule, like: Any, dtype: str, width: int) -> ThreadTransfers:
        """As `Communicator.start`."""
        self._calls += 1
        inbox = np.empty((schedule.lines, width), like.dtype if dtype == "" else dtype)
        return ThreadTransfers(self, schedule, inbox, self._calls)

    def agree(self, facts: str) -> Sequence[str]:
        """As `Communicator.agree`."""
        self._calls += 1
        for peer in range(self.size):
            self.hub.box("facts", self._calls, self.rank, peer).put(facts)
        return [
            self.hub.take(f"what rank {peer} says", "facts", self._calls, peer, self.rank)
            for peer in range(self.size)
        ]


class ThreadTransfers:
    """The transfers of one call of a thread."""

    def __init__(
        self, communicator: ThreadCommunicator, schedule: Schedule, inbox: Any, call: int
    ) -> None:
        self._communicator, self._schedule = communicator, schedule
        self._inbox, self._call = inbox, call
        self._pending: list[_ThreadArrival] = []

    def exchange(
        self, sends: Sequence[Outgoing], receives: Sequence[Transfer]
    ) -> Sequence[_ThreadArrival]:
        """As `Transfers.exchange`; copies are sent, so that a late write would be seen."""
        rank, hub = self._communicator.rank, self._communicator.hub
        for array, transfer in sends:
            box = hub.box(self._call, rank, transfer.peer, transfer.number)
            box.put(np.array(array, copy=True))
        made = [_ThreadArrival(self, each) for each in receives]
        self._pending += made
        return made

    def gathered(self, own: Any) -> Any:
        """As `Transfers.gathered`."""
        for each in self._pending:
            each.take()
        span = self._schedule.own
        self._inbox[span.start : span.stop] = own
        return self._inbox

    def arriving(self, own: Any) -> None:
        """As `Transfers.arriving`: queues have no flags."""

    def waited(self) -> None:
        """As `Transfers.waited`."""

    def finish(self) -> None:
        """As `Transfers.finish`."""

    def received(self, transfer: Transfer) -> Any:
        """The lines of the inbox that a transfer fills."""
        hub, rank = self._communicator.hub, self._communicator.rank
        what = f"rank {transfer.peer}'s part {transfer.number} for rank {rank}"
        came = hub.take(what, self._call, transfer.peer, rank, transfer.number)
        lines = self._inbox[transfer.offset : transfer.offset + transfer.piece.span.size]
        if came.shape != lines.shape:
            raise DistributedError(
                f"{what} has the shape {came.shape}, where {lines.shape} was expected"
            )
        lines[:] = came
        return lines


class _ThreadArrival:
    def __init__(self, transfers: ThreadTransfers, transfer: Transfer) -> None:
        self._transfers, self._transfer = transfers, transfer
        self._lines: Any = None

    def take(self) -> Any:
        if self._lines is None:
            self._lines = self._transfers.received(self._transfer)
        return self._lines
