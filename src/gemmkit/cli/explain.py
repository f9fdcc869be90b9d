"""`gemmkit explain`: why a kernel is as fast as it is, and why faster or slower than another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli import WRONG_RESULT
from gemmkit.cli.files import InputFile, OutputFolder, Verb, writable_folder, written_file_option
from gemmkit.cli.options import (
    Choice,
    as_asked,
    config_option,
    debug_option,
    gpu_option,
    groups_option,
    max_steps_option,
    one_problem,
    page_option,
    problem_options,
    seed_option,
)
from gemmkit.cli.target import target_options
from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from gemmkit.analysis.explain import Explanation, Facts
    from gemmkit.analysis.ncu_report import MeasuredLaunch
    from gemmkit.analysis.trace import Trace
    from gemmkit.cli.output import Printer
    from gemmkit.kernels.asked import Asked
    from gemmkit.problem import GemmProblem

DEFAULT_SHAPE = "1024"

# The number of launches shown from a report of many, such as that of a whole application.
MOST_LAUNCHES = 8


@click.command("explain", cls=Verb)
@target_options
@click.option(
    "--against",
    metavar="KERNEL[:KEY=VALUE,…]",
    help="Compare with this rung, configuration or file; --against :stride=1 means the target "
    "itself with another configuration. A file is followed by its own options: --against 'old.cu "
    "--entry sgemm<8>'. What it does not say of --grid, --block, --layout, --multiple-of, "
    "--include and --option is as for the target.",
)
@click.option(
    "--shape",
    metavar="N|MxNxK",
    help="The problem to explain.  [default: 1024, or the nearest that the kernel accepts]",
)
@groups_option
@problem_options
@as_asked
@gpu_option
@config_option
@seed_option
@max_steps_option
@click.option(
    "--pictures",
    "folder",
    type=OutputFolder(path_type=Path),
    callback=writable_folder,
    metavar="FOLDER",
    help="Draw the addresses, banks and tile elements that the threads access, occupancy over "
    "registers, shared memory and block size, and the roofline, into this folder.",
)
@click.option(
    "--format",
    "form",
    type=Choice(["svg", "png"]),
    default="svg",
    show_default=True,
    help="Format of the pictures.",
)
@click.option(
    "--maps", is_flag=True, help="Print what --pictures draws of the threads' accesses, as text."
)
@click.option(
    "--what-if",
    is_flag=True,
    help="Print occupancy over registers, shared memory and block size, and on every known board.",
)
@click.option(
    "--ncu",
    "report",
    type=InputFile(path_type=Path),
    metavar="CSV",
    help="Show Nsight Compute's metrics beside the emulated ones: the output of `ncu --csv "
    "--page raw`.",
)
@page_option(
    "Also write the explanation as one HTML page, with the counters of source lines, the accesses "
    "of a warp and the roofline to look into. It needs no network."
)
@written_file_option(
    "--timeline",
    "trace_file",
    "Also write the predicted stages of one block over time (fetch, multiply, wait) as a "
    "Chrome trace in JSON, which ui.perfetto.dev and chrome://tracing open, and print their shares "
    "of an iteration.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON instead.")
@debug_option
def command(
    against: str | None,
    shape: str | None,
    groups: GemmProblem | None,
    asked: Asked,
    gpu: str | None,
    config: dict[str, int] | None,
    seed: int,
    max_steps: int | None,
    folder: Path | None,
    form: str,
    maps: bool,
    what_if: bool,
    report: Path | None,
    page: Path | None,
    trace_file: Path | None,
    as_json: bool,
    **target: Any,
) -> None:
    """Explain a kernel: a rung, or a file of your own.

    Shows counters, occupancy and predicted speed under Nsight Compute's names, by operand and by
    source line, with a summary. With --against, also why it is faster or slower than another
    kernel, each reason with the metrics behind it. No GPU is needed.

    The default board is that of this machine's GPU, or an RTX 3090 without one.

    The exit status is 1 if a result is wrong, which is printed first.
    """
    from gemmkit.analysis.explain import explain_facts, gather
    from gemmkit.analysis.ncu_report import read_report
    from gemmkit.cli.against import find_other
    from gemmkit.cli.board import board_at_hand
    from gemmkit.cli.output import Printer, StepBar
    from gemmkit.cli.target import find_target, quoting
    from gemmkit.devices.choose import DEFAULT_MAX_STEPS
    from gemmkit.kernels.fitting import default_problem

    if as_json and (report or folder or maps or what_if or page or trace_file):
        raise UsageError(
            "--json excludes --ncu, --pictures, --html, --timeline and text: leave them out"
        )
    # Unreadable files and missing packages are reported before a long run.
    if folder is not None:
        from gemmkit.report.figures import check_matplotlib

        check_matplotlib()
    launches = read_report(report) if report is not None else ()
    kernel = find_target(**target)
    chosen = [(kernel, kernel.configure(config or {}))]
    if against is not None:
        chosen.append(find_other(against, kernel, target))
    given = one_problem(shape, groups and asked.of_kernel(groups, kernel))
    problem = asked.problem(given or DEFAULT_SHAPE, kernel)
    board = board_at_hand(gpu)
    if given is None:
        for each, settings in chosen:
            problem = default_problem(each, problem, board, settings)
    with StepBar() as bar:
        gathered: list[Facts] = []
        for done, (each, settings) in enumerate(chosen):
            bar.show(done, len(chosen), each.name, running=True)
            with quoting(each):
                gathered.append(
                    gather(
                        each,
                        each.lay_out(problem),
                        board,
                        config=settings,
                        seed=seed,
                        max_steps=max_steps or DEFAULT_MAX_STEPS,
                    )
                )
    explained = explain_facts(*gathered)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(explained).decode())
        _end(explained)
        return
    from gemmkit.report.explain_text import explanation_document

    out = Printer()
    out.print(explanation_document(explained), end="")
    _beside(out, launches, gathered[0])
    gathered = [facts for facts in gathered if facts.plan.blocks]
    traces = []
    if page is not None or maps or folder is not None:
        from gemmkit.analysis.trace import trace

        traces = [
            trace(each.kernel, each.problem, each.gpu, config=each.config) for each in gathered
        ]
    if page is not None:
        _write_page(page, explained, gathered, traces)
        out.print(f"\nwrote {page}")
    if trace_file is not None:
        _write_timeline(out, trace_file, gathered)
    if what_if:
        for facts in gathered:
            _print_residency(out, facts)
    if maps or folder is not None:
        for traced in traces:
            _draw(out, traced, folder, form, maps=maps)
    if folder is not None:
        from gemmkit.report.pictures.board import board_pictures

        for drawn in board_pictures(gathered):
            out.print(f"wrote {drawn.save(folder, form)}")
    _end(explained)


def _write_page(
    page: Path, explained: Explanation, gathered: Sequence[Facts], traces: Sequence[Trace]
) -> None:
    """Write the explanation as an HTML page.

    Raises:
        UsageError: the file cannot be written.
    """
    from gemmkit.report.explain_text import explanation_document
    from gemmkit.report.explain_views import explain_views
    from gemmkit.report.page.html import write_page

    views = explain_views(explained, gathered, traces)
    write_page(explanation_document(explained, views), page)


def _write_timeline(out: Printer, path: Path, gathered: Sequence[Facts]) -> None:
    """Print the shares of a block's stages, and write its timeline.

    Raises:
        UsageError: the file cannot be written.
    """
    from gemmkit.report.chrome_trace import write_trace
    from gemmkit.report.views.timeline import timeline_table, timelines_of

    timelines = timelines_of(gathered)
    out.print()
    if not timelines:
        out.print("No timeline: nothing is launched, or nothing can be predicted.")
        return
    out.print(timeline_table(timelines), end="")
    write_trace(timelines, path)
    out.print(f"wrote {path}; open it at ui.perfetto.dev")


def _end(explained: Explanation) -> None:
    """Exit with status 1 if a result is wrong."""
    if any(each.wrong for each in (explained, explained.against) if each is not None):
        raise SystemExit(WRONG_RESULT)


def _beside(out: Printer, launches: Sequence[MeasuredLaunch], facts: Facts) -> None:
    """The kernel's launches in a report; all launches if none has its name."""
    from gemmkit.analysis.explain.derived import figures
    from gemmkit.report.measured import measured_table

    name = facts.plan.entry.partition("<")[0].split("::")[-1]
    own = [each for each in launches if re.search(rf"\b{re.escape(name)}\b", each.kernel)]
    if launches and not own:
        out.print(f"\nThe report has no launch of '{name}'.")
    chosen = own or launches
    if len(chosen) > MOST_LAUNCHES:
        out.print(f"\nThe first {MOST_LAUNCHES} of {len(chosen)} launches in the report:")
    for launch in chosen[:MOST_LAUNCHES]:
        out.print()
        out.print(measured_table(launch, figures(facts), facts.name), end="")


def _print_residency(out: Printer, facts: Facts) -> None:
    from gemmkit.report.pictures.board import residency

    found = residency(facts)
    out.print(f"\nOccupancy of {facts.name} with more or fewer resources\n", style="bold")
    if found is None:
        out.print("Its register count is unknown, or its grid is empty.")
        return
    curves, boards = found
    out.print(curves, end="")
    out.print(f"\nOn every known board, with the register count for {facts.gpu.name}:")
    out.print(boards, end="")


def _draw(out: Printer, traced: Trace, folder: Path | None, form: str, *, maps: bool) -> None:
    from gemmkit.report.pictures.drawn import pictures
    from gemmkit.report.pictures.text import text_pictures

    if maps:
        for picture in text_pictures(traced, out.width):
            out.print()
            out.print(picture, end="")
    if folder is not None:
        for drawn in pictures(traced):
            out.print(f"wrote {drawn.save(folder, form)}")
