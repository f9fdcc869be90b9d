"""The command line: one file per command, imported when the command is called.

Exit status: 0 success; 1 a wrong result or a finding; 2 an error, with one message; 130
interrupted; 141 where the reader of a pipe has closed it, as after SIGPIPE.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from gemmkit.errors import GemmkitError, unknown_name
from gemmkit.interrupts import INTERRUPTED, end_at_once, end_soon, has_raised, raise_again
from gemmkit.version import __version__

# Each command and its line in `gemmkit --help`; it is defined in `gemmkit.cli.<name>`.
VERBS = {
    "ladder": "Run every kernel on one problem, check it, and show what each step changes.",
    "sweep": "Run kernels on many sizes, as a table of errors, times and GFLOP/s.",
    "bench": "Measure one kernel, or compare with cuBLAS, PyTorch and Triton over a suite.",
    "check": "Check a kernel for wrong results, invalid accesses, races and deadlocks.",
    "explain": "Explain a kernel: counters, occupancy, predicted speed, comparison with another.",
    "counters": "List every metric: what it is, how it is obtained, and its limits.",
    "tune": "Find and store the fastest configuration for a shape on this GPU.",
    "which": "Show which kernel and configuration a problem gets, and why the others lose.",
    "show": "Show one kernel: idea, configuration, source, PTX, SASS, resources.",
    "info": "Show GPU, compiler, known boards, caches and missing components.",
    "build": "Compile all kernels for a board ahead of time.",
}

WRONG_RESULT = 1
FAILED = 2
CLOSED_PIPE = 141

# What writing to a file that is open already fails with.
_UNWRITABLE = (
    errno.ENOSPC,
    errno.EIO,
    errno.EFBIG,
    errno.EBADF,
    getattr(errno, "EDQUOT", errno.EIO),
)


class Verbs(click.Group):
    """A group that imports its commands lazily and reports an error as one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The commands, in the order of `VERBS`."""
        return list(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """Import the command's file."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"gemmkit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown one, suggest the nearest.

        Raises:
            click.UsageError: there is no such command.
        """
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise click.UsageError(unknown_name("command", args[0], VERBS), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def get_help(self, ctx: click.Context) -> str:
        """The help, in the characters that standard output has."""
        from gemmkit.cli.files import shown_help

        return shown_help(super().get_help(ctx))

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read the arguments; `--help` and `--version` print, which may fail."""
        try:
            return super().make_context(*args, **options)
        except click.UsageError as error:
            _refuse(error)
        except OSError as error:
            _end_output(error)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; any failure becomes a message and an exit status."""
        try:
            raise_again()
            return super().invoke(ctx)
        except click.UsageError as error:
            _refuse(error)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError as error:
            _end_output(error)
        except KeyboardInterrupt:
            _end_interrupted()
        except Exception as error:
            if has_raised():
                _end_interrupted()
            if ctx.params["debug"]:
                import traceback

                click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
            if isinstance(error, OSError) and error.errno in _UNWRITABLE and not error.filename:
                _end_output(error)
            _say(f"gemmkit: {_message(error)}")
            sys.exit(FAILED)


def _refuse(error: click.UsageError) -> NoReturn:
    """Report wrong words on the command line as click does, in lines that fit the terminal."""
    from gemmkit.cli.output import Printer

    if type(error).show is not click.UsageError.show:
        # Newer versions of click print the help of a command without arguments in this way.
        raise error
    with suppress(OSError):
        out = Printer(err=True)
        if error.ctx is not None:
            words = error.ctx.command_path, error.ctx.help_option_names[-1]
            out.print(error.ctx.get_usage())
            out.print(f"Try '{words[0]} {words[1]}' for help.\n")
        out.print(f"Error: {error.format_message()}")
    sys.exit(error.exit_code)


def _say(text: str) -> None:
    """Print a message, unless there is nowhere to print it."""
    from gemmkit.cli.output import Printer

    with suppress(OSError):
        Printer(err=True).print(text)


def _end_output(error: OSError) -> NoReturn:
    """End because the output cannot be written: quietly where nobody reads it any more."""
    # What is still buffered would fail again when the interpreter ends.
    for stream in (sys.stdout, sys.stderr) if isinstance(error, BrokenPipeError) else (sys.stdout,):
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(CLOSED_PIPE)
    _say(f"gemmkit: cannot write the output: {error.strerror or error}")
    sys.exit(FAILED)


def _end_interrupted() -> NoReturn:
    click.echo("interrupted", err=True)
    sys.exit(INTERRUPTED)


def _message(error: Exception) -> str:
    if isinstance(error, GemmkitError):
        return str(error)
    if isinstance(error, OSError):
        what = "the operating system refused a request" if not error.filename else error.filename
        return f"{what}: {error.strerror or error}"
    return (
        f"unexpected {type(error).__name__}: {error}\n"
        "This is a bug in gemmkit; --debug shows the traceback."
    )


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gemmkit", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def gemmkit(debug: bool) -> None:
    """Write, check, explain, tune and ship CUDA matrix-multiply kernels; a GPU is needed only for
    timing.
    """


def main() -> None:
    """Run the command line and exit."""
    from gemmkit.cli.encoding import show_any_text

    # Python has none where the shell closed them.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    show_any_text()
    end_soon()
    show_warnings_plainly()
    try:
        gemmkit(prog_name="gemmkit")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            sys.stdout.flush()
            # Otherwise the interpreter would wait for threads that are still compiling.
            os._exit(INTERRUPTED)
        raise
    finally:
        end_at_once()


def show_warnings_plainly() -> None:
    """Print each warning once, as one sentence, without its source line in gemmkit."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        # Python forgets which warnings it has shown whenever filters change temporarily.
        if str(message) not in shown:
            shown.add(str(message))
            click.echo(f"gemmkit: {message}", err=True)

    warnings.showwarning = show
