"""`Returns`: what follows when native code returns, as a block has ended, waits, or has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gemmkit.emulator.codegen.layout import (
    FAULTED,
    FINISHED,
    IN_FLIGHT,
    OUT_OF_FUEL,
    STUCK,
    TRAP,
)
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.verdict import Verdict
from gemmkit.emulator.machine.worker import Worker
from gemmkit.errors import DeviceError
from gemmkit.loading import load

if TYPE_CHECKING:
    from gemmkit.emulator.machine.cluster import Cluster
    from gemmkit.emulator.machine.operations import Operations
    from gemmkit.emulator.machine.stalls import Stalls
    from gemmkit.emulator.sanitizer.monitor import Sanitizer


# Blocks that take so many steps, while none begins or ends, may poll for ever.
SUSPICIOUS = 1_000_000


class Returns:
    """Those of one launch's workers and clusters.

    Args:
        memory: all memory that the kernel may access.
        sanitizer: what reports faults; without it they end the launch.
        max_steps: after so many warp instructions a block counts as endless.
        operations: makes what executes instructions without native code.
        stop: ends the launch.
        stalls: makes what finds blocks that poll for ever, if the kernel polls.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        sanitizer: Sanitizer | None,
        max_steps: int | None,
        operations: Callable[[], Operations],
        stop: Callable[[], None],
        stalls: Callable[[], Stalls] | None = None,
    ) -> None:
        self._memory, self._sanitizer, self._max_steps = memory, sanitizer, max_steps
        self._operations, self._stop = operations, stop
        self._make_stalls = stalls
        self._stalls: Stalls | None = None
        # Units, with the numbers of their blocks, that are known to poll for ever.
        self._doomed: set[tuple[int, int]] = set()
        # Whether blocks have taken so many steps that they may poll for ever.
        self.suspects = False

    def share(self, unit: Worker | Cluster, fuel: int, spent_after: Callable[[int], int]) -> bool:
        """Run a worker or cluster for a while; returns whether it has more to do."""
        if self._doomed and self._sanitizer is not None and _place(unit) in self._doomed:
            self._doomed.discard(_place(unit))
            # By now it may have been found to poll for ever itself, and been left.
            if any(each.field("block") >= 0 for each in unit.running.peers):
                self._note(self._sanitizer, unit.running, STUCK)
                return True
        try:
            reason = unit.run(fuel)
        except Refusal as refusal:
            self._operations().refuse(unit.running, refusal)
            reason = FAULTED
        worker = unit.running
        if worker.observer is not None:
            worker.observer.look()
        if reason != OUT_OF_FUEL and self._stalls is not None:
            self._stalls.changed()
        if reason == FINISHED:
            return False
        if reason == OUT_OF_FUEL:
            spent = spent_after(fuel - min(worker.unspent, fuel))
            worker.unspent = 0
            if self._max_steps is not None and spent > self._max_steps:
                self._end(worker, self._max_steps)
                return True
            self.suspects = suspects = spent > SUSPICIOUS and self._make_stalls is not None
            verdict = self._verdict(unit) if suspects else Verdict.GOES_ON
            if verdict is not Verdict.GOES_ON:
                self._poll_for_ever(unit, verdict)
            elif not suspects and self._stalls is not None:
                self._stalls.changed()
            return True
        if reason in (STUCK, IN_FLIGHT):
            if worker.cluster is None and self._go_on(worker, reason):
                return True
            reason = STUCK if worker.failure is None and not worker.abandoned else FAULTED
        if self._sanitizer is None or worker.failure is not None:
            raise self._trouble(worker, reason)
        self._note(self._sanitizer, worker, reason)
        return True

    def _go_on(self, worker: Worker, reason: int) -> bool:
        """All warps wait or have ended: a schedule goes on, copies in flight take effect, waits
        expire."""
        phases = worker.phases
        try:
            if worker.replay is not None and worker.replay.advance():
                return True
            if phases is None:
                return False
            if reason == IN_FLIGHT:
                phases.drain()
                return True
            return phases.expire()
        except Refusal as refusal:
            self._operations().refuse(worker, refusal)
            return False

    def _verdict(self, unit: Worker | Cluster) -> Verdict:
        """Whether a unit, and all others, poll for ever."""
        if self._stalls is None and self._make_stalls is not None:
            self._stalls = self._make_stalls()
        return Verdict.GOES_ON if self._stalls is None else self._stalls.verdict(unit)

    def _poll_for_ever(self, unit: Worker | Cluster, verdict: Verdict) -> None:
        """Report blocks that poll for what nothing that can run changes."""
        worker = unit.running
        if self._sanitizer is not None:
            self._sanitizer.stalled = True
        if verdict is Verdict.KEPT:
            self._end(worker, None)
        elif self._sanitizer is None:
            raise self._trouble(worker, STUCK)
        else:
            # All others that have begun poll for ever too: each is told when its turn comes.
            assert self._stalls is not None
            self._doomed = {_place(each) for each in self._stalls.units if each is not unit}
            self._note(self._sanitizer, worker, STUCK)

    def _end(self, worker: Worker, max_steps: int | None) -> None:
        """Stop because of a block that does not end."""
        load("gemmkit.emulator.machine.errors")
        from gemmkit.emulator.machine import errors

        if self._sanitizer is None:
            raise errors.endless_error(worker, max_steps, self._memory)
        self._sanitizer.endless(worker, max_steps)
        self._stop()

    def _note(self, sanitizer: Sanitizer, worker: Worker, reason: int) -> None:
        """Let the sanitizer report a fault, and continue what can continue."""
        if reason == FAULTED:
            if worker.abandoned:
                worker.leave_block()
            else:
                sanitizer.fault(worker)
            worker.forgive()
            return
        (sanitizer.deadlock if reason == STUCK else sanitizer.trap)(worker)
        worker.leave_block()

    def _trouble(self, worker: Worker, reason: int) -> BaseException:
        load("gemmkit.emulator.machine.errors")
        from gemmkit.emulator.machine import errors

        if reason == STUCK:
            return errors.deadlock_error(worker, self._memory)
        if reason == TRAP:
            return errors.trap_error(worker)
        if reason == FAULTED:
            return worker.failure or errors.access_error(worker, self._memory)
        return DeviceError(f"the emulator stopped for an unknown reason ({reason})")


def _place(unit: Worker | Cluster) -> tuple[int, int]:
    """A unit and its first block."""
    return id(unit), unit.running.peers[0].number
