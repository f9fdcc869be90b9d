"""`Stalls`: finds blocks that poll memory for what nothing that still runs can change.

A warp whose registers are as they were before, and that has changed nothing meanwhile, does the
same again unless the memory that it reads changes. So does one of which only those registers are as
they were before on which depends what the code that it has executed since does next. If that holds
for all warps of all blocks that have begun, but for those that wait for these, and no block is left
to begin that might change what they poll, the launch never ends. Counters and clocks that end a
loop speak against it. Lanes that wait for others of their warp, and blocks for which there is no
room, might go on elsewhere, but not here.
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
from gemmkit.emulator.codegen.layout import AT_BARRIER, DONE, RUNNING, WARP_REGISTERS
from gemmkit.emulator.codegen.polls import Polls
from gemmkit.emulator.machine.grid import SharedGrid
from gemmkit.emulator.machine.kept_registers import KeptRegisters
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.verdict import Verdict
from gemmkit.emulator.machine.worker import Worker

if TYPE_CHECKING:
    from gemmkit.emulator.machine.cluster import Cluster

# A state that comes back so often does forever: each warp of the block has had its turn meanwhile,
# also in an order that is shuffled.
_AGAIN = 3
# States of a block are compared within a period of so many looks, which doubles up to a maximum: a
# longer one has states that come back late, a new one has only the code that still runs. In the
# first one all registers are compared.
_FIRST_PERIOD, _LAST_PERIOD = 16, 256
# So many bytes of memory are compared.
_MOST_BYTES = 64 << 20


@dataclass(slots=True)
class _Seen:
    """A block as it was last seen: how often each basic block was executed, and how many copies
    were in flight; whether it repeats what it does, as memory has not changed since the change of
    this number; and how often each state was met in this period, and which basic blocks ran."""

    block: int
    executed: NDArray[np.int64]
    in_flight: int
    change: int = 0
    repeats: bool = False
    states: Counter[bytes] = field(default_factory=Counter)
    ran: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    looks: int = 0
    period: int = _FIRST_PERIOD

    def begin(self, ran: NDArray[np.bool_], *, anew: bool) -> None:
        """A period begins, by a look in which these basic blocks ran."""
        self.period = _FIRST_PERIOD if anew else min(2 * self.period, _LAST_PERIOD)
        self.repeats = self.repeats and not anew
        self.ran, self.looks = ran, 0
        self.states.clear()


class Stalls:
    """Those of one launch, of which `units` run now, and at most so many at a time."""

    def __init__(
        self,
        kernel: LoadedKernel,
        memory: DeviceMemory,
        grid: SharedGrid,
        units: Sequence[Worker | Cluster],
        most: int,
    ) -> None:
        self._kernel, self._memory, self._grid, self._units = kernel, memory, grid, units
        self._most = most
        self._lock = threading.Lock()
        # How often memory may have changed, or a block has begun.
        self._changes = 0
        self._seen: dict[int, _Seen] = {}
        # By unit, the number of the change since which its waits have expired in vain.
        self._in_vain: dict[int, int] = {}
        # A digest of memory, and the only value that atomics have set since.
        self._held: tuple[bytes, int] | None = None
        self._spans: dict[bytes, list[tuple[int, int]]] = {}

    @property
    def units(self) -> Sequence[Worker | Cluster]:
        """Those that run now and whose blocks have begun."""
        return [each for each in list(self._units) if _begun(each)]

    @cached_property
    def _polls(self) -> Polls:
        return Polls(self._kernel.flow, self._kernel.actions)

    @cached_property
    def _kept(self) -> KeptRegisters:
        return KeptRegisters(self._kernel)

    def verdict(self, unit: Worker | Cluster) -> Verdict:
        """Whether a unit, which has just run for a while, can go on, or any other can."""
        with self._lock:
            own = _begun(unit)
            for each in own:
                self._look(each)
            if not own or not all(map(self._is_stuck, own)):
                return Verdict.GOES_ON
            tried = self._in_vain.get(id(unit)) == self._changes and not _has_copies(own)
            if not tried and self._expire(unit, own):
                return Verdict.GOES_ON
            begun = [each for unit in list(self._units) for each in _begun(unit)]
            tried = all(self._in_vain.get(id(each)) == self._changes for each in list(self._units))
            if not tried or not all(map(self._is_stuck, begun)) or _has_copies(begun):
                return Verdict.GOES_ON
            awaits = self._grid.left > 0 and any(map(self._asks_others, begun))
            if awaits and len(self._units) < self._most:
                return Verdict.GOES_ON
            keeps = awaits or any(map(self._keeps_lanes, begun))
            return Verdict.KEPT if keeps else Verdict.STALLED

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
            seen = self._seen[id(each)]
            seen.begin(np.zeros_like(seen.ran), anew=True)
        return True

    def _look(self, worker: Worker) -> None:
        """Compare a block with how it was before."""
        executed, seen = worker.executed(), self._seen.get(id(worker))
        in_flight = worker.field("in_flight")
        if seen is None or seen.block != worker.number:
            self._changes += 1
            ran = np.zeros(len(executed), np.bool_)
            self._seen[id(worker)] = _Seen(worker.number, executed, in_flight, ran=ran)
            return
        ran = executed != seen.executed
        landed = in_flight != seen.in_flight
        if not ran.any() and not landed:
            return
        seen.executed, seen.in_flight = executed, in_flight
        before = seen.ran if seen.change == self._changes else np.zeros_like(ran)
        timed = self._polls.heeds_time(before | ran)
        self._changes += landed or timed or self._has_changed(ran)
        if seen.change != self._changes or seen.looks == seen.period:
            seen.begin(ran, anew=seen.change != self._changes)
            seen.change = self._changes
        seen.looks += 1
        if (ran & ~seen.ran).any():
            seen.ran = seen.ran | ran
            seen.states.clear()
        if (ran & self._polls.asks).any():
            state = self._state(worker, seen)
            seen.states[state] += 1
            seen.repeats = seen.repeats or seen.states[state] >= _AGAIN
        else:
            seen.repeats = False

    def _state(self, worker: Worker, seen: _Seen) -> bytes:
        """A digest of what a block's warps do next, given what is in memory."""
        digest, memory = hashlib.blake2b(), worker.warp_memory.reshape(worker.warps, -1)
        if seen.period == _FIRST_PERIOD:
            digest.update(memory.data)
        else:
            digest.update(np.ascontiguousarray(memory[:, :WARP_REGISTERS]).data)
            for first, nbytes in self._decisive(seen.ran.tobytes()):
                digest.update(np.ascontiguousarray(memory[:, first : first + nbytes]).data)
        digest.update(worker.barriers.data)
        digest.update(worker.local.data)
        # Only once its turn is over does the next warp run.
        for name in ("turn", "spent_in_turn"):
            digest.update(worker.field(name).to_bytes(8, "little"))
        return digest.digest()

    def _decisive(self, ran: bytes) -> list[tuple[int, int]]:
        """Where warps keep what decides what the basic blocks that ran do next."""
        if ran not in self._spans:
            decisive = self._polls.decides(np.frombuffer(ran, np.bool_)) & self._kept.crossing
            self._spans[ran] = sorted(map(self._kept.span, decisive))
        return self._spans[ran]

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

    def _asks_others(self, worker: Worker) -> bool:
        """Whether a block polls what those that have not begun may change."""
        running = (worker.warp_fields("status") == RUNNING).any()
        return bool(running and (self._seen[id(worker)].ran & self._polls.asks_others).any())

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
        return True

    def _keeps_lanes(self, worker: Worker) -> bool:
        """Whether lanes wait for others of their warp, and might change something."""
        status = worker.warp_fields("status")
        masks, exited = worker.warp_fields("mask"), worker.warp_fields("exited")
        for warp in np.flatnonzero((status == RUNNING) | (status == AT_BARRIER)).tolist():
            others = ~int(masks[warp]) & ~int(exited[warp])
            for block, lanes in worker.waiting_lanes(warp):
                if lanes & others and not self._polls.waits_at(block):
                    return True
        return False


def _begun(unit: Worker | Cluster) -> list[Worker]:
    """The workers of a unit whose blocks have begun, and not ended."""
    return [each for each in unit.running.peers if each.field("block") >= 0]


def _has_copies(workers: Sequence[Worker]) -> bool:
    """Whether copies of some blocks have not taken effect."""
    return any(each.field("in_flight") for each in workers)
