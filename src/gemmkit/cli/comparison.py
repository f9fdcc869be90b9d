"""The part of `gemmkit bench` that compares: suites, peers, and resuming from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmkit.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gemmkit.bench.compare import Choose
    from gemmkit.bench.tasks import Task
    from gemmkit.cli.watch import Tabulate, Watch
    from gemmkit.devices.device import TimedDevice
    from gemmkit.kernels.kernel import Kernel
    from gemmkit.kernels.plan import TileConfig
    from gemmkit.record import Record
    from gemmkit.report.layout import Table


def compare_command(
    tasks: Sequence[Task],
    kernel: Kernel | None,
    *,
    config: dict[str, int] | None,
    device: str,
    gpu: str | None,
    against: Sequence[str] | None,
    seed: int,
    json_path: str | None,
    page: Path | None,
    resume: bool,
    profile: bool,
    sustained: float,
) -> None:
    """Compare over suites and single problems, with one kernel or with those that gemmkit chooses.

    Raises:
        UsageError: an unknown peer, a peer that is not installed, or incompatible options.
        DeviceError: there is no GPU.
    """
    from gemmkit.bench.compare_layers import TORCH
    from gemmkit.bench.peers import CUBLAS, check_names

    if not tasks:
        raise UsageError("nothing to compare: name a kernel, a --suite or a --shape")
    if not against:
        layers = [task.layer is not None for task in tasks]
        against = (*[CUBLAS] * (not all(layers)), *[TORCH] * any(layers))
    check_names(against)
    if kernel is None and config:
        raise UsageError("--config is for one kernel: name it, as in `gemmkit bench gemm_tiled`")
    if resume and json_path in (None, "-"):
        raise UsageError("--resume continues a file of records: name it with --json FILE")
    run_comparison(
        tasks,
        kernel,
        None if kernel is None else kernel.configure(config or {}),
        device=timed_device(device, gpu),
        against=against,
        seed=seed,
        json_path=json_path,
        page=page,
        resume=resume,
        profile=profile,
        sustained=sustained,
    )


def timed_device(kind: str, gpu: str | None) -> TimedDevice:
    """The GPU.

    Raises:
        DeviceError: there is none, or the emulator was requested; the message has alternatives.
    """
    from gemmkit.devices.choose import gpu_problem, open_device
    from gemmkit.devices.device import TimedDevice

    reason = "the emulator does not measure time" if kind == "emulator" else gpu_problem()
    if reason is None:
        device = open_device("cuda", gpu)
        assert isinstance(device, TimedDevice)
        return device
    raise DeviceError(
        f"comparing times needs an NVIDIA GPU: {reason}. Without one, `gemmkit which MxNxK` names "
        "the kernel that would run, `gemmkit explain KERNEL` predicts its speed, and `gemmkit "
        "bench KERNEL` shows its counters"
    )


def chooser(kernel: Kernel | None, config: TileConfig | None) -> Choose:
    """How the kernel for each problem is chosen: by name, otherwise by dispatch."""
    from gemmkit.bench.compare import Pick

    if kernel is not None:
        pick = Pick(kernel, config or kernel.default, "asked for by name")
        return lambda _problem, _gpu: (pick,)
    from gemmkit.dispatch.choose import choose

    return lambda problem, gpu: (choose(problem, gpu),)


def run_comparison(
    tasks: Sequence[Task],
    kernel: Kernel | None,
    config: TileConfig | None,
    *,
    device: TimedDevice,
    against: Sequence[str],
    seed: int,
    json_path: str | None,
    page: Path | None,
    resume: bool,
    profile: bool,
    sustained: float,
) -> None:
    """Measure what is not in the file yet, and print tables of all records.

    Exits with status 1 if a gemmkit result is wrong.

    Raises:
        UsageError: the file to continue contains lines that are not records.
    """
    from gemmkit.bench.compare import compare
    from gemmkit.bench.tasks import key_of, left
    from gemmkit.cli.output import read_existing
    from gemmkit.cli.watch import exit_if_wrong, run_and_show

    done: list[Record] = []
    if resume and json_path is not None:
        wanted = {task.key for task in tasks}
        done = [
            each
            for each in read_existing(json_path)
            if key_of(each) in wanted
            and (each.device.gpu, each.seed) == (device.spec.name, seed)
            and (each.layer or set(each.environment.get("against", ())) >= set(against))
            and (kernel is None or each.kernel == kernel.name)
            and (config is None or each.config == config.as_dict())
            and (not sustained or each.sustained is not None)
        ]
    rest = left(tasks, done)
    functions: Any = None
    if any(task.layer for task in rest):
        from gemmkit import nn

        functions = nn

    def run(watch: Watch) -> Sequence[Record]:
        if done:
            watch.say(f"{len(tasks) - len(rest)} of {len(tasks)} problems are in {json_path}.")
        return compare(
            rest,
            chooser(kernel, config),
            device=device,
            against=against,
            seed=seed,
            progress=watch,
            functions=functions,
            sustained=sustained,
        )

    exit_if_wrong(
        run_and_show(
            run,
            _tables(profile),
            asked="cuda",
            json_path=json_path,
            before=done,
            append=resume,
            page=page,
        )
    )


def _tables(profile: bool) -> Tabulate:
    from gemmkit.report.comparison import comparison_tables, profile_table
    from gemmkit.report.sustained import sustained_tables

    def tables(watch: Watch, *, complete: bool) -> Sequence[Table]:
        found = comparison_tables(watch.records) + sustained_tables(watch.records)
        return [*found, profile_table(watch.records)] if profile and complete else found

    return tables
