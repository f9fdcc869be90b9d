"""`gemmkit tune`: the fastest configuration of a shape on this GPU, found once and remembered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gemmkit.cli.options import (
    Choice,
    combine,
    debug_option,
    epilogue_option,
    file_option,
    gpu_option,
    json_option,
    kernels_option,
    layout_option,
    seed_option,
    several_groups_option,
    shapes_option,
    type_options,
)
from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

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
        help="Time for each shape, such as 30s or 5m; 0 tries nothing new.",
    ),
    click.option(
        "--strategy",
        type=Choice(["model", "random", "exhaustive"]),
        default="model",
        show_default=True,
        help="model: the best by estimate, then by what the times teach, then their neighbours; "
        "exhaustive: all, in the order of the estimates.",
    ),
    click.option(
        "--device",
        type=Choice(["cuda", "model"]),
        default="cuda",
        show_default=True,
        help="cuda measures; model ranks by predicted times, for --gpu, and stores nothing.",
    ),
)

_store_options = combine(
    file_option("--store", "store_path", "Where trials are kept.  [default: your own store]"),
    file_option("--export", "export_path", "Write what was found to a file."),
    file_option(
        "--import",
        "import_path",
        "Read such a file first; what was measured here is never replaced by it.",
    ),
    click.option(
        "--format",
        "form",
        type=Choice(["table", "kernel-tuner", "t4"]),
        default="table",
        show_default=True,
        help="Of the file: gemmkit's own; Kernel Tuner's cache, one file for each kernel and "
        "shape; or T4 results (export only).",
    ),
    click.option(
        "--trials",
        is_flag=True,
        help="Export every trial, not only the best of each shape.",
    ),
)


@click.command("tune")
@shapes_option
@several_groups_option
@click.option("--suite", metavar="NAME", help="All shapes of a suite, as `gemmkit bench` has them.")
@_search_options
@kernels_option
@epilogue_option
@layout_option
@type_options
@gpu_option
@seed_option
@_store_options
@click.option("--explain", is_flag=True, help="Show what was tried, and why the winner wins.")
@file_option(
    "--plot", "plot", "With --explain: draw predicted over measured speed, as .svg or .png."
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
    epilogue: str | None,
    layout: str,
    dtype: str | None,
    out_dtype: str | None,
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
    """Find the fastest configuration for a shape on this GPU, and remember it.

    Each configuration's result is checked, then it is timed, and every trial is stored at once:
    after Ctrl-C the same command resumes where it ended. Trials of a kernel or compiler that has
    changed since do not count any more.

    Without a shape, lists what the store holds. Without a GPU, --device model ranks configurations
    by prediction, and --explain, --export and --import work on what the store holds.
    """
    from gemmkit.cli import tuning
    from gemmkit.devices.choose import gpu_problem
    from gemmkit.tune.store import Store

    problems = _problems((*shapes, *groups), suite, layout, epilogue, dtype, out_dtype)
    search = tuning.Search(budget, strategy, seed, kernels)
    if plot is not None and not explain:
        raise UsageError("--plot draws for --explain: give both")
    if device == "model":
        if explain or export_path or import_path or json_path:
            raise UsageError(
                "--device model measures and stores nothing: leave out --explain, --export, "
                "--import and --json"
            )
        tuning.rank(problems, gpu, search)
        return
    if gpu is not None and not explain:
        raise UsageError("the GPU here is tuned: --gpu is for --explain and for --device model")
    store = Store(store_path)
    if import_path is not None:
        tuning.read_file(store, import_path, form)
    # What is known can be explained without a GPU.
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
    epilogue: str | None,
    dtype: str | None,
    out_dtype: str | None,
) -> list[GemmProblem]:
    from gemmkit.bench.suites import find_suite
    from gemmkit.kernels.fitting import asked_problem
    from gemmkit.kernels.layouts import read_layout

    letters = read_layout(layout)
    asked: list[Shape] = [*shapes, *(find_suite(suite) if suite is not None else ())]
    return [
        asked_problem(None, each, None, None, epilogue, dtype, out_dtype).laid_out(letters)
        for each in asked
    ]
