"""`Job`: what the threads of one product of host matrices share."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gemmkit.ops.streamed.operands import Streamed
from gemmkit.ops.streamed.planner import StreamPlan
from gemmkit.ops.streamed.traversal import Deal, Tile


class Stopped(Exception):
    """Another thread has failed, or the user has interrupted."""


@dataclass(slots=True)
class Job:
    """A product: its matrices, its plan, the tiles that are still to be dealt, and its end.

    `threads` copy between host matrices and staging memory. `events` tells the calling thread of
    each tile that is done (True), and of each worker that has ended (False).
    """

    streamed: Streamed
    plan: StreamPlan
    deal: Deal
    threads: ThreadPoolExecutor
    events: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue)
    stopped: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def check(self) -> None:
        """Go on only if nothing has stopped the product.

        Raises:
            Stopped: something has.
        """
        if self.stopped.is_set():
            raise Stopped

    def fail(self, error: BaseException) -> None:
        """Stop all threads, for an error that is raised if it is the first."""
        if self.error is None and not isinstance(error, Stopped):
            self.error = error
        self.stopped.set()


@dataclass(frozen=True, slots=True)
class Region:
    """What a tile covers: products of the stack, rows and columns."""

    products: range
    rows: range
    columns: range

    @classmethod
    def of(cls, tile: Tile, plan: StreamPlan) -> Region:
        """That of a tile."""
        problem, tiling = plan.problem, plan.tiling
        return cls(
            part(tile.group, tiling.group, problem.batch),
            part(tile.row, tiling.m, problem.m),
            part(tile.column, tiling.n, problem.n),
        )


def part(number: int, size: int, total: int) -> range:
    """The indices of a part of a side, the last of which may be smaller."""
    return range(number * size, min((number + 1) * size, total))
