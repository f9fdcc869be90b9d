"""The ladder: every rung on one problem, with the same inputs, each checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemmkit.bench.baseline import Baseline
from gemmkit.bench.estimate import emulation_seconds
from gemmkit.bench.peers import HOW_TO_GET, find_baseline
from gemmkit.bench.progress import Progress
from gemmkit.bench.run import run_binary
from gemmkit.bench.workload import Workload
from gemmkit.devices.choose import DeviceKind, open_device
from gemmkit.devices.device import Device, TimedDevice
from gemmkit.dtypes import PRECISIONS, precisions_of
from gemmkit.epilogue import Epilogue
from gemmkit.errors import DeviceError, UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_many
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel, kernels_for
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.layouts import read_layout
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import Record

DEFAULT_SIZE = 1024


class Choice(Protocol):
    """A kernel, its configuration, and why they were taken."""

    @property
    def kernel(self) -> Kernel:
        """What to launch."""

    @property
    def config(self) -> TileConfig:
        """How."""

    @property
    def reason(self) -> str:
        """Why, in a sentence."""


# What dispatch launches for a problem: `gemmkit.choose`.
ProductionChoice = Callable[[GemmProblem, GpuSpec], Choice]


def ladder(
    size: int | None = None,
    *,
    shape: str | tuple[int, ...] | GemmProblem | None = None,
    device: DeviceKind | Device = "auto",
    gpu: GpuSpec | str | None = None,
    kernels: Sequence[str | Kernel] | None = None,
    config: Mapping[str, int] | None = None,
    epilogue: str | Epilogue | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    layout: str = "NN",
    dtype: str | None = None,
    out_dtype: str | None = None,
    precision: str | None = None,
    seed: int = 0,
    production: ProductionChoice | None = None,
    progress: Progress | None = None,
    cache_dir: Path | None = None,
) -> list[Record]:
    """Run kernels on one problem, in the order of the rungs, and return a record for each.

    On a GPU, each is timed in turn with cuBLAS, if that is installed. A rung that refuses the
    problem or the configuration is left out, and `progress` receives the reason; if it was
    requested by name, that is an error.

    Args:
        size: M = N = K, by default 1024.
        shape: (M, N, K) or a string `MxNxK` instead of a size; a fourth number is the number of
            products of a batch. Or a problem, such as one of groups.
        device: "auto" (the GPU if there is a usable one, otherwise the emulator), "cuda",
            "emulator", or an open device.
        gpu: the target board of the emulator, such as "rtx3090".
        kernels: names, or kernels of your own; by default the rungs for the problem's types.
        config: keys of the configuration to change, such as `{"BM": 64}`.
        epilogue: fused into the write-back: see `Epilogue.parse`.
        alpha: the factor of A·B.
        beta: the factor of the previous C.
        layout: the layout of A and B: "NN", "NT", "TN" or "TT".
        dtype: the type of A and B, by default float32, or the first that all named kernels take:
            rungs 14 and up are for bfloat16 and float16. For groups, and for types that no rung
            accepts, production kernels run instead.
        out_dtype: the type of C, by default the same.
        precision: how float32 may be multiplied: "ieee", "fp32" or "tf32" (see `GemmProblem`); by
            default "ieee", or the lowest in which one of the named kernels multiplies; of types of
            8 bits "ieee" or "fast".
        seed: seed for the inputs.
        production: chooses the kernel that ends the ladder, such as `gemmkit.choose`; by default it
            ends with the last rung. Ignored if kernels or a configuration are given.
        progress: receives the events of the run.
        cache_dir: root of the compiler's cache; by default the user's.

    Raises:
        UsageError: an argument is not valid.
        UnsupportedProblem: a kernel requested by name refuses.
        CompileError: a kernel does not compile.
        DeviceError: there is no such device, or it failed.
    """
    # A problem says what its types are.
    named = None if isinstance(shape, GemmProblem) else kernels
    types = asked_types(named, dtype, out_dtype, precision)
    asked = Asked(alpha=alpha, beta=beta, epilogue=epilogue, **types)
    problem = asked.problem(_sizes(size, shape)).laid_out(read_layout(layout))
    return run_suite(
        [problem],
        kernels=kernels,
        config=config,
        device=device,
        gpu=gpu,
        seed=seed,
        production=production if kernels is None and not config else None,
        progress=progress,
        cache_dir=cache_dir,
    )


def asked_types(
    kernels: Sequence[str | Kernel] | None,
    dtype: str | None,
    out_dtype: str | None,
    precision: str | None,
) -> dict[str, Any]:
    """`dtype`, `out_dtype` and `precision` by name. A type of A and B that is not given is the
    first that all named kernels take and that has the precision; a precision of float32 that is not
    given either is the lowest of the kernels'.

    Raises:
        UsageError: there is no kernel of that name.
    """
    named = [find_kernel(each) if isinstance(each, str) else each for each in kernels or ()]
    if dtype is None and named:
        wanted = "ieee" if precision is None else str(precision).strip().lower()
        shared = (
            each
            for each in named[0].dtypes
            if wanted in precisions_of(each) and all(each in other.dtypes for other in named)
        )
        # Where there is none, what is wrong with the first kernels is told.
        found = next(shared, named[0].dtypes[0] if _lacks_float32(named) else None)
        if found == "float32" and precision is None:
            precision = max((each.precision for each in named), key=PRECISIONS.index)
        if found is not None:
            return named[0].types(found, out_dtype, precision)
    return {"dtype": dtype, "out_dtype": out_dtype, "precision": precision}


def _lacks_float32(kernels: Sequence[Kernel]) -> bool:
    return not any("float32" in each.dtypes for each in kernels)


def run_suite(
    problems: Sequence[GemmProblem],
    *,
    kernels: Sequence[str | Kernel] | None,
    config: Mapping[str, int] | None = None,
    device: DeviceKind | Device = "auto",
    gpu: GpuSpec | str | None = None,
    seed: int = 0,
    production: ProductionChoice | None = None,
    progress: Progress | None = None,
    cache_dir: Path | None = None,
) -> list[Record]:
    """Run kernels on several problems, problem by problem; otherwise as `ladder`.

    Raises:
        UsageError, UnsupportedProblem, CompileError, DeviceError: as `ladder`.
    """
    progress = progress or Progress()
    asked = kernels_for(problems) if kernels is None else kernels
    found = [find_kernel(each) if isinstance(each, str) else each for each in asked]
    try:
        chosen = [(kernel, kernel.configure(config or {})) for kernel in found]
    except UsageError as error:
        if kernels is not None:
            raise
        raise UsageError(f"{error}; name the kernels to configure with --kernels") from None
    if isinstance(device, str):
        device = open_device(device, gpu, progress=progress.launched)
    elif gpu is not None:
        raise UsageError("gpu is for a device that is yet to be opened")
    baseline = find_baseline(device) if isinstance(device, TimedDevice) else None
    missing = isinstance(device, TimedDevice) and baseline is None
    progress.opened(device, HOW_TO_GET if missing else "")

    runs: list[_Run] = []
    refused = ""
    for problem in problems:
        for kernel, changed in chosen:
            run = _plan(kernel, changed, problem, device.spec, required=kernels is not None)
            if isinstance(run, str):
                refused = run
                progress.skipped(kernel, problem, run)
            else:
                runs.append(run)
        if production is not None:
            runs = _ended(production, problem, device.spec, runs)
    if not runs and refused:
        raise UnsupportedProblem(f"no kernel takes it: {refused}")
    binaries = compile_plans([run.plan for run in runs], device.spec, progress, cache_dir)
    return _run_all(runs, binaries, device, baseline, seed, progress)


@dataclass(frozen=True, slots=True)
class _Run:
    """One kernel on one problem, planned."""

    kernel: Kernel
    config: TileConfig
    problem: GemmProblem
    plan: LaunchPlan


def _plan(
    kernel: Kernel, config: TileConfig, problem: GemmProblem, gpu: GpuSpec, *, required: bool
) -> _Run | str:
    """The run, or why it is left out."""
    problem = kernel.lay_out(problem)
    try:
        return _Run(kernel, config, problem, kernel.plan(problem, config, gpu))
    except UnsupportedProblem as refusal:
        if required:
            raise
        return str(refusal)


def _ended(
    production: ProductionChoice, problem: GemmProblem, gpu: GpuSpec, runs: list[_Run]
) -> list[_Run]:
    """The runs, the last of them with what is chosen for the problem, unless that is a rung.

    It is there once: not in its kernel's default configuration too.
    """
    try:
        choice = production(problem, gpu)
    except UnsupportedProblem:
        return runs
    kernel, config = choice.kernel, choice.config
    if kernel.rung is not None:
        return runs
    others = [run for run in runs if (run.kernel, run.problem) != (kernel, problem)]
    return [*others, _Run(kernel, config, problem, kernel.plan(problem, config, gpu))]


def compile_plans(
    plans: Sequence[LaunchPlan],
    gpu: GpuSpec,
    progress: Progress,
    cache_dir: Path | None,
    *,
    assemble: bool = True,
) -> list[Binary]:
    """A binary for each plan; each distinct instance is compiled once.

    `assemble` is as in `compile_kernel`.

    Raises:
        CompileError: a kernel does not compile.
    """
    entries = {plan.instances: plan for plan in plans}
    binaries = compile_many(
        list(entries.values()),
        gpu.arch,
        assemble=assemble,
        cache_dir=cache_dir,
        progress=progress.compiled,
    )
    found = dict(zip(entries, binaries, strict=True))
    return [found[plan.instances] for plan in plans]


def _run_all(
    runs: Sequence[_Run],
    binaries: Sequence[Binary],
    device: Device,
    baseline: Baseline | None,
    seed: int,
    progress: Progress,
) -> list[Record]:
    records: list[Record] = []
    workload: Workload | None = None
    progress.planned([emulation_seconds(run.plan, run.problem, device) for run in runs])
    for run, binary in zip(runs, binaries, strict=True):
        progress.started(run.kernel, run.problem, len(records), len(runs))
        if workload is None or workload.problem != run.problem:
            # The former one's memory goes before the next one's comes.
            workload = None
            workload = Workload(run.problem, device, seed)
        try:
            record = run_binary(
                run.kernel, run.config, run.plan, binary, workload, baseline=baseline
            )
        except DeviceError as error:
            progress.printed(error.printed)
            raise
        progress.printed(workload.printed)
        progress.finished(record)
        records.append(record)
    return records


def _sizes(
    size: int | None, shape: str | tuple[int, ...] | GemmProblem | None
) -> tuple[int, ...] | GemmProblem:
    if size is not None and shape is not None:
        raise UsageError("give a size or a shape, not both")
    if isinstance(shape, str):
        asked = GemmProblem.from_shape(shape)
        return asked.m, asked.n, asked.k, asked.batch
    if shape is not None:
        return shape
    size = DEFAULT_SIZE if size is None else size
    if not isinstance(size, int):
        raise UsageError(f"a size is one number for M, N and K, not {size!r}; or give a shape")
    return size, size, size
