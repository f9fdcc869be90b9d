"""`multiply`: a product of host matrices, streamed over one device or several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gemmkit.cores import usable_cores
from gemmkit.devices.streamed import StreamedDevice
from gemmkit.gpu import GpuSpec
from gemmkit.ops.operands import View
from gemmkit.ops.placement import Terms
from gemmkit.ops.streamed.job import Job
from gemmkit.ops.streamed.launches import on_device, scratch_of, step_shapes, steps_of
from gemmkit.ops.streamed.operands import Streamed
from gemmkit.ops.streamed.planner import StreamPlan, plan_stream
from gemmkit.ops.streamed.timeline import Rates
from gemmkit.ops.streamed.traversal import Deal
from gemmkit.ops.streamed.worker import Worker

# Threads that copy between host matrices and staging memory, at most; each moves some GB/s.
MOST_THREADS = 8
# Plans whose launches need more memory than was set aside for them are made anew so many times.
_ATTEMPTS = 4

Report = Callable[[float], None]


def planned(
    streamed: Streamed, terms: Terms, spec: GpuSpec, emulated: bool, memory: int, rates: Rates,
    devices: int,
) -> StreamPlan:  # fmt: skip
    """The plan for a product, with the scratch memory that its launches need on a board.

    `terms` have the alignment of the device.

    Raises:
        UsageError: there is too little memory.
        UnsupportedProblem: no kernel takes a step.
    """
    problem = streamed.problem
    scales = {role: View.tight(each.shape) for role, each in streamed.scales.items()}
    needs = 0, 0
    for _ in range(_ATTEMPTS):
        plan = plan_stream(problem, memory, rates, devices, *needs)
        found = needs
        for shape in step_shapes(problem, plan.tiling):
            for step in steps_of(shape, problem, plan.tiling, terms, scales):
                own = scratch_of(step.problem, spec, emulated)
                found = max(found[0], own[0]), max(found[1], own[1])
        if found == needs:
            return plan
        needs = found
    # Tilings that need less and more scratch memory take turns: the largest need serves both.
    return plan


def multiply(
    streamed: Streamed,
    devices: Sequence[StreamedDevice],
    memory: int,
    rates: Rates,
    report: Report | None = None,
) -> StreamPlan:
    """Compute a product in so many bytes of memory of each device, and how it was done.

    Where it is interrupted, or fails, some tiles of the result have been written.

    Args:
        streamed: the matrices, which are closed.
        devices: which share the tiles; they are closed.
        memory: of each.
        rates: those by which tiles are chosen.
        report: called in this thread with the fraction of tiles that are done.

    Raises:
        UsageError: there is too little memory.
        GemmkitError: as compiling and launching raise, and `FileError`.
    """
    threads = ThreadPoolExecutor(min(usable_cores(), MOST_THREADS), "gemmkit staging")
    begun: list[threading.Thread] = []
    try:
        first = devices[0]
        terms = on_device(streamed.terms, first)
        plan = planned(streamed, terms, first.spec, first.emulated, memory, rates, len(devices))
        job = Job(streamed, plan, Deal(plan.problem, plan.tiling, len(devices)), threads)
        try:
            for number, device in enumerate(devices):
                worker = Worker(job, device, number)
                begun.append(threading.Thread(target=worker.run, name=f"gemmkit device {number}"))
                begun[-1].start()
            _follow(job, len(begun), report)
        except BaseException as error:
            job.fail(error)
        _join(begun, job)
    finally:
        for device in devices[len(begun) :]:
            device.close()
        threads.shutdown()
        streamed.close()
    if job.error is not None:
        raise job.error
    return plan


def _follow(job: Job, workers: int, report: Report | None) -> None:
    """Wait for all workers, and report what is done."""
    done = 0
    while workers:
        if not job.events.get():
            workers -= 1
            continue
        done += 1
        if report is not None and not job.stopped.is_set():
            report(done / job.deal.count)


def _join(threads: Sequence[threading.Thread], job: Job) -> None:
    """Wait for threads, which the device may still be working for; further interrupts too."""
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                job.fail(error)
