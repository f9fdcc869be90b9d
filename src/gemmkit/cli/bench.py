"""`gemmkit bench`: measure one kernel, or compare gemmkit with its peers over a suite."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli.files import Verb
from gemmkit.cli.options import (
    as_asked,
    combine,
    config_option,
    debug_option,
    device_option,
    gpu_option,
    html_option,
    json_option,
    launch_options,
    names,
    prepared_option,
    problem_options,
    seed_option,
    several_groups_option,
    shapes_option,
)
from gemmkit.cli.target import optional_target_options
from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gemmkit.devices.choose import DeviceKind
    from gemmkit.kernels.asked import Asked
    from gemmkit.kernels.kernel import Kernel
    from gemmkit.problem import GemmProblem, Shape

DEFAULT_SHAPE = "1024"


def _finite(_: click.Context, __: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not isfinite(seconds):
        raise click.BadParameter(f"{seconds} is not a finite number of seconds")
    return seconds


comparison_options = combine(
    click.option(
        "--suite",
        "suites",
        callback=names,
        metavar="NAME,…",
        help="Compare over these suites: square, k1024, off-tile, next-tile, one-past, skinny, "
        "llm, fused, waves, batched, grouped, ragged, typed, layers. Without TARGET, gemmkit "
        "chooses the kernel for each problem, and --dtype and --layout accept several values, "
        "separated by commas.",
    ),
    click.option(
        "--against",
        callback=names,
        metavar="PEER,…",
        help="Compare with these peers, timed in turn in the same run: cublas, torch, linear, "
        "triton.  [default with --suite: cublas, for layers torch]",
    ),
    click.option(
        "--ranks",
        type=click.IntRange(min=1),
        help="Measure instead how so many ranks, one GPU each, compute the shapes together.",
    ),
    click.option(
        "--placement",
        metavar="A,B[->C]",
        help="With --ranks: as for `gemmkit which`.  [default: S(0),S(1)->S(1)]",
    ),
    click.option(
        "--sustained",
        type=click.FloatRange(min=0, min_open=True),
        callback=_finite,
        metavar="SECONDS",
        help="Measure also the burst after a rest, and for so long each the speed, the clock, the "
        "power and the energy per product at the board's power limit.",
    ),
    click.option("--profile", is_flag=True, help="Add a table with percent of the board's peaks."),
    click.option(
        "--resume",
        is_flag=True,
        help="Skip the problems of a suite that --json FILE already contains, and append to it.",
    ),
)


@click.command("bench", cls=Verb)
@optional_target_options
@comparison_options
@shapes_option
@several_groups_option
@device_option
@gpu_option
@config_option
@problem_options
@prepared_option
@as_asked
@seed_option
@launch_options
@json_option
@html_option
@debug_option
def command(
    suites: tuple[str, ...] | None,
    against: tuple[str, ...] | None,
    ranks: int | None,
    placement: str | None,
    sustained: float | None,
    profile: bool,
    resume: bool,
    shapes: tuple[str, ...],
    groups: tuple[GemmProblem, ...],
    device: DeviceKind,
    gpu: str | None,
    config: dict[str, int] | None,
    asked: Asked,
    seed: int,
    max_steps: int | None,
    printf_bytes: int | None,
    json_path: str | None,
    page: Path | None,
    **target: Any,
) -> None:
    """Measure one kernel, or compare gemmkit with its peers over a suite of problems.

    TARGET is a rung, or a CUDA C++ or PTX file of your own. On a GPU it is timed in turn with
    cuBLAS, if that is installed. Without one its PTX runs on the CPU, and the table shows
    counters. Each result is checked against a float64 reference. The default shape is
    1024x1024x1024, or the nearest that the kernel accepts.

    With --ranks, each rank is a process, started here or by torchrun: all strategies of
    gemmkit.distributed in turn, and NCCL with torch.mm. Without a GPU they are checked over gloo.

    With --suite or --against, the kernel that gemmkit chooses for each problem (or TARGET) is timed
    in turn with all peers, over rotating buffers larger than the L2 cache. This needs a GPU.

    The exit status is 1 if a result is wrong.
    """
    from gemmkit.bench.suites import variants
    from gemmkit.cli.target import find_target
    from gemmkit.kernels.asked import Asked
    from gemmkit.kernels.fitting import default_problem
    from gemmkit.kernels.layouts import read_layout

    kernel = None if target["target"] is None else find_target(**target)

    def problems_of(given: Sequence[Shape]) -> list[GemmProblem]:
        if kernel is not None:
            return [kernel.lay_out(asked.problem(each, kernel)) for each in given]
        layouts = [read_layout(each) for each in _parts(target["layout"])]
        factors = Asked(alpha=asked.alpha, beta=asked.beta, epilogue=asked.epilogue)
        return variants(
            map(factors.problem, given),
            _parts(asked.dtype),
            asked.out_dtype,
            layouts,
            asked.precision,
            asked.scales,
            asked.prepared,
        )

    typed = groups if kernel is None else [asked.of_kernel(each, kernel) for each in groups]
    problems = problems_of([*shapes, *typed])
    if placement is not None and ranks is None:
        raise UsageError("--placement says what ranks hold: give --ranks as well")
    if ranks is not None:
        from gemmkit.cli.ranks import bench_ranks

        if kernel is not None or suites or against or page is not None:
            raise UsageError(
                "--ranks measures the products of gemmkit.distributed: leave out TARGET, --suite, "
                "--against and --html"
            )
        bench_ranks(
            problems or problems_of([DEFAULT_SHAPE]), ranks, placement, gpu, seed, json_path
        )
        return
    if kernel is not None and not (suites or problems):
        from gemmkit.cli.board import board_at_hand

        board, settings = board_at_hand(gpu), kernel.configure(config or {})
        plain = problems_of([DEFAULT_SHAPE])
        problems = [default_problem(kernel, each, board, settings) for each in plain]
    if suites or against or profile or resume or sustained:
        from gemmkit.bench.tasks import Task, suite_tasks
        from gemmkit.cli.comparison import compare_command

        tasks = suite_tasks(suites or (), problems_of)
        changed = asked.is_anything or target["layout"] is not None
        if (changed or kernel is not None) and any(task.layer for task in tasks):
            raise UsageError(
                "layers are measured as they are, in float32: take their suite without TARGET and "
                "without options of the product"
            )
        compare_command(
            [*tasks, *map(Task, problems)],
            kernel,
            config=config,
            device=device,
            gpu=gpu,
            against=against,
            seed=seed,
            json_path=json_path,
            page=page,
            resume=resume,
            profile=profile,
            sustained=sustained or 0.0,
        )
        return
    if kernel is None:
        raise UsageError(
            "name a kernel or a file, as in `gemmkit bench gemm_tiled`, or a suite, as in "
            "`gemmkit bench --suite square`"
        )
    _measure(
        kernel,
        problems,
        device=device,
        gpu=gpu,
        config=config,
        seed=seed,
        max_steps=max_steps,
        printf_bytes=printf_bytes,
        json_path=json_path,
        page=page,
    )


def _parts(text: str | None) -> list[str]:
    """Comma-separated words; none where nothing is given."""
    return [] if text is None else [part.strip() for part in text.split(",")]


def _measure(
    kernel: Kernel,
    problems: Sequence[GemmProblem],
    *,
    device: DeviceKind,
    gpu: str | None,
    config: dict[str, int] | None,
    seed: int,
    max_steps: int | None,
    printf_bytes: int | None,
    json_path: str | None,
    page: Path | None,
) -> None:
    """One kernel, on a GPU or on the emulator."""
    from gemmkit.bench.ladder import run_suite
    from gemmkit.cli.target import quoting
    from gemmkit.cli.watch import Watch, show_run
    from gemmkit.devices.choose import DEFAULT_MAX_STEPS, open_device
    from gemmkit.record import Record
    from gemmkit.report.tables import bench_table

    def run(watch: Watch) -> list[Record]:
        opened = open_device(
            device,
            gpu,
            progress=watch.launched,
            max_steps=max_steps or DEFAULT_MAX_STEPS,
            printf_bytes=printf_bytes,
        )
        with quoting(kernel):
            return run_suite(
                problems, kernels=[kernel], config=config, device=opened, seed=seed, progress=watch
            )

    show_run(run, bench_table, asked=device, json_path=json_path, page=page)
