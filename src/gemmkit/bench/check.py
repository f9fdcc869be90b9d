"""`check`: a kernel over edge cases on the emulator, with its sanitizers switched on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import msgspec

from gemmkit.bench.array_names import refuse_unknown_arrays
from gemmkit.bench.coverage import too_little
from gemmkit.bench.default_cases import Case, default_cases
from gemmkit.bench.estimate import emulation_seconds
from gemmkit.bench.ladder import compile_plans
from gemmkit.bench.limits import Limit, limits_problem, limits_record
from gemmkit.bench.places import placed
from gemmkit.bench.progress import Progress
from gemmkit.bench.run import problem_record, verdict_fields
from gemmkit.bench.unset_values import UnsetValues
from gemmkit.bench.workload import Workload
from gemmkit.check_record import CheckRecord, CheckVerdict
from gemmkit.devices.choose import open_device
from gemmkit.devices.device import Device
from gemmkit.epilogue import Epilogue
from gemmkit.errors import DeviceError, UnsupportedProblem, UsageError, unknown_name
from gemmkit.findings import Check, Finding
from gemmkit.frontends.launch_rule import refused_launch
from gemmkit.frontends.tiles import tiles_of
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel, merged_refusals
from gemmkit.kernels.fitting import refuse_unknown_sizes
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.kernels.sizes import multiples_text
from gemmkit.problem import GemmProblem, Shape
from gemmkit.record import DeviceRecord

CHECKS: tuple[Check, ...] = get_args(Check)

# A block of the largest rung needs some ten million at K = 4096; an endless one takes seconds.
MAX_STEPS = 100_000_000


def check(
    kernel: str | Kernel,
    shapes: Sequence[Shape] | None = None,
    *,
    config: Mapping[str, int] | None = None,
    gpu: GpuSpec | str | None = None,
    epilogue: str | Epilogue | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    dtype: str | None = None,
    out_dtype: str | None = None,
    precision: str | None = None,
    scales: str | None = None,
    prepared: str | None = None,
    checks: Collection[Check] = CHECKS,
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    device: Device | None = None,
    progress: Progress | None = None,
    cache_dir: Path | None = None,
    compute_dtype: str | None = None,
    tolerance: float | None = None,
    limits: Sequence[str] = (),
    limits_at: Shape | None = None,
    allow_forgiven: bool = False,
    schedule: str | None = None,
    not_written_before: Collection[str] = (),
) -> list[CheckRecord]:
    """Check a kernel's results on several problems, with the sanitizers on.

    Nothing that a kernel does stops the others: an out-of-bounds access, a race or a
    deadlock is a finding. If the board refuses the launch for a problem that the kernel accepts,
    that is a failure, as on a GPU. C is uninitialized memory if β = 0, and so are A and B if α = 0,
    because BLAS does not read them then. A problem that the kernel refuses is not an error; its
    record says so.

    Args:
        kernel: a rung's name, or a kernel of your own.
        shapes: strings `MxNxK`, numbers, (M, N, K), or problems; by default edge cases of the
            kernel's tiles, or the nearest problems to them that it accepts.
        config: keys of the configuration to change, such as `{"BM": 64}`.
        gpu: the target board, by default an RTX 3090.
        epilogue: of every problem: see `Epilogue.parse`. By default, each problem's own: a bias if
            a kernel of your own has a parameter for it, bias and ReLU in one edge case of a rung
            that fuses them.
        alpha: α of every problem; by default each problem's own.
        beta: β of every problem; by default each problem's own.
        dtype: the type of A and B, by default the first that the kernel accepts.
        out_dtype: the type of C, by default the same.
        precision: how float32 may be multiplied: "ieee", "fp32" or "tf32" (see `GemmProblem`); by
            default "ieee", or the kernel's own where no type is given.
        scales: of A and B of 8 bits: "tensor", "rows" or "blocks", or a word for each (see
            `Scales.parse`); by default each problem's own.
        prepared: the operands that are constant, and prepared once (see `gemmkit.prepare`): "a",
            "b" or "ab"; by default each problem's own.
        checks: the sanitizers whose findings are reported.
        seed: seed for the inputs; unless it is 0, it also shuffles the order in which the warps of
            a block run.
        max_steps: warp instructions after which a block counts as endless.
        device: an open emulator with its sanitizers on, instead of `gpu` and `max_steps`.
        progress: receives the events of the run.
        cache_dir: root of the compiler's cache; by default the user's.
        compute_dtype, tolerance: the required accuracy, instead of the kernel's own: see
            `Kernel.given`.
        limits: for counters, such as `"load_sectors <= 5*M*N*K/32"`: see `Limit.parse`. They are
            tested in one more launch, without sanitizers, whose record is the last.
        limits_at: the problem of that launch, by default 256x256x256.
        allow_forgiven: findings that ptxas or current hardware makes up for (`forgiven_by`) are
            reported, but are no reason for the verdict "findings".
        schedule: what the warps and copies of one block, or of its cluster, do first, and in which
            order, as a finding in an asynchronous kernel gives it (`Finding.interleaving`); for one
            shape.
        not_written_before: the names of operands, other pointers and variables that no launch
            before this one writes, such as `["B"]` for weights: a kernel that waits for earlier
            launches (`griddepcontrol.wait`) may read them before. Names are those of findings;
            upper and lower case are one.

    Raises:
        UsageError: an argument is not valid.
        UnsupportedProblem: the kernel refuses the configuration, or all problems of more than one
            element, and nothing was found in the others.
        CompileError: the kernel does not compile.
        UnsupportedInstruction: it contains an instruction that the emulator does not support.
        DeviceError: the host has not enough memory.
    """
    unknown = [each for each in checks if each not in CHECKS]
    if unknown:
        raise UsageError(unknown_name("check", unknown[0], CHECKS))
    if not checks:
        raise UsageError(f"no check is asked for: use one of {', '.join(CHECKS)}")
    if device is not None and gpu is not None:
        raise UsageError("gpu is for a device that is yet to be opened")
    budget = [Limit.parse(each) for each in limits]
    if limits_at is not None and not budget:
        raise UsageError("limits_at is for limits: none are given")
    if schedule is not None and (shapes is None or len(shapes) != 1):
        raise UsageError("a schedule is for one problem: give one shape")
    if schedule is not None and device is not None:
        raise UsageError("a schedule is for a device that is yet to be opened")
    if not_written_before and device is not None:
        raise UsageError("not_written_before is for a device that is yet to be opened")
    progress = progress or Progress()
    found = find_kernel(kernel) if isinstance(kernel, str) else kernel
    if compute_dtype is not None:
        found = replace(found, compute_dtype=compute_dtype)
    if tolerance is not None:
        found = replace(found, tolerance=tolerance)
    chosen = found.configure(config or {})
    if isinstance(epilogue, str):
        epilogue = Epilogue.parse(epilogue)
    asked = Asked(
        alpha=alpha,
        beta=beta,
        epilogue=epilogue,
        dtype=dtype,
        out_dtype=out_dtype,
        precision=precision,
        scales=scales,
        prepared=prepared,
    )
    cases: list[Case] = [
        Case("", found.lay_out(asked.problem(shape, found))) for shape in shapes or ()
    ]
    device = device or open_device(
        "emulator",
        gpu,
        sanitize=True,
        progress=progress.launched,
        max_steps=max_steps,
        warp_seed=seed % (1 << 31),
        schedule=schedule,
        not_written_before=not_written_before,
    )
    progress.opened(device, "")
    counted: GemmProblem | None = None
    if budget:
        counted = limits_problem(found, chosen, device.spec, limits_at, asked)
    if shapes is None:
        refuse_unknown_sizes(found)
        _say_what_the_grid_covers(found, chosen, progress)
        types = found.types(dtype, out_dtype, precision)
        cases = default_cases(found, chosen, device.spec, replace(asked, **types))

    plans = [_plan(found, chosen, each.problem, device.spec) for each in cases]
    wanted = [plan for plan in plans if isinstance(plan, LaunchPlan)]
    refusals = [plan for plan in plans if isinstance(plan, _Refusal)]
    if not wanted and not any(each.by_board for each in refusals):
        reasons = merged_refusals(each.reason for each in refusals)
        raise UnsupportedProblem(f"there is nothing to check: {reasons}")
    told = dtype is not None or any(isinstance(each, GemmProblem) for each in shapes or ())
    if found.assumes_type and not told:
        progress.note(
            f"The types of A, B and C are not declared: {found.dtypes[0]} is assumed; --dtype and "
            "--out-dtype give others"
        )
    unset = UnsetValues(device, cache_dir)
    # Of gemmkit's own kernels nothing else is asked of ptxas, which takes half of the time.
    assemble = found.user_defined or any(_may_lack_registers(each, device.spec) for each in wanted)
    compiled = compile_plans(wanted, device.spec, progress, cache_dir, assemble=assemble)
    refuse_unknown_arrays(not_written_before, wanted, compiled)
    binaries = iter(compiled)
    seconds = [
        emulation_seconds(plan, each.problem, device) if isinstance(plan, LaunchPlan) else 0.0
        for each, plan in zip(cases, plans, strict=True)
    ]
    if counted is not None:
        plan_counted = found.plan(counted, chosen, device.spec)
        seconds.append(emulation_seconds(plan_counted, counted, device))
    progress.planned(seconds)
    blanks = [_blank(found, chosen, each.name, each.problem, device, seed) for each in cases]
    progress.checking(blanks)
    records: list[CheckRecord] = []
    for case, plan, blank in zip(cases, plans, blanks, strict=True):
        problem = case.problem
        progress.started(found, problem, len(records), len(cases) + (counted is not None))
        blank = msgspec.structs.replace(blank, schedule=schedule or "")
        if isinstance(plan, _Refusal):
            verdict: CheckVerdict = "failed" if plan.by_board else "refused"
            record = msgspec.structs.replace(blank, verdict=verdict, detail=plan.reason)
        else:
            # Few kernels but gemmkit's own leave A and B unread where α is 0.
            written = found.user_defined and alpha is None
            workload = Workload(problem, device, seed, case.inputs, written=written)
            record = _run(blank, workload, next(binaries), plan, checks)
            if allow_forgiven:
                record = _forgiving(record)
            diagnosis = placed(record.diagnosis, found, chosen, problem)
            record = msgspec.structs.replace(record, diagnosis=diagnosis)
            progress.printed(workload.printed)
            if found.user_defined and "initcheck" in checks and not record.findings:
                record = _with(record, unset.findings(workload, plan))
        progress.checked(record)
        records.append(record)
    missing = too_little(records)
    if missing is not None and all(record.clean for record in records):
        raise UnsupportedProblem(f"{found.name}: {missing}")
    if counted is not None:
        progress.started(found, counted, len(records), len(cases) + 1)
        plain = open_device(
            "emulator",
            device.spec,
            progress=progress.launched,
            max_steps=max_steps,
            warp_seed=seed % (1 << 31),
        )
        # Problems that were asked for have no names.
        name = "limits" if shapes is None else ""
        blank = _blank(found, chosen, name, counted, device, seed)
        workload = Workload(counted, plain, seed)
        record = limits_record(blank, budget, found, chosen, plan_counted, workload, cache_dir)
        progress.printed(workload.printed)
        progress.checked(record)
        records.append(record)
    return records


def _may_lack_registers(plan: LaunchPlan, gpu: GpuSpec) -> bool:
    """Whether only ptxas can tell if a block's registers suffice."""
    limits = gpu.capability
    most = limits.max_registers_per_thread + 1
    return plan.threads_per_block * most > limits.registers_per_block


