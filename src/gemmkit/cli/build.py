"""`gemmkit build`: fill the cache of compiled kernels for one board."""

from __future__ import annotations

import click

from gemmkit.cli.files import Verb
from gemmkit.cli.options import debug_option, kernels_option


@click.command("build", cls=Verb)
@click.option(
    "--gpu",
    required=True,
    metavar="BOARD",
    help="Board to compile for, such as h100 (`gemmkit info` lists them).",
)
@kernels_option
@debug_option
def command(gpu: str, kernels: tuple[str, ...] | None) -> None:
    """Compile kernels for a board ahead of time.

    Compiles the default configuration of each, with every epilogue. A machine without a compiler
    can run them from a copy of the cache folder.
    """
    from gemmkit.cli.output import Printer, StepBar
    from gemmkit.errors import DeviceError, UnsupportedProblem
    from gemmkit.gpu import find_board
    from gemmkit.jit.cache import BinaryCache
    from gemmkit.jit.compiler import build_all
    from gemmkit.kernels.catalog import find_kernel
    from gemmkit.units import counted

    board = find_board(gpu)
    chosen = [find_kernel(name) for name in kernels] if kernels else None
    with StepBar() as bar:
        left_out: list[tuple[str, str]] = []
        binaries = build_all(board, chosen, progress=bar.show, left_out=left_out)
    for kernel, reason in left_out:
        Printer(err=True).print(f"Left out: {kernel}: {reason}.")
    if not binaries:
        raise UnsupportedProblem(f"there is nothing to build for {board.name} ({board.arch})")
    cache = BinaryCache()
    stored = sum(cache.holds(each) for each in binaries)
    if stored < len(binaries):
        raise DeviceError(
            f"only {stored} of {len(binaries)} compiled kernels are stored: the cache folder "
            f"{cache.disk.directory} is not writable or its size limit is too low; set "
            "XDG_CACHE_HOME to another folder, or free some space"
        )
    Printer().print(
        f"{counted(stored, 'kernel')} for {board.name} ({board.arch}) in {cache.disk.directory}"
    )
