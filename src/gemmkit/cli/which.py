"""`gemmkit which`: which kernel and configuration a problem gets, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gemmkit.cli.files import Verb, read_file_option
from gemmkit.cli.options import (
    as_asked,
    debug_option,
    epilogue_option,
    gpu_option,
    groups_option,
    layout_option,
    one_problem,
    operand_scales_option,
    prepared_option,
    scale_options,
    type_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gemmkit.dispatch.choose import StoreChoice
    from gemmkit.kernels.asked import Asked
    from gemmkit.problem import GemmProblem


@click.command("which", cls=Verb)
@click.argument("shape", metavar="MxNxK[xBATCH]", required=False)
@groups_option
@gpu_option
@scale_options
@epilogue_option
@layout_option
@type_options
@prepared_option
@operand_scales_option
@as_asked
@read_file_option("--store", "path", "Store of tuned shapes to consult first.  [default: your own]")
@click.option("--no-store", is_flag=True, help="Ignore the store: show the choice without tuning.")
@click.option("--json", "as_json", is_flag=True, help="Print the decision as JSON instead.")
@debug_option
def command(
    shape: str | None,
    groups: GemmProblem | None,
    gpu: str | None,
    layout: str,
    asked: Asked,
    path: Path | None,
    no_store: bool,
    as_json: bool,
) -> None:
    """Show which kernel and configuration computes a problem, and why; nothing is compiled.

    Measurements take precedence: your store of tuned shapes, the table that ships for the board,
    the nearest shape in either. Otherwise the times of all candidates are estimated.

    The default board is that of this machine's GPU, or an RTX 3090 without one.
    """
    from gemmkit.cli.board import board_at_hand
    from gemmkit.dispatch.which import which
    from gemmkit.errors import UsageError

    if no_store and path is not None:
        raise UsageError("--no-store and --store exclude each other: leave one of them out")
    store: StoreChoice = None if no_store else path or "user"
    problem = one_problem(shape, groups)
    if problem is None:
        raise UsageError("which problem? Give a shape MxNxK, or --groups MxNxK*COUNT,…")
    decision = which(problem, board_at_hand(gpu), layout=layout, store=store, **asked.arguments)
    if as_json:
        click.echo(decision.to_json())
        return
    from gemmkit.cli.output import Printer
    from gemmkit.report.decision import decision_text

    Printer().print(decision_text(decision), end="")
