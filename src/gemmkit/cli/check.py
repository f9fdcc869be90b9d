"""`gemmkit check`: check a kernel on the emulator, with all sanitizers enabled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli import WRONG_RESULT
from gemmkit.cli.files import Verb
from gemmkit.cli.options import (
    as_asked,
    config_option,
    debug_option,
    gpu_option,
    json_option,
    max_steps_option,
    names,
    page_option,
    prepared_option,
    problem_options,
    several_groups_option,
    shapes_option,
)
from gemmkit.cli.target import target_options

if TYPE_CHECKING:
    from gemmkit.cli.output import Printer
    from gemmkit.findings import Check
    from gemmkit.kernels.asked import Asked
    from gemmkit.problem import GemmProblem


@click.command("check", cls=Verb)
@target_options
@shapes_option
@several_groups_option
@click.option(
    "--only",
    callback=names,
    metavar="CHECK,…",
    help="Run only these checks: memcheck, initcheck, racecheck, synccheck.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="'COUNTER<=VALUE'",
    help="Also count one launch and fail if it misses this limit: 'bank_conflicts == 0', "
    "'load_sectors <= 5*M*N*K/32'; repeatable. Counters are those of `gemmkit counters`, or short "
    "names such as load_requests, sectors_per_request, registers.",
)
@click.option(
    "--limit-at",
    "limits_at",
    metavar="MxNxK",
    help="The problem at which limits are tested.  [default: 256x256x256, or the nearest that the "
    "kernel accepts]",
)
@click.option(
    "--not-written-before",
    callback=names,
    metavar="NAME,…",
    help="Arrays and variables that no launch before this one writes, such as weights: B,bias. A "
    "kernel with griddepcontrol.wait may read them before that.",
)
@click.option(
    "--allow-forgiven",
    is_flag=True,
    help="Report findings that ptxas or current hardware makes up for, but pass.",
)
@config_option
@problem_options
@prepared_option
@as_asked
@max_steps_option
@gpu_option
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed for the inputs; if it is not 0, it also shuffles the order in which the warps of "
    "each block run.",
)
@click.option(
    "--schedule",
    metavar="STEPS",
    help="Run one block, or its cluster, in this order first, as a finding in an asynchronous "
    "kernel gives it, such as 'b0.0.0,w4@kernel.cu:50x2+,w0@kernel.cu:61': warp 4 runs through the "
    "second synchronizing instruction at line 50, then warp 0 up to that at line 61. With one "
    "--shape.",
)
@json_option
@page_option("Also write one HTML page: the findings with their source lines, then all problems.")
@debug_option
def command(
    shapes: tuple[str, ...],
    groups: tuple[GemmProblem, ...],
    only: tuple[Check, ...] | None,
    limits: tuple[str, ...],
    limits_at: str | None,
    not_written_before: tuple[str, ...] | None,
    allow_forgiven: bool,
    config: dict[str, int] | None,
    asked: Asked,
    max_steps: int | None,
    gpu: str | None,
    seed: int,
    schedule: str | None,
    json_path: str | None,
    page: Path | None,
    **target: Any,
) -> None:
    """Check a kernel for bugs: a rung, or a CUDA C++ or PTX file of your own.

    It runs on the emulator over edge-case shapes, or the nearest that the kernel accepts (or those
    of --shape), some of them with other α, β and epilogues unless these are given. Each result is
    compared with a float64 reference, and each access is monitored: out-of-bounds or misaligned
    accesses, uninitialized reads, races in shared and global memory, divergent barriers,
    deadlocks.

    The exit status is 1 if there is a finding or a wrong result, if a limit is missed, or if the
    board refuses the launch (threads or blocks beyond its limits, an empty grid, __launch_bounds__,
    registers, shared memory), and 2 if the input is not usable: the kernel does not compile or does
    not accept the problems, or too few problems ran to draw a conclusion.
    """
    from gemmkit.bench.check import CHECKS, MAX_STEPS, check
    from gemmkit.cli.target import find_target
    from gemmkit.cli.watch import Watch, run_and_show
    from gemmkit.errors import UsageError
    from gemmkit.report.findings import check_table, findings_text, sizes_hint, summary
    from gemmkit.report.interleavings import replayed
    from gemmkit.report.layout import Table
    from gemmkit.report.limits import limits_tables

    if limits_at is not None and not limits:
        raise UsageError("--limit-at names the problem of --limit: give a limit too")
    kernel = find_target(**target)

    def run(watch: Watch) -> None:
        check(
            kernel,
            (*shapes, *(asked.of_kernel(each, kernel) for each in groups)) or None,
            config=config,
            gpu=gpu,
            **asked.arguments,
            checks=only or CHECKS,
            limits=limits,
            limits_at=limits_at,
            allow_forgiven=allow_forgiven,
            seed=seed,
            schedule=schedule,
            not_written_before=not_written_before or (),
            max_steps=max_steps or MAX_STEPS,
            progress=watch,
        )

    def tables(watch: Watch, *, complete: bool) -> list[Table]:  # noqa: ARG001
        return [check_table(watch.checks, watch.to_check)]

    def closing(watch: Watch, out: Printer) -> None:
        out.print(findings_text(watch.checks, kernel), end="")
        for table in limits_tables(watch.checks):
            out.print()
            out.print(table, end="")
        out.print("\n" + summary(watch.checks))
        for line in replayed(watch.checks):
            out.print(line)
        hint = sizes_hint(watch.checks, kernel)
        if hint:
            out.print(hint)
        if page is not None:
            from gemmkit.report.check_page import check_document
            from gemmkit.report.page.html import write_page

            over, total = watch.runs
            write_page(check_document(watch.checks, kernel, ended=over == total), page)
            out.print(f"wrote {page}")

    watch = run_and_show(run, tables, asked="emulator", json_path=json_path, closing=closing)
    if not all(record.clean for record in watch.checks):
        raise SystemExit(WRONG_RESULT)
