"""`gemmkit ladder`: all rungs on one problem, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli.files import Verb
from gemmkit.cli.options import (
    config_option,
    epilogue_option,
    groups_option,
    html_option,
    layout_option,
    one_problem,
    run_options,
    scale_options,
    type_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gemmkit.problem import GemmProblem


@click.command("ladder", cls=Verb)
@click.option("--size", type=int, metavar="N", help="M = N = K.  [default: 1024]")
@click.option(
    "--shape", metavar="MxNxK", help="M, N and K instead of --size; a batch as MxNxKxBATCH."
)
@groups_option
@run_options
@config_option
@epilogue_option
@scale_options
@layout_option
@type_options
@html_option
def command(
    json_path: str | None,
    page: Path | None,
    shape: str | None,
    groups: GemmProblem | None,
    **asked: Any,
) -> None:
    """Run every rung for one problem's types, check it, and show what each step changes.

    The first 13 rungs are for fp32, those from 14 on, with --dtype bf16 or fp16, for tensor cores.
    The last row is the production kernel that the library launches for the problem, unless that
    is one of the rungs. On a GPU the table has times, compared with cuBLAS if that is installed.
    Without one the kernels' PTX runs on the CPU, and the table has counters. Groups are run by the
    kernels that take them, in place of the rungs.

    The exit status is 1 if a result is wrong.
    """
    from gemmkit.bench.ladder import ladder
    from gemmkit.cli.watch import Watch, exit_if_wrong, run_and_show
    from gemmkit.dispatch.choose import choose
    from gemmkit.report.layout import Table
    from gemmkit.report.tables import ladder_table

    def table(watch: Watch, *, complete: bool) -> list[Table]:
        return [ladder_table(watch.records, watch.left_out, complete=complete)]

    exit_if_wrong(
        run_and_show(
            lambda watch: ladder(
                shape=one_problem(shape, groups), **asked, production=choose, progress=watch
            ),
            table,
            asked=asked["device"],
            json_path=json_path,
            left_out_in_table=True,
            page=page,
        )
    )
