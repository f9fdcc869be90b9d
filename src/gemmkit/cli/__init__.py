"""The command line: one file a verb, imported when the verb is called.

Exit status: 0 all well; 1 a kernel gave a wrong result, or a check found something; 2 an error,
with one message; 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any, NoReturn

import click

from gemmkit import __version__
from gemmkit.errors import GemmkitError, unknown_name
from gemmkit.interrupts import INTERRUPTED, end_at_once, end_soon, has_raised, raise_again

# Each verb and its line in `gemmkit --help`; `gemmkit.cli.<verb>` has the command.
VERBS = {
    "ladder": "Run every kernel on one problem, check it, and show what each step changes.",
    "sweep": "Run kernels on many sizes, as a table of errors, times and GFLOP/s.",
    "bench": "Measure one kernel, or compare with cuBLAS, PyTorch and Triton over a suite.",
    "check": "Look for bugs in a kernel: wrong results, bad accesses, races, deadlocks.",
    "explain": "Explain a kernel: counters, occupancy, predicted speed, and why it beats another.",
    "counters": "List every metric: what it is, how it is obtained, and its limits.",
    "tune": "Find the fastest configuration for a shape on this GPU, and remember it.",
    "which": "Tell which kernel and configuration a problem gets, and why the others lose.",
    "show": "Show one kernel: idea, configuration, source, PTX, SASS, resources.",
    "info": "Show GPU, compiler, known boards and caches, and what is missing.",
    "build": "Compile all kernels for a board ahead of time.",
}

WRONG_RESULT = 1
FAILED = 2


class Verbs(click.Group):
    """A group whose commands are imported one at a time, and whose errors are one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The verbs, in the order of `VERBS`."""
        return list(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """Import the verb's file."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"gemmkit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for an unknown one, suggest the nearest.

        Raises:
            click.UsageError: there is no such verb.
        """
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise click.UsageError(unknown_name("command", args[0], VERBS), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; any failure becomes a message and an exit status."""
        try:
            raise_again()
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            _end_interrupted()
        except Exception as error:
            if has_raised():
                _end_interrupted()
            if ctx.params["debug"]:
                import traceback

                click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
            from gemmkit.cli.output import Printer

            Printer(err=True).print(f"gemmkit: {_message(error)}")
            sys.exit(FAILED)


def _end_interrupted() -> NoReturn:
    click.echo("interrupted", err=True)
    sys.exit(INTERRUPTED)


def _message(error: Exception) -> str:
    if isinstance(error, GemmkitError):
        return str(error)
    return (
        f"unexpected {type(error).__name__}: {error}\n"
        "This is a defect of gemmkit; --debug shows where it happened."
    )


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gemmkit", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def gemmkit(debug: bool) -> None:
    """Write, check and explain CUDA matrix-multiply kernels, with a GPU or without."""


def main() -> None:
    """Run the command line and exit."""
    from gemmkit.cli.encoding import show_any_text

    show_any_text()
    end_soon()
    show_warnings_plainly()
    try:
        gemmkit(prog_name="gemmkit")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            sys.stdout.flush()
            # Threads that still compile would keep the interpreter waiting.
            os._exit(INTERRUPTED)
        raise
    finally:
        end_at_once()


def show_warnings_plainly() -> None:
    """Let a warning be one sentence, said once, without the place in gemmkit where it was made."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        # Python's own memory of warnings ends wherever a filter is changed for a while.
        if str(message) not in shown:
            shown.add(str(message))
            click.echo(f"gemmkit: {message}", err=True)

    warnings.showwarning = show
