"""Runs one kernel on one device and makes a `Record` of what is seen."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gemmkit.analysis.math_pipe import math_pipe
from gemmkit.analysis.occupancy import occupancy
from gemmkit.bench.baseline import Baseline
from gemmkit.bench.conditions import Conditions, watched
from gemmkit.bench.places import placed
from gemmkit.bench.timer import time_in_turn
from gemmkit.bench.workload import Workload
from gemmkit.devices.device import Device, Launch, TimedDevice
from gemmkit.errors import UnsupportedProblem
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import (
    BaselineRecord,
    DeviceRecord,
    Diagnosis,
    OccupancyRecord,
    ProblemRecord,
    Record,
    ResourceRecord,
    TimeRecord,
)
from gemmkit.verify import Verdict


def run_kernel(
    kernel: Kernel,
    problem: GemmProblem,
    device: Device,
    *,
    config: TileConfig | None = None,
    seed: int = 0,
    workload: Workload | None = None,
    baseline: Baseline | None = None,
    cache_dir: Path | None = None,
    time: bool = True,
    assemble: bool = True,
) -> Record:
    """Compile a kernel, launch it on poisoned output, check the result, and time it on a GPU.

    Args:
        kernel: the kernel to run.
        problem: the problem; a row-major one is converted to the layout that the kernel reads.
        device: the device to run it on.
        config: the configuration; by default the kernel's own.
        seed: seed for the inputs.
        workload: inputs, references and buffers to share; its problem, device and seed are used.
        baseline: a peer to time in turn with the kernel.
        cache_dir: root of the compiler's cache; by default the user's.
        time: whether to time it, if the device can be timed.
        assemble: as in `compile_kernel`; without, the record has no resources and no occupancy, and
            only the emulator can run it.

    Raises:
        UnsupportedProblem: the kernel refuses the problem or the configuration.
        CompileError: the kernel does not compile.
        DeviceError: there is not enough memory, or the launch failed.
    """
    config = config or kernel.default
    problem = kernel.lay_out(problem)
    plan = kernel.plan(problem, config, device.spec)
    binary = compile_plan(plan, device.spec.arch, assemble=assemble, cache_dir=cache_dir)
    workload = workload or Workload(problem, device, seed)
    return run_binary(
        kernel, config, plan, binary, workload, baseline=baseline if time else None, time=time
    )


def run_binary(
    kernel: Kernel,
    config: TileConfig,
    plan: LaunchPlan,
    binary: Binary,
    workload: Workload,
    *,
    baseline: Baseline | None = None,
    time: bool = True,
) -> Record:
    """`run_kernel` for a kernel that is compiled already.

    Raises:
        DeviceError: there is not enough memory, or the launch failed.
    """
    device = workload.device
    launch, verdict = workload.run(binary, plan)
    times: TimeRecord | None = None
    peer: BaselineRecord | None = None
    conditions = Conditions()
    if time and plan.blocks and isinstance(device, TimedDevice):
        times, peer = _time(device, plan, binary, workload, baseline, conditions)
    record = make_record(kernel, config, plan, binary, workload, launch, verdict, times, peer)
    return msgspec.structs.replace(record, conditions=conditions.record())


def verdict_fields(verdict: Verdict, diagnosis: Diagnosis | None) -> dict[str, Any]:
    """The fields of records, of runs and of checks, that say whether a result is correct.

    `diagnosis` is the verdict's, or the same with the places in the kernel's tiles.
    """
    return {
        "correct": verdict.correct,
        "max_error": finite(verdict.max_error),
        "error_bound": finite(verdict.error_bound),
        "error_ratio": finite(verdict.error_ratio),
        "ratio_error": finite(verdict.ratio_error),
        "ratio_bound": finite(verdict.ratio_bound),
        "arithmetic": verdict.arithmetic,
        "diagnosis": diagnosis,
        "errors": verdict.errors,
    }


def make_record(
    kernel: Kernel,
    config: TileConfig,
    plan: LaunchPlan,
    binary: Binary,
    workload: Workload,
    launch: Launch,
    verdict: Verdict,
    times: TimeRecord | None,
    peer: BaselineRecord | None,
) -> Record:
    """What was seen, as a record."""
    problem, device = workload.problem, workload.device
    tflops = problem.flops / times.median / 1e6 if times is not None else None
    peak = device.spec.peak(math_pipe(binary.ptx, problem))
    return Record(
        kernel=kernel.name,
        rung=kernel.rung,
        idea=kernel.idea,
        problem=problem_record(problem),
        config=config.as_dict(),
        device=DeviceRecord(kind=device.kind, gpu=device.spec.name),
        **verdict_fields(verdict, placed(verdict.diagnosis, kernel, config, problem)),
        check=verdict.detail or verdict.method,
        counters=dict(launch.counters),
        resources=_resources(plan, binary),
        occupancy=_occupancy(device, plan, binary),
        time_us=times,
        tflops=tflops,
        peak_fraction=tflops / peak if tflops is not None and peak else None,
        baseline=peer,
        emulation_seconds=launch.emulation_seconds,
        environment={**workload.environment, "compiler": binary.compiler},
        seed=workload.seed,
    )


def _time(
    device: TimedDevice,
    plan: LaunchPlan,
    binary: Binary,
    workload: Workload,
    baseline: Baseline | None,
    conditions: Conditions,
) -> tuple[TimeRecord, BaselineRecord | None]:
    rotations = [workload.rotation(device, binary, plan)]
    name = ""
    if baseline is not None and workload.problem.flops:
        # What the peer cannot compute has no peer.
        with suppress(UnsupportedProblem):
            name, peer = workload.peer(device, baseline)
            rotations.append(peer)
    ours, *theirs = time_in_turn(
        device, rotations, kept=workload.kept, during=watched(workload.probes, conditions)
    )
    if not theirs:
        return ours, None
    speedup = theirs[0].median / ours.median
    return ours, BaselineRecord(name=name, time_us=theirs[0], speedup=speedup)


def problem_record(problem: GemmProblem) -> ProblemRecord:
    """The problem as records hold it."""
    return ProblemRecord(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        alpha=problem.alpha,
        beta=problem.beta,
        epilogue=str(problem.epilogue),
        lda=problem.lda,
        ldb=problem.ldb,
        ldc=problem.ldc,
        batch=problem.batch,
        stride_a=problem.stride_a,
        stride_b=problem.stride_b,
        stride_c=problem.stride_c,
        layout=problem.layout,
        dtype=problem.dtype,
        out_dtype=problem.result_dtype,
        precision=problem.precision,
        scales=str(problem.scales),
        groups=problem.groups_text,
        prepared=problem.prepared,
    )


def finite(value: float) -> float | None:
    """JSON has no infinity: null stands for it."""
    return value if math.isfinite(value) else None


def _resources(plan: LaunchPlan, binary: Binary) -> ResourceRecord | None:
    used = binary.resources
    if used is None:
        return None
    return ResourceRecord(
        registers=used.registers,
        spill_bytes=used.spill_bytes,
        shared_bytes=used.shared_bytes + plan.shared_bytes,
        local_bytes=used.local_bytes,
    )


def _occupancy(device: Device, plan: LaunchPlan, binary: Binary) -> OccupancyRecord | None:
    used = binary.resources
    if used is None:
        return None
    found = occupancy(
        device.spec,
        registers=used.registers,
        threads=plan.threads_per_block,
        shared_bytes=used.shared_bytes + plan.shared_bytes,
        blocks=plan.blocks,
    )
    return OccupancyRecord(
        theoretical=found.theoretical,
        waves_per_sm=found.waves_per_sm,
        blocks_per_sm=found.blocks_per_sm,
        limiter=found.limiter,
    )
