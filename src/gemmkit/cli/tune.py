"""`gemmkit tune`: find and store the fastest configuration for a shape on this GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gemmkit.cli.files import Verb, read_file_option, store_option, written_file_option
from gemmkit.cli.options import (
    Choice,
    as_asked,
    combine,
    debug_option,
    epilogue_option,
    gpu_option,
    json_option,
    kernels_option,
    layout_option,
    operand_scales_option,
    seed_option,
    several_groups_option,
    shapes_option,
    type_options,
)
from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gemmkit.kernels.asked import Asked
    from gemmkit.problem import GemmProblem, Shape

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
DEFAULT_BUDGET = "60s"


def _seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if found is None:
        raise click.BadParameter(f"'{text}' is not a time: write 60s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2] or ""]


_search_options = combine(
    click.option(
        "--budget",
        default=DEFAULT_BUDGET,
        show_default=True,
        callback=_seconds,
        metavar="TIME",
        help="Time per shape, such as 30s or 5m; 0 tries nothing new.",
    ),
    click.option(
        "--strategy",
        type=Choice(["model", "random", "exhaustive"]),
        default="model",
        show_default=True,
        help="model: the best by estimate, corrected by measured times, then their neighbors; "
        "exhaustive: all, in order of the estimates.",
    ),
    click.option(
        "--device",
        type=Choice(["cuda", "model"]),
        default="cuda",
        show_default=True,
        help="cuda measures; model ranks by predicted time for --gpu, and stores nothing.",
    ),
)

_store_options = combine(
    store_option("store_path", "File of trials.  [default: your own store]"),
    written_file_option("--export", "export_path", "Export the results to a file."),
    read_file_option(
        "--import",
        "import_path",
        "Import such a file first; it never replaces what was measured on this machine.",
    ),
    click.option(
        "--format",
        "form",
        type=Choice(["table", "kernel-tuner", "t4"]),
        default="table",
        show_default=True,
        help="Format of the file: gemmkit's own; Kernel Tuner's cache, one file per kernel and "
        "shape; or T4 results (export only).",
    ),
    click.option(
        "--trials",
        is_flag=True,
        help="Export every trial, not only the best per shape.",
    ),
)


@click.command("tune", cls=Verb)
@shapes_option
@several_groups_option
@click.option("--suite", metavar="NAME", help="All shapes of a suite of `gemmkit bench`.")
@_search_options
@kernels_option
@epilogue_option
@layout_option
@type_options
@operand_scales_option
@as_asked
@gpu_option
@seed_option
@_store_options
@click.option("--explain", is_flag=True, help="Show what was tried, and why the winner wins.")
@written_file_option(
    "--plot",
    "plot",
    "With --explain: plot predicted over measured speed, as .svg or .png.",
)
@json_option
@debug_option
def command(
    shapes: tuple[str, ...],
    groups: tuple[GemmProblem, ...],
    suite: str | None,
    budget: float,
    strategy: str,
    device: str,
    kernels: tuple[str, ...] | None,
    layout: str,
    asked: Asked,
    gpu: str | None,
    seed: int,
    store_path: Path | None,
    export_path: Path | None,
    import_path: Path | None,
    form: str,
    trials: bool,
    explain: bool,
    plot: Path | None,
    json_path: str | None,
) -> None:
    """Find and store the fastest configuration for a shape on this GPU.

    Each configuration's result is checked before it is timed, and every trial is stored
    immediately: after Ctrl-C the same command continues where it stopped. Trials of a kernel or
    compiler that has changed since are ignored.

    Without a shape, lists the contents of the store. Without a GPU, --device model ranks
    configurations by prediction, and --explain, --export and --import work on the store.
    """
    from gemmkit.cli import tuning
    from gemmkit.devices.choose import gpu_problem
    from gemmkit.trials.store import Store

    problems = _problems((*shapes, *groups), suite, layout, asked)
    search = tuning.Search(budget, strategy, seed, kernels)
    if plot is not None and not explain:
        raise UsageError("--plot needs --explain: use both")
    if trials and export_path is None:
        raise UsageError("--trials needs --export: use both")
    if form != "table" and export_path is None and import_path is None:
        raise UsageError("--format needs --export or --import: use it with one of them")
    if plot is not None:
        from gemmkit.report.figures import check_form, check_matplotlib

        check_form(plot)
        check_matplotlib()
    if device == "model":
        if explain or export_path or import_path or json_path or store_path:
            raise UsageError(
                "--device model neither measures nor stores: leave out --explain, --export, "
                "--import, --json and --store"
            )
        tuning.rank(problems, gpu, search)
        return
    if gpu is not None and not explain:
        raise UsageError(
            "--gpu is only for --explain and --device model: tuning uses the GPU at hand"
        )
    store = Store(store_path)
    if import_path is not None:
        tuning.read_file(store, import_path, form)
    # Stored results can be explained without a GPU.
    if problems and budget and not (explain and gpu_problem() is not None):
        tuning.measure(problems, store, search, json_path)
    if explain:
        tuning.explain(problems, store, gpu, plot)
    if export_path is not None:
        tuning.write_file(store, export_path, form, problems, trials=trials)
    if not (problems or import_path or export_path):
        tuning.show(store)


def _problems(
    shapes: Sequence[Shape],
    suite: str | None,
    layout: str,
    asked: Asked,
) -> list[GemmProblem]:
    from gemmkit.bench.suites import find_suite
    from gemmkit.kernels.layouts import read_layout

    letters = read_layout(layout)
    given: list[Shape] = [*shapes, *(find_suite(suite) if suite is not None else ())]
    found = (asked.problem(each).laid_out(letters) for each in given)
    return list(dict.fromkeys(found))
