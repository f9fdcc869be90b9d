"""`Sanitizer`: observes the workers of one launch and collects findings."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.layout import LANES
from gemmkit.emulator.machine.refusals import Refusal
from gemmkit.emulator.machine.worker import Worker
from gemmkit.emulator.sanitizer import synccheck
from gemmkit.emulator.sanitizer.asynchronous import Order
from gemmkit.emulator.sanitizer.cross_block_races import cross_block_races, instruction_numbers
from gemmkit.emulator.sanitizer.deadlocks import deadlock
from gemmkit.emulator.sanitizer.launch_state import LaunchState
from gemmkit.emulator.sanitizer.launch_waits import never_waited
from gemmkit.emulator.sanitizer.left_counters import left_semaphores
from gemmkit.emulator.sanitizer.left_flags import left_flags
from gemmkit.emulator.sanitizer.memory_faults import outside, space_at
from gemmkit.emulator.sanitizer.read_only import read_only_writes
from gemmkit.emulator.sanitizer.watch import Watch
from gemmkit.findings import Finding


class Sanitizer(LaunchState):
    """The sanitizers of one launch: what they are told of its workers, and what they find."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._watches: list[Watch] = []

    def attach(self, worker: Worker) -> None:
        """Observe a worker."""
        self._watches.append(Watch(self, worker))

    def fault(self, worker: Worker) -> None:
        """Report the access that native code refused and skipped."""
        number = worker.site_number(worker.field("fault_site"))
        address = worker.field("fault_address")
        warp = worker.warp_number(worker.field("running"))
        thread = warp * LANES + worker.field("fault_lane")
        self.outside(worker, number, thread, address)

    def outside(self, worker: Worker, number: int, thread: int, address: int) -> None:
        """Report one thread's access that is not allowed."""
        space = space_at(self.names.actions[number], address)
        if self.names.actions[number].form.modifiers.get("S") == "" and space == "shared":
            space = "local"
        self.add(worker, outside(self.names, worker, number, thread, address, space))

    def printed(
        self, worker: Worker, number: int, thread: int, index: int, taken: Sequence[tuple[int, int]]
    ) -> None:
        """A thread prints values from its local memory: (first byte, size) each."""
        for watch in self._watches:
            watch.print_if_of(worker, number, thread, index, taken)

    def refused(self, worker: Worker, refusal: Refusal) -> None:
        """Report an asynchronous instruction that is not valid."""
        order = worker.observer
        if isinstance(order, Order) and order.follows_overwriting(refusal):
            return
        self.add(worker, synccheck.refused(self.names, worker, refusal))

    def deadlock(self, worker: Worker) -> None:
        """All warps of a block wait."""
        self.add(worker, deadlock(self.names, worker))

    def trap(self, worker: Worker) -> None:
        """The kernel stopped itself."""
        self.add(worker, synccheck.trap(self.names, worker))

    def endless(self, worker: Worker, limit: int | None) -> None:
        """A block ran for longer than the limit, or is seen to repeat what it does."""
        self.add(worker, synccheck.endless(self.names, worker, limit))

    def findings(self) -> tuple[Finding, ...]:
        """The findings, once all workers have ended."""
        for watch in self._watches:
            watch.finish()
        self._add_touches()
        self.warpgroups.ranked_descriptors()
        numbers = instruction_numbers(self.areas)
        for finding, block in cross_block_races(self.names, self.known, numbers):
            self.collection.add(finding, block)
        for finding, block in read_only_writes(self.names, self.known, numbers):
            self.collection.add(finding, block)
        if self.trace is None:
            observed = {at: by for each in self.order.workers for at, by in each.observed.items()}
            kept = self.variables.keys() - self.host_sets
            flags = left_flags(self.names, self.memory, kept, self.before, observed)
            for finding, block in flags:
                self.collection.add(finding, block)
            regions = {
                number: at for each in self._watches for number, at in each.regions().items()
            }
            for finding in left_semaphores(self.names, self.memory, regions):
                self.collection.add(finding, 0)
            if self.traits.awaits_launches and not any(each.awaited for each in self._watches):
                self.collection.add(never_waited(self.names), 0)
        return self.collection.findings()

    def _add_touches(self) -> None:
        """Report what touches registers of wgmma, if it was executed."""
        if self.traits.touches:
            executed = [watch.executed() for watch in self._watches]
            for touch in self.traits.touches:
                if any(each[touch.number] for each in executed):
                    self.warpgroups.touched(touch)