def _blank(
    kernel: Kernel,
    config: TileConfig,
    case: str,
    problem: GemmProblem,
    device: Device,
    seed: int,
) -> CheckRecord:
    """The record of a problem before anything is known of it."""
    return CheckRecord(
        kernel=kernel.name,
        case=case,
        problem=problem_record(problem),
        config=config.as_dict(),
        device=DeviceRecord(kind=device.kind, gpu=device.spec.name),
        seed=seed,
        verdict="refused",
    )


def _say_what_the_grid_covers(kernel: Kernel, config: TileConfig, progress: Progress) -> None:
    """Say that sizes are multiples where the grid has blocks for whole tiles only."""
    multiples = tiles_of(kernel, config).multiples
    if max(multiples) > 1:
        progress.note(
            f"The grid rounds down, so only sizes where {multiples_text(multiples)} are tried."
        )


def _forgiving(record: CheckRecord) -> CheckRecord:
    """The record with the verdict that it has without findings, if all of them are forgiven."""
    if record.verdict != "findings" or not all(each.forgiven_by for each in record.findings):
        return record
    return msgspec.structs.replace(record, verdict="ok" if record.correct else "wrong result")


def _with(record: CheckRecord, findings: tuple[Finding, ...]) -> CheckRecord:
    """The record with findings, where there are some and the launch has not failed."""
    if not findings or record.verdict == "failed":
        return record
    return msgspec.structs.replace(record, verdict="findings", findings=findings)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why there is no launch: the kernel does not take the problem, or the board not the launch."""

    reason: str
    by_board: bool


def _plan(
    kernel: Kernel, config: TileConfig, problem: GemmProblem, gpu: GpuSpec
) -> LaunchPlan | _Refusal:
    """The launch, or why there is none."""
    try:
        return kernel.plan(problem, config, gpu)
    except UnsupportedProblem as refusal:
        reason = refused_launch(kernel, problem, gpu)
        if reason is not None:
            return _Refusal(f"'{kernel.name}': {reason}", by_board=True)
        return _Refusal(str(refusal), by_board=False)


def _run(
    blank: CheckRecord,
    workload: Workload,
    binary: Binary,
    plan: LaunchPlan,
    checks: Collection[Check],
) -> CheckRecord:
    """The record of one launch."""
    environment = {**workload.environment, "compiler": binary.compiler}
    try:
        launch, seen = workload.run(binary, plan)
    except DeviceError as error:
        workload.printed = error.printed
        return msgspec.structs.replace(
            blank, verdict="failed", detail=str(error), environment=environment
        )
    findings = tuple(each for each in launch.findings if each.check in checks)
    verdict: CheckVerdict = "ok" if seen.correct else "wrong result"
    return msgspec.structs.replace(
        blank,
        verdict="findings" if findings else verdict,
        detail=seen.detail or seen.method,
        **verdict_fields(seen, seen.diagnosis),
        note=seen.note,
        findings=findings,
        emulation_seconds=launch.emulation_seconds,
        environment=environment,
    )
