"""`gemmkit sweep`: kernels over many sizes, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemmkit.cli.files import Verb
from gemmkit.cli.options import (
    epilogue_option,
    html_option,
    layout_option,
    run_options,
    scale_options,
    several_groups_option,
    sizes_option,
    type_options,
)
from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gemmkit.devices.choose import DeviceKind
    from gemmkit.problem import GemmProblem

# Emulation time grows with the square of the size: 16384 would take half an hour per kernel.
LARGEST_EMULATED = 2048


@click.command("sweep", cls=Verb)
@sizes_option
@several_groups_option
@run_options
@epilogue_option
@scale_options
@layout_option
@type_options
@html_option
def command(
    sizes: tuple[int, ...] | None,
    groups: tuple[GemmProblem, ...],
    device: DeviceKind,
    gpu: str | None,
    json_path: str | None,
    page: Path | None,
    **asked: Any,
) -> None:
    """Run kernels at fifteen sizes: M = N from 128 to 16384, K = 1024; or on groups.

    The default kernels are naive_uncoalesced and naive; for groups, and for types, layouts and
    epilogues that one of these does not take, the kernels of `gemmkit ladder`. On a GPU each row
    has the minimum, mean and maximum time; the emulator shows counters instead, and by default
    stops at 2048.

    The exit status is 1 if a result is wrong.
    """
    from gemmkit.bench.sweep import SIZES, sweep
    from gemmkit.cli.watch import Watch, show_run
    from gemmkit.devices.choose import open_device
    from gemmkit.dispatch.choose import choose
    from gemmkit.record import Record
    from gemmkit.report.tables import sweep_table

    if sizes is not None and groups:
        raise UsageError("give --sizes or --groups, not both")

    def run(watch: Watch) -> list[Record]:
        opened = open_device(device, gpu, progress=watch.launched)
        chosen = sizes or SIZES
        if sizes is None and not groups and opened.kind == "emulator":
            chosen = tuple(size for size in SIZES if size <= LARGEST_EMULATED)
            left_out = ",".join(str(size) for size in SIZES if size not in chosen)
            watch.say(f"Left out, because they take long to emulate: --sizes {left_out}")
        return sweep(
            chosen, groups=groups, **asked, device=opened, production=choose, progress=watch
        )

    show_run(run, sweep_table, asked=device, json_path=json_path, page=page)
