"""`Cluster`: runs the blocks of a cluster in turn on one host thread, one worker per block.

A block's turn ends when all of its warps wait or have ended, when one polls an mbarrier in vain, or
when it has run for a while. Once no block can go on, copies in flight take effect and waits expire;
if that does not help, the cluster is deadlocked. The memory of a block stays until the whole
cluster has ended.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

import numpy as np

from gemmkit.emulator.codegen.layout import (
    DONE,
    FAULTED,
    FINISHED,
    IN_FLIGHT,
    OUT_OF_FUEL,
    RUNNING,
    STUCK,
    TRAP,
)
from gemmkit.emulator.codegen.native import runtime
from gemmkit.emulator.isa.cluster import ClusterBarrier
from gemmkit.emulator.isa.expiries import Expiries
from gemmkit.emulator.machine.grid import SharedGrid
from gemmkit.emulator.machine.worker import Worker

_Start = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
# The fuel after which a block's turn ends, so that a block may wait for another in a loop.
_TURN = 1_000_000


class Cluster:
    """Runs the blocks of one cluster after another; `workers` are in the order of the ranks, and
    `running` is the one that ran last."""

    def __init__(self, workers: Sequence[Worker], grid: SharedGrid) -> None:
        self.workers, self._grid = workers, grid
        self.running = workers[0]
        self.blocks = [-1] * len(workers)
        self.barrier = ClusterBarrier(0)
        self._living: list[Worker] = []
        self._round: list[Worker] = []
        self._used = 0
        self._memory = np.array([each.shared.ctypes.data for each in workers], np.int64)
        # Each worker believes that its block is the only one.
        self._no_block = np.zeros(8, np.int64)
        kernel = workers[0].kernel
        self._start = _Start(runtime().addresses[kernel.run.removesuffix("run") + "start"])
        for rank, worker in enumerate(workers):
            worker.cluster, worker.rank = self, rank
            shape = dict(zip(("x", "y", "z"), grid.request.cluster_shape, strict=True))
            for name, value in {
                "peers": self._memory.ctypes.data,
                "cluster_blocks": len(workers),
                "cluster_rank": rank,
                **{f"cluster_{axis}": size for axis, size in shape.items()},
                "next_block": self._no_block.ctypes.data,
                "block_limit": 0,
            }.items():
                worker.set_field(name, value)

    def run(self, fuel: int) -> int:
        """Run for about `fuel` warp instructions; returns why it stopped, as `Worker.run`: STUCK
        means that no block can go on.

        Raises:
            Refusal: an asynchronous copy is not valid when it takes effect.
        """
        left = fuel
        while left >= 0:
            if not self._living and not self._next_cluster():
                return FINISHED
            if not self._round:
                self._begin_round()
            self.running = worker = self._round[0]
            worker.pause = None
            reason = worker.run(left, fuel)
            rest = worker.field("fuel") if worker.pause is None else worker.pause
            spent, left = left - rest, rest
            if worker.observer is not None:
                worker.observer.look()
            if reason in (FAULTED, TRAP):
                return reason
            self._used += spent
            if reason == OUT_OF_FUEL and worker.pause is None and self._used < _TURN:
                continue
            held = worker.replay is not None and worker.replay.holding
            if reason == IN_FLIGHT and worker.phases is not None and not held:
                worker.phases.drain()
                continue
            if reason == FINISHED:
                self._living.remove(worker)
                if worker.observer is not None:
                    worker.observer.exited()
            self._end_turn()
            if not self._round and self._living and not self._can_go_on():
                return STUCK
        return OUT_OF_FUEL

    def _next_cluster(self) -> bool:
        """Begin to run another cluster, if there is one left."""
        number = self._grid.take()
        if number is None:
            return False
        self.blocks = self._grid.request.cluster_members(number)
        self._living = list(self.workers)
        self._random = random.Random(f"{self._grid.warp_seed}/{number}")
        self.barrier = ClusterBarrier(sum(each.warps for each in self.workers))
        self._expiries = Expiries()
        for worker, block in zip(self.workers, self.blocks, strict=True):
            worker.phases = None
            self._start(worker.fields.ctypes.data, block)
            if worker.observer is not None:
                worker.set_field("cluster_start", self.blocks[0])
        return True

    def _begin_round(self) -> None:
        self._round = list(self._living)
        if self._grid.warp_seed:
            self._random.shuffle(self._round)

    def _end_turn(self) -> None:
        ended = self._round.pop(0)
        self._used = 0
        if ended.polls_peers and ended.replay is None:
            any(each.phases is not None and each.phases.land_one() for each in self.workers)
        ended.polls_peers = False

    def _can_go_on(self) -> bool:
        """Whether a warp of the cluster can run or a block has yet to end or, if none can, whether
        copies in flight or expired waits let one run."""
        if any(_goes_on(each) for each in self._living):
            return True
        replay = self.workers[0].replay
        return (replay is not None and replay.advance()) or self.unblock()

    def unblock(self) -> bool:
        """Let copies in flight take effect and waits expire; False if there is nothing that has not
        been tried in vain."""
        phases = [each.phases for each in self.workers if each.phases is not None]
        if any(each.settle_cluster() for each in phases[:1]):
            return True
        for each in phases:
            if each.land_one():
                return True
        stops = [each.stopped() for each in phases]
        if not any(stops):
            return False
        if self._expiries.in_vain(stops, [each.shared for each in self.workers]):
            return False
        for each in phases:
            each.resume()
        return True

    def take_turns(self, warps: list[tuple[int, int]]) -> bool:
        """Let those of these warps, each with its block, that are of the cluster run next; returns
        whether one is."""
        first = [each for each in self._living if each.take_turns(warps)]
        if first:
            self._used = 0
            self._round = [*first, *(each for each in self._round if each not in first)]
        return bool(first)

    def leave(self) -> None:
        """Abandon the current cluster."""
        self._living, self._round, self._used = [], [], 0
        for worker in self.workers:
            worker.abandon()

    def fail(self, error: BaseException) -> None:
        """Stop soon, because of an exception of Python code that ran for the kernel."""
        self.running.fail(error)


def _goes_on(worker: Worker) -> bool:
    """Whether a warp of a block can run, or all have ended and the block has not: the last used up
    the fuel."""
    statuses = worker.warp_fields("status")
    return bool((statuses == RUNNING).any() or (statuses == DONE).all())
