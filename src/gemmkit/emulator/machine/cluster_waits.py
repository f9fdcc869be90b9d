"""`ClusterWaits`: one block's part in the barrier of its cluster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gemmkit.emulator.codegen.layout import ALL_LANES, DONE
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.cluster import CLUSTER_BARRIER, ClusterBarrier
from gemmkit.emulator.machine.worker import Worker


class ClusterWaits:
    """The barrier of the cluster for one worker's block."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._own = ClusterBarrier(worker.warps)

    @property
    def _barrier(self) -> ClusterBarrier:
        return self._own if self._worker.cluster is None else self._worker.cluster.barrier

    @property
    def phase(self) -> int:
        """The parity of the barrier's phase."""
        return self._barrier.phase

    def execute(self, warp: int, action: Action, lanes: int) -> bool:
        """Lanes of a warp arrive, or ask whether they may continue; returns whether they may.

        Raises:
            Misuse: an arrival without a wait since the last one, or a wait without an arrival.
        """
        worker, observer = self._worker, self._worker.observer
        place = worker.rank * worker.warps + warp
        if action.operation == "barrier_cluster_arrive":
            self._barrier.arrive(place, lanes)
            if observer is not None:
                observer.arrived_in_cluster(action.number, warp)
            self.settle()
            return True
        passes = self._barrier.wait(place, lanes)
        if passes and observer is not None:
            observer.waited_in_cluster(warp)
        return passes

    def settle(self) -> bool:
        """Complete the phase if all threads that have not exited have arrived."""
        if not self._barrier.settle(self._living()):
            return False
        if self._worker.observer is not None:
            self._worker.observer.cluster_met()
        for each in self._worker.peers:
            if each.phases is not None:
                each.phases.wake(CLUSTER_BARRIER, self.phase)
        return True

    def _living(self) -> Iterator[int]:
        """The threads of each warp of the cluster that have not exited, as masks."""
        for worker in self._worker.peers:
            initial, exited, status = map(worker.warp_fields, ("initial", "exited", "status"))
            alive = np.where(status == DONE, 0, initial & ~exited)
            yield from (alive.astype(np.int64) & ALL_LANES).tolist()

    def text(self) -> str:
        """The barrier in words."""
        return self._barrier.text(self._living())
