"""Runs a launch on several host threads, with progress, interruption and a step limit.

The caller's thread takes part, and others join once the launch has lasted a while: a small launch
starts no threads, and if none can be started, as at the end of the process, the caller runs all
blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gemmkit.cores import usable_cores
from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine.grid import SharedGrid
from gemmkit.emulator.machine.limits import interrupting
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.returns import Returns
from gemmkit.emulator.machine.turns import Steps, Turns, most_in_turn
from gemmkit.emulator.machine.worker import Worker
from gemmkit.errors import DeviceError
from gemmkit.loading import load

if TYPE_CHECKING:
    from gemmkit.emulator.machine.cluster import Cluster
    from gemmkit.emulator.machine.operations import Operations
    from gemmkit.emulator.machine.stalls import Stalls
    from gemmkit.emulator.ptx.cfg import ControlFlow
    from gemmkit.emulator.sanitizer.monitor import Sanitizer
    from gemmkit.emulator.schedule import Schedule

Progress = Callable[[float], None]

# Fuel of one call of native code: some tens of milliseconds, so that Ctrl-C is handled promptly.
SHARE = 2_000_000
# The fuel of the first call, about half a millisecond: a launch that ends within it needs no
# threads.
FIRST_SHARE = 250_000
# The sanitizers handle each strong access in Python, and a warp that polls a flag performs them
# until its fuel is spent.
FOLLOWED_SHARE = 25_000
# In asynchronous kernels the sanitizers must examine the log of accesses before it is full: an
# instruction adds at most one to its 2¹⁴ entries.
LOGGED_SHARE = 12_000
# Whether a block polls for ever is looked at when native code returns.
SUSPECTED_SHARE = 100_000
_POLL_SECONDS = 0.05


def run(
    kernel: LoadedKernel,
    request: LaunchRequest,
    memory: DeviceMemory,
    globals_at: int,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    max_steps: int | None = None,
    warp_seed: int = 0,
    sanitizer: Sanitizer | None = None,
    schedule: Schedule | None = None,
    only: range | None = None,
) -> Execution:
    """Run all blocks of a launch, or only some, and count; a non-zero seed shuffles the warps'
    turns. One block may follow a schedule; a sanitizer with a trace records the first that runs.

    Raises:
        DeviceError: the kernel failed, and there is no sanitizer to tell; the text says how and
            where.
    """
    from gemmkit.emulator.counters.tally import Tally

    started = time.perf_counter()
    launch = _Launch(
        kernel,
        request,
        memory,
        globals_at,
        max_steps,
        sanitizer,
        warp_seed=warp_seed,
        only=only,
        schedule=schedule,
    )
    launch.run(threads, progress)
    workers, flow = launch.workers, kernel.flow
    tally = sum((worker.tally() for worker in workers), Tally.zeros(len(flow.forms)))
    findings = sanitizer.findings() if sanitizer is not None else ()
    regions = {number: at for worker in workers for number, at in worker.regions().items()}
    seconds = time.perf_counter() - started
    return Execution(tally, seconds, launch.printed(), findings, regions)


def execute(
    kernel: LoadedKernel,
    request: LaunchRequest,
    memory: DeviceMemory,
    globals_at: int,
    spare: list[Worker],
    *,
    threads: int | None = None,
    max_steps: int | None = None,
    only: range | None = None,
) -> None:
    """Run all blocks of a launch, or only some, for their results only.

    `spare` are workers of earlier launches of this kernel with blocks of the same shape, including
    their caches. They are used, and the workers of this launch are returned there.

    Raises:
        DeviceError: as `run`.
    """
    launch = _Launch(kernel, request, memory, globals_at, max_steps, None, spare, only=only)
    launch.run(threads, None)
    # After a failure workers are in the middle of a block, and are not used again.
    spare += launch.workers[: max(0, usable_cores() - len(spare))]


class _Launch:
    """One run of a grid: the first fault stops all workers."""

    def __init__(
        self,
        kernel: LoadedKernel,
        request: LaunchRequest,
        memory: DeviceMemory,
        globals_at: int,
        max_steps: int | None,
        sanitizer: Sanitizer | None,
        spare: list[Worker] | None = None,
        warp_seed: int = 0,
        only: range | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.workers: list[Worker] = []
        self._schedule = schedule
        records = sanitizer is not None and sanitizer.trace is not None
        self._follows = schedule is not None or records
        self._kernel = kernel
        self._request = request
        self._memory = memory
        self._grid = SharedGrid(
            request,
            memory.regions(),
            globals_at,
            warp_seed,
            only,
            through_python=self._follows,
        )
        self._sanitizer = sanitizer
        self._max_steps = max_steps
        self._share_fuel = SHARE
        if sanitizer is not None and (kernel.follows_blocks or sanitizer.traits.flags_order_warps):
            self._share_fuel = FOLLOWED_SHARE
        if sanitizer is not None and sanitizer.traits.asynchronous:
            self._share_fuel = LOGGED_SHARE
        if max_steps is not None:
            # A block is stopped at the end of a share.
            self._share_fuel = min(self._share_fuel, max(max_steps, 1))
        self._spare = [] if spare is None else spare
        self._operations: Operations | None = None
        self._making = threading.Lock()
        self._stopped = threading.Event()
        self._finished = threading.Semaphore(0)
        # What runs blocks now.
        self._units: list[Worker | Cluster] = []
        # What other launches write meanwhile, or blocks that are left out, is unknown.
        alone = spare is None and only is None and not self._follows
        self._returns = Returns(
            memory,
            sanitizer,
            max_steps,
            self._ready_operations,
            self.stop,
            self._stalls if alone and kernel.compiled.polls else None,
        )
        self._error: BaseException | None = None

    def run(self, threads: int | None, progress: Progress | None) -> None:
        """Run all blocks and wait.

        Raises:
            DeviceError: as the function `run`.
        """
        if self._sanitizer is not None:
            self._sanitizer.stop = self.stop
        # If blocks synchronize with each other, which of them comes last determines what each does.
        alone = (
            self._kernel.orders_blocks
            or self._follows
            or self._kernel.compiled.reduces_in_bulk
            or (self._sanitizer is not None and self._kernel.follows_blocks)
            # Both record by whom, Python and native code.
            or (self._sanitizer is not None and self._kernel.mixes_stores)
        )
        most = 1 if alone else max(1, min(threads or usable_cores(), self._grid.blocks))
        try:
            self._run(most, progress)
            if self._sanitizer is None or not self._sanitizer.runs_again:
                for worker in self.workers:
                    if worker.replay is not None and not worker.left:
                        worker.replay.finish()
        except DeviceError as error:
            error.printed = self.printed()
            raise
        finally:
            for worker in self.workers:
                worker.release()

    def _run(self, most: int, progress: Progress | None) -> None:
        helpers: list[threading.Thread] = []

        def report(at_work: int) -> None:
            if progress is not None:
                taken = min(int(self._grid.next_block[0]), self._grid.blocks)
                progress(max(0, taken - at_work) / max(self._grid.blocks, 1))

        try:
            at_once = 1 if self._follows else most_in_turn(self._kernel, self._request)
            turns = Turns(self._unit, at_once, lambda: self._grid.left > 0)
            fuel, first = min(FIRST_SHARE, self._share_fuel), True
            with interrupting(turns):
                while not self._stopped.is_set():
                    if self._share(turns.current, fuel, turns.spent):
                        turns.advance(fuel)
                    elif not turns.ended():
                        break
                    if first:
                        first, helpers = False, self._helpers(most - 1)
                    fuel = self._fuel()
                    report(1 + len(helpers))
            left = len(helpers)
            while left:
                if self._finished.acquire(timeout=_POLL_SECONDS):
                    left -= 1
                report(left)
            report(0)
        finally:
            # Even after Ctrl-C: the workers' memory must outlive them.
            self.stop()
            for thread in helpers:
                thread.join()
        if self._error is not None:
            raise self._error

    def _helpers(self, count: int) -> list[threading.Thread]:
        """Start as many more threads as there are blocks for, and as can be started."""
        untaken = self._grid.left
        found: list[threading.Thread] = []
        # A process that is ending starts no threads, and a system may have too many.
        with suppress(RuntimeError):
            for _ in range(min(count, untaken)):
                thread = threading.Thread(target=self._work, args=(self._unit(),), daemon=True)
                thread.start()
                found.append(thread)
        return found

    def _fuel(self) -> int:
        """The fuel of the next call of native code."""
        return min(self._share_fuel, SUSPECTED_SHARE if self._returns.suspects else SHARE)

    def _share(self, unit: Worker | Cluster, fuel: int, spent_after: Callable[[int], int]) -> bool:
        """Run a unit for a while; returns whether it has more to do."""
        more = self._returns.share(unit, fuel, spent_after)
        if not more:
            self._units.remove(unit)
        return more

    def _stalls(self) -> Stalls:
        load("gemmkit.emulator.machine.stalls")
        from gemmkit.emulator.machine.stalls import Stalls

        most = most_in_turn(self._kernel, self._request)
        return Stalls(self._kernel, self._memory, self._grid, self._units, most)

    def _unit(self) -> Worker | Cluster:
        """What runs blocks one after another or, where clusters have several, these together."""
        unit = self._new_unit()
        self._units.append(unit)
        return unit

    def _new_unit(self) -> Worker | Cluster:
        workers = [self._worker() for _ in range(self._request.cluster_blocks)]
        if self._follows:
            self._replay(workers)
        if len(workers) == 1:
            return workers[0]
        load("gemmkit.emulator.machine.cluster")
        from gemmkit.emulator.machine.cluster import Cluster

        return Cluster(workers, self._grid)

    def _worker(self) -> Worker:
        try:
            worker = self._spare.pop()
        except IndexError:
            worker = Worker(self._kernel, self._request)
        worker.begin(self._grid, self._operate)
        self.workers.append(worker)
        if self._sanitizer is not None:
            self._sanitizer.attach(worker)
        return worker

    def _replay(self, workers: list[Worker]) -> None:
        """Let workers follow the schedule, or record the first cluster that they run."""
        load("gemmkit.emulator.machine.replay")
        from gemmkit.emulator.machine.replay import Replay
        from gemmkit.emulator.schedule import scheduled_blocks

        blocks = self._request.cluster_members(int(self._grid.next_block[0]))
        if self._schedule is not None:
            blocks = scheduled_blocks(self._schedule, self._request)
        recorders = self._sanitizer.recorders if self._sanitizer is not None else ()
        Replay(workers, self._schedule, blocks, recorders)

    def _operate(self, worker: Worker, warp: int, number: int, lanes: int) -> int:
        """Execute an instruction that has no native code; 1 if it failed."""
        try:
            return self._ready_operations().run(worker, warp, number, lanes)
        except BaseException as error:
            worker.failure = error
            return 1

    def _ready_operations(self) -> Operations:
        with self._making:
            if self._operations is None:
                load("gemmkit.emulator.machine.operations")
                from gemmkit.emulator.machine.operations import Operations

                self._operations = Operations(self._kernel, self._memory, self._sanitizer)
            return self._operations

    def printed(self) -> tuple[str, ...]:
        """The lines that the kernel has printed so far."""
        return () if self._operations is None else self._operations.printer.lines()

    def stop(self) -> None:
        """End the launch soon."""
        self._stopped.set()
        self._grid.stop()

    def _work(self, unit: Worker | Cluster) -> None:
        steps = Steps()

        def spent(fuel: int) -> int:
            return steps.spent(unit.running.peers[0].number, fuel)

        try:
            while not self._stopped.is_set() and self._share(unit, self._fuel(), spent):
                warps, unit.running.next_turns = unit.running.next_turns, []
                unit.take_turns(warps)
        except BaseException as error:
            if self._error is None:
                self._error = error
            self.stop()
        finally:
            self._finished.release()


def empty_execution(flow: ControlFlow) -> Execution:
    """The result of a launch without blocks."""
    from gemmkit.emulator.counters.tally import Tally

    return Execution(Tally.zeros(len(flow.forms)), 0.0)
