"""`multiply`: a product of host matrices, streamed over one device or several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gemmkit.cores import usable_cores
from gemmkit.devices.streamed import StreamedDevice
from gemmkit.errors import UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.ops.operands import View
from gemmkit.ops.placement import Terms
from gemmkit.ops.streamed.job import Job
from gemmkit.ops.streamed.launches import on_device, scratch_of, step_shapes, steps_of
from gemmkit.ops.streamed.operands import Streamed
from gemmkit.ops.streamed.planner import StreamPlan, plan_stream
from gemmkit.ops.streamed.sizes import StreamProblem, Tiling
from gemmkit.ops.streamed.timeline import Rates
from gemmkit.ops.streamed.traversal import Deal
from gemmkit.ops.streamed.worker import Worker
from gemmkit.units import bytes_text

# Threads that copy between host matrices and staging memory, at most; each moves some GB/s.
MOST_THREADS = 8
# Plans whose launches need more memory than they leave are made anew so many times.
_ATTEMPTS = 16

Report = Callable[[float], None]


def planned(
    problem: StreamProblem,
    terms: Terms,
    scales: Mapping[str, View],
    spec: GpuSpec,
    emulated: bool,
    memory: int,
    rates: Rates,
    devices: int,
) -> StreamPlan:
    """The plan for a product, with the scratch memory that its launches need on a board.

    `terms` have the alignment of the device, `scales` are as `steps_of` takes them.

    Raises:
        UsageError: there is too little memory.
        UnsupportedProblem: no kernel takes a step.
    """
    budget = memory
    for _ in range(_ATTEMPTS):
        plan = plan_stream(problem, budget, rates, devices)
        workspace = semaphores = 0
        for shape in step_shapes(problem, plan.tiling):
            for step in steps_of(shape, problem, plan.tiling, terms, scales):
                own = scratch_of(step.problem, spec, emulated)
                workspace, semaphores = max(workspace, own[0]), max(semaphores, own[1])
        tiling = replace(plan.tiling, workspace_bytes=workspace, semaphores=semaphores)
        plan = replace(plan, tiling=tiling)
        if plan.device_bytes <= memory:
            return plan
        # Smaller panels may need less scratch memory, too.
        scratch = plan.device_bytes - replace(plan, tiling=_bare(tiling)).device_bytes
        budget = max(min(memory - scratch, budget - 1), budget // 2)
    raise UsageError(
        f"device_memory = {bytes_text(memory)} is too little for this product, whose launches need "
        f"{bytes_text(workspace)} besides its tiles"
    )


def _bare(tiling: Tiling) -> Tiling:
    return replace(tiling, workspace_bytes=0, semaphores=0)


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
        scales = {role: View.tight(each.shape) for role, each in streamed.scales.items()}
        plan = planned(
            streamed.problem, terms, scales, first.spec, first.emulated, memory, rates, len(devices)
        )
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
