"""`BlockWaits`: the mbarriers of a running block, and the warps that wait for their phases.

A warp whose `try_wait` fails runs other lanes of its own, or stops until the phase completes. If
all warps of the block have stopped, the time limit of every `try_wait` expires: it returns false.
The block is deadlocked once that has changed nothing often enough (`Expiries`). A `test_wait` that
fails ends the turn of its warp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmkit.emulator.isa.cluster import CLUSTER_BARRIER
from gemmkit.emulator.isa.expiries import Expiries
from gemmkit.emulator.isa.mbarriers import OBJECT_BYTES, State, announced_text
from gemmkit.emulator.machine.asynchronous import Copy, Wait
from gemmkit.emulator.machine.bulk import BulkCopies
from gemmkit.emulator.machine.cluster_waits import ClusterWaits
from gemmkit.emulator.machine.waiting_lanes import WaitingLanes
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.ptx.shared_names import shared_array


class BlockWaits:
    """The mbarriers of the block that a worker runs, its copies in flight, and who waits."""

    def __init__(self, worker: Worker, copies: BulkCopies) -> None:
        self._worker, self._copies = worker, copies
        self._running_block = -1
        whole = len(worker.shared) // OBJECT_BYTES * OBJECT_BYTES
        self._words = worker.shared[:whole].view(np.uint64)
        self._announced = worker.announced
        self._lanes = WaitingLanes(worker)

    def _begin(self) -> None:
        """Forget the block before this one."""
        block = self._worker.number
        if self._running_block != block:
            self._running_block = block
            self._lanes.begin()
            # The sizes of the boxes that tensor copies have brought to an mbarrier.
            self._boxes: dict[int, set[int]] = {}
            self._expiries = Expiries()
            self._cluster = ClusterWaits(self._worker)
            self._copies.begin()

    def read(self, address: int) -> int:
        """The 8 bytes of an object of this block."""
        return int(self._words[address // OBJECT_BYTES])

    def write(self, address: int, word: int) -> None:
        """Change them."""
        self._words[address // OBJECT_BYTES] = word

    def completed(self, address: int, state: State) -> None:
        """Wake the lanes that wait for the phase that has completed."""
        self._announced[address // OBJECT_BYTES] = 0
        self._boxes.pop(address, None)
        if self._worker.observer is not None:
            self._worker.observer.completed(address)
        self.wake(address, state.phase)

    def wake(self, address: int, phase: int) -> None:
        """Wake the lanes of this block that wait for the end of a phase other than this one."""
        self._lanes.wake(address, phase)

    def expire(self) -> bool:
        """All warps have stopped: let a copy in flight take effect or, if there is none, let each
        `try_wait` return false, unless that has not helped."""
        if self.land_one() or self.settle_cluster():
            return True
        now = self.stopped()
        if not now:
            return False
        if self._expiries.in_vain(now, [self._worker.shared]):
            return False
        self.resume()
        return True

    def land_one(self) -> bool:
        """Let one of the copies in flight take effect; False if there is none."""
        return self._running_block == self._worker.number and self._copies.land_one()

    def stopped(self) -> Sequence[object]:
        """The warps whose waits may expire, as those for the cluster's barrier do not; and what
        they wait for."""
        return [
            (warp, wait.lanes, wait.number, [(at, self._held(at)) for at in wait.awaited])
            for warp in self._stopped()
            for wait in self._lanes.of(warp)
        ]

    def _stopped(self) -> Sequence[int]:
        return self._lanes.stopped() if self._running_block == self._worker.number else ()

    def _held(self, address: int) -> int:
        return -1 if address == CLUSTER_BARRIER else self.read(address)

    def resume(self) -> None:
        """Let the `try_wait` of each warp that has stopped return false."""
        self._lanes.resume(self._stopped())

    def settle_cluster(self) -> bool:
        """Threads may have exited: whether that completed the phase of the cluster's barrier."""
        return self._running_block == self._worker.number and self._cluster.settle()

    def land(self, copy: Copy) -> bool:
        """Let a copy take effect; False if it is not in flight."""
        return self._copies.land(copy)

    def drain(self) -> None:
        """All warps have ended: copies in flight take effect."""
        self._copies.end()

    def waits(self, warp: int) -> Sequence[Wait]:
        """What lanes of a warp wait or poll for."""
        return self._lanes.of(warp) if self._running_block == self._worker.number else ()

    def text(self, address: int) -> str:
        """An mbarrier, and what it has and expects, in words."""
        if address == CLUSTER_BARRIER:
            return self._cluster.text()
        array, offset = shared_array(self._worker.flow.kernel, address)
        announced = int(self._announced[address // OBJECT_BYTES])
        held = announced_text(self.read(address), announced, self._boxes.get(address, ()))
        return f"the mbarrier at byte {offset} of '{array}' ({held})"
