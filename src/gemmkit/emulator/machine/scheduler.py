"""Runs a launch on several host threads, so that it can be watched, stopped and ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gemmkit.cores import usable_cores
from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.codegen.layout import FAULTED, FINISHED, OUT_OF_FUEL, STUCK, TRAP
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine import fault
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.operations import Operations
from gemmkit.emulator.machine.worker import SharedGrid, Worker
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.errors import DeviceError

if TYPE_CHECKING:
    from gemmkit.emulator.sanitizer.monitor import Sanitizer

Progress = Callable[[float], None]

# Fuel of one stay in native code: some tens of milliseconds, so that Ctrl-C works at once.
SHARE = 2_000_000
_POLL_SECONDS = 0.05


def run(
    kernel: LoadedKernel,
    flow: ControlFlow,
    request: LaunchRequest,
    memory: DeviceMemory,
    globals_at: int,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    max_steps: int | None = None,
    sanitizer: Sanitizer | None = None,
) -> Execution:
    """Run all blocks of a launch.

    Raises:
        DeviceError: the kernel failed, and there is no sanitizer to tell; the text says how and
            where.
    """
    started = time.perf_counter()
    grid = SharedGrid(request, memory.regions(), globals_at)
    launch = _Launch(grid, memory, max_steps, sanitizer)
    # Blocks that make an order among themselves: which of them comes last decides what each does.
    alone = kernel.orders_blocks
    count = 1 if alone else max(1, min(threads or usable_cores(), grid.blocks))
    operations = Operations(kernel, memory, sanitizer)
    workers = [Worker(kernel, flow, grid, operations.run) for _ in range(count)]
    try:
        if sanitizer is not None:
            sanitizer.stop = launch.stop
            for worker in workers:
                sanitizer.attach(worker)
        launch.run(workers, progress)
    except DeviceError as error:
        error.printed = operations.printer.lines()
        raise
    finally:
        for worker in workers:
            worker.release()
    tally = sum((worker.tally() for worker in workers), Tally.zeros(len(flow.forms)))
    findings = sanitizer.findings() if sanitizer is not None else ()
    lines = operations.printer.lines()
    regions = {number: at for worker in workers for number, at in worker.regions().items()}
    return Execution(tally, time.perf_counter() - started, lines, findings, regions)


class _Launch:
    """One run of a grid: the first trouble stops all workers."""

    def __init__(
        self,
        grid: SharedGrid,
        memory: DeviceMemory,
        max_steps: int | None,
        sanitizer: Sanitizer | None,
    ) -> None:
        self._grid = grid
        self._memory = memory
        self._sanitizer = sanitizer
        self._max_steps = max_steps
        self._stopped = threading.Event()
        self._finished = threading.Semaphore(0)
        self._error: BaseException | None = None

    def run(self, workers: list[Worker], progress: Progress | None) -> None:
        threads = [
            threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in workers
        ]
        for thread in threads:
            thread.start()
        try:
            left = len(threads)
            while left:
                if self._finished.acquire(timeout=_POLL_SECONDS):
                    left -= 1
                if progress is not None:
                    done = min(int(self._grid.next_block[0]), self._grid.blocks)
                    progress(max(0, done - left) / max(self._grid.blocks, 1))
        finally:
            # Also after Ctrl-C: memory that workers use must outlive them.
            self.stop()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the launch soon."""
        self._stopped.set()
        self._grid.stop()

    def _work(self, worker: Worker) -> None:
        try:
            self._run_blocks(worker)
        except BaseException as error:
            if self._error is None:
                self._error = error
            self.stop()
        finally:
            self._finished.release()

    def _run_blocks(self, worker: Worker) -> None:
        block, steps = -1, 0
        while not self._stopped.is_set():
            reason = worker.run(SHARE)
            if reason == FINISHED:
                return
            if reason == OUT_OF_FUEL:
                now = worker.field("block")
                steps = steps + SHARE if now == block else 0
                block = now
                if self._max_steps is not None and steps > self._max_steps:
                    if self._sanitizer is None:
                        raise fault.endless_error(worker, self._max_steps)
                    self._sanitizer.endless(worker, self._max_steps)
                    self.stop()
                continue
            if self._sanitizer is None or worker.failure is not None:
                raise self._trouble(worker, reason)
            self._note(self._sanitizer, worker, reason)

    def _note(self, sanitizer: Sanitizer, worker: Worker, reason: int) -> None:
        """Let the sanitizer tell of a trouble, and go on with what can go on."""
        if reason == FAULTED:
            sanitizer.fault(worker)
            worker.forgive()
            return
        (sanitizer.deadlock if reason == STUCK else sanitizer.trap)(worker)
        worker.leave_block()

    def _trouble(self, worker: Worker, reason: int) -> BaseException:
        if reason == STUCK:
            return fault.deadlock_error(worker)
        if reason == TRAP:
            return fault.trap_error(worker)
        if reason == FAULTED:
            return worker.failure or fault.access_error(worker, self._memory)
        return DeviceError(f"the emulator stopped for an unknown reason ({reason})")


def empty_execution(flow: ControlFlow) -> Execution:
    """What a launch without blocks shows."""
    return Execution(Tally.zeros(len(flow.forms)), 0.0)
