"""`Stalls`: finds blocks that poll memory for what nothing that still runs can change.

A warp whose registers are as they were before, and that has changed nothing meanwhile, does the
same again unless the memory that it reads changes. If that holds for all warps of all blocks that
have begun, but for those that wait for these, and no block is left to begin, the launch never ends.
Counters, clocks and what other lanes of a warp might do speak against it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.codegen.layout import AT_BARRIER, DONE, RUNNING
from gemmkit.emulator.codegen.polls import Polls
from gemmkit.emulator.machine.grid import SharedGrid
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.worker import Worker

if TYPE_CHECKING:
    from gemmkit.emulator.machine.cluster import Cluster

# A state that comes back so often does forever: each warp of the block has had its turn meanwhile,
# also in an order that is shuffled.
_AGAIN = 3
# So many states of a block are kept, and so many bytes of memory are compared.
_MOST_STATES, _MOST_BYTES = 256, 64 << 20


@dataclass(slots=True)
class _Seen:
    """A block as it was last seen: how often each basic block was executed, and how many copies
    were in flight; how often each state was met since memory last changed, which was the change of
    this number."""

    block: int
    executed: NDArray[np.int64]
    in_flight: int
    change: int = 0
    states: Counter[bytes] = field(default_factory=Counter)
    repeats: bool = False


class Stalls:
    """Those of one launch, of which `units` run now."""

    def __init__(
        self,
        kernel: LoadedKernel,
        memory: DeviceMemory,
        grid: SharedGrid,
        units: Sequence[Worker | Cluster],
    ) -> None:
        self._kernel, self._memory, self._grid, self._units = kernel, memory, grid, units
        self._lock = threading.Lock()
        # How often memory may have changed, or a block has begun.
        self._changes = 0
        self._seen: dict[int, _Seen] = {}
        # By unit, the number of the change since which its waits have expired in vain.
        self._in_vain: dict[int, int] = {}
        # A digest of memory, and the only value that atomics have set since.
        self._held: tuple[bytes, int] | None = None

    @cached_property
    def _polls(self) -> Polls:
        return Polls(self._kernel.flow, self._kernel.actions)

    def has(self, unit: Worker | Cluster) -> bool:
        """Whether a unit, which has just run for a while, can never go on, and no other can."""
        with self._lock:
            own = _begun(unit)
            for each in own:
                self._look(each)
            if self._grid.left > 0 or not own or not all(map(self._is_stuck, own)):
                return False
            tried = self._in_vain.get(id(unit)) == self._changes and not _has_copies(own)
            if not tried and self._expire(unit, own):
                return False
            return all(
                self._in_vain.get(id(each)) == self._changes
                and all(map(self._is_stuck, begun))
                and not _has_copies(begun)
                for each, begun in [(each, _begun(each)) for each in list(self._units)]
            )

    def changed(self) -> None:
        """A unit that is not looked at has run: it may have changed memory."""
        with self._lock:
            self._changes += 1

    def _expire(self, unit: Worker | Cluster, own: Sequence[Worker]) -> bool:
        """Let a copy take effect, or waits at mbarriers expire; False if that has not helped."""
        if not unit.unblock():
            self._in_vain[id(unit)] = self._changes
            return False
        for each in own:
            self._seen[id(each)].states.clear()
            self._seen[id(each)].repeats = False
        return True

    def _look(self, worker: Worker) -> None:
        """Compare a block with how it was before."""
        executed, seen = worker.executed(), self._seen.get(id(worker))
        in_flight = worker.field("in_flight")
        if seen is None or seen.block != worker.number:
            self._changes += 1
            self._seen[id(worker)] = _Seen(worker.number, executed, in_flight)
            return
        ran: NDArray[np.bool_] = executed != seen.executed
        landed = in_flight != seen.in_flight
        if not ran.any() and not landed:
            return
        seen.executed, seen.in_flight = executed, in_flight
        self._changes += landed or self._has_changed(ran)
        if seen.change != self._changes or len(seen.states) == _MOST_STATES:
            seen.change, seen.repeats = self._changes, False
            seen.states.clear()
        if (ran & self._polls.asks).any():
            state = _state(worker)
            seen.states[state] += 1
            seen.repeats = seen.states[state] >= _AGAIN
        else:
            seen.repeats = False

    def _has_changed(self, ran: NDArray[np.bool_]) -> bool:
        """Whether the basic blocks that ran may have changed memory."""
        if not (ran & self._polls.changes).any():
            return False
        value, before = self._polls.value_set(ran), self._held
        self._held = None
        if value is None:
            return True
        regions = self._grid.regions.reshape(-1, 2)
        if regions[:, 1].sum() > _MOST_BYTES:
            return True
        digest = hashlib.blake2b()
        for address, nbytes in regions.tolist():
            digest.update(self._memory.view(address, nbytes).data)
        for unit in self._units:
            for each in _begun(unit):
                digest.update(each.shared.data)
        self._held = digest.digest(), value
        return self._held != before

    def _is_stuck(self, worker: Worker) -> bool:
        """Whether the warps of a block repeat what they have done, or wait for these."""
        status = worker.warp_fields("status")
        if (status == DONE).all():
            return False
        if (status == RUNNING).any():
            seen = self._seen.get(id(worker))
            if seen is None or seen.block != worker.number:
                return False
            if not seen.repeats or seen.change != self._changes:
                return False
        masks, exited = worker.warp_fields("mask"), worker.warp_fields("exited")
        for warp in np.flatnonzero((status == RUNNING) | (status == AT_BARRIER)).tolist():
            others = ~int(masks[warp]) & ~int(exited[warp])
            for block, lanes in worker.waiting_lanes(warp):
                if lanes & others and not self._polls.waits_at(block):
                    return False
        return True


def _begun(unit: Worker | Cluster) -> list[Worker]:
    """The workers of a unit whose blocks have begun, and not ended."""
    return [each for each in unit.running.peers if each.field("block") >= 0]


def _has_copies(workers: Sequence[Worker]) -> bool:
    """Whether copies of some blocks have not taken effect."""
    return any(each.field("in_flight") for each in workers)


def _state(worker: Worker) -> bytes:
    """A digest of what a block's warps do next, given what is in memory."""
    digest = hashlib.blake2b(worker.warp_memory.data)
    digest.update(worker.barriers.data)
    digest.update(worker.local.data)
    # Only once its turn is over does the next warp run.
    for name in ("turn", "spent_in_turn"):
        digest.update(worker.field(name).to_bytes(8, "little"))
    return digest.digest()
