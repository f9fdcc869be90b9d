"""`gemmkit which`: which kernel and configuration a problem gets, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gemmkit.cli.files import Verb, read_file_option, written_file_option
from gemmkit.cli.options import (
    as_asked,
    debug_option,
    epilogue_option,
    gpu_option,
    groups_option,
    layout_option,
    mesh,
    one_problem,
    operand_scales_option,
    prepared_option,
    scale_options,
    type_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gemmkit.dispatch.tuned import StoreChoice
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
@click.option(
    "--host", is_flag=True, help="Of matrices in pinned host memory: show how tiles are streamed."
)
@click.option(
    "--device-memory",
    metavar="SIZE",
    help="With --host: memory to use, such as 8GiB.  [default: 90 % of the board's]",
)
@click.option("--devices", type=int, help="With --host: GPUs that share the product.  [default: 1]")
@click.option(
    "--link",
    type=float,
    metavar="GB/S",
    help="With --host: what each GPU copies, or a disk reads.  [default: 54]",
)
@click.option(
    "--ranks",
    callback=mesh,
    metavar="RANKS",
    help="Show instead how so many ranks, one GPU each, compute it together; 2x4 is a mesh.",
)
@click.option(
    "--placement",
    metavar="A,B[->C]",
    help="With --ranks: what ranks hold of A, B and C, each S(0) for rows, S(1) for columns, R for "
    "all, P for sums; on a mesh a word for each dimension.  [default: S(0),S(1)->S(1), on a mesh "
    "S(0) S(1) for all]",
)
@written_file_option(
    "--picture", "picture", "With --ranks: also draw the timeline, as SVG or PNG by the name."
)
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
    host: bool,
    device_memory: str | None,
    devices: int | None,
    link: float | None,
    ranks: tuple[int, ...] | None,
    placement: str | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Show which kernel and configuration computes a problem, and why; nothing is compiled.

    Measurements take precedence: your store of tuned shapes, the table that ships for the board,
    the nearest shape in either. Otherwise the times of all candidates are estimated.

    With --host: how a product of host matrices is cut into tiles, what goes over the link, how long
    it should take, and what limits it.

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
    if placement is not None and ranks is None:
        raise UsageError("--placement says what ranks hold: give --ranks as well")
    if picture is not None and ranks is None:
        raise UsageError("--picture draws what ranks do: give --ranks as well")
    if ranks is not None:
        from gemmkit.cli.ranks import show_ranks
        from gemmkit.kernels.layouts import read_layout

        if host:
            raise UsageError("--ranks and --host exclude each other: leave one of them out")
        whole = asked.problem(problem).laid_out(read_layout(layout))
        show_ranks(whole, ranks, placement, gpu, as_json, picture)
        return
    if not host and (device_memory is not None or devices is not None or link is not None):
        raise UsageError("--device-memory, --devices and --link go with --host")
    if host:
        if no_store or path is not None:
            raise UsageError("--host and --store exclude each other: tiles take your own store")
        from gemmkit.kernels.layouts import read_layout
        from gemmkit.ops.streamed.explain import LINK_GB_PER_S, explain_stream

        if asked.prepared:
            raise UsageError("--host and --prepared exclude each other: tiles are not prepared")
        told = explain_stream(
            asked.problem(problem).laid_out(read_layout(layout)),
            board_at_hand(gpu),
            device_memory=device_memory,
            devices=1 if devices is None else devices,
            link_gb_per_s=LINK_GB_PER_S if link is None else link,
        )
        if as_json:
            click.echo(told.to_json())
            return
        from gemmkit.cli.output import Printer
        from gemmkit.report.streamed import stream_text

        Printer().print(stream_text(told), end="")
        return
    decision = which(problem, board_at_hand(gpu), layout=layout, store=store, **asked.arguments)
    if as_json:
        click.echo(decision.to_json())
        return
    from gemmkit.cli.output import Printer
    from gemmkit.report.decision import decision_text

    Printer().print(decision_text(decision), end="")
