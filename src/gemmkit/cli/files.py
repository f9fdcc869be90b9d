"""Options that name files, and the command class that keeps each output off every other file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from gemmkit.errors import UsageError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# Where options that are read by their callbacks leave the files that they came from.
READ_FILES = "gemmkit.read_files"


class InputFile(click.Path):
    """A file that a command reads."""


class OutputFile(click.Path):
    """A file that a command writes; `-` is standard output where the command allows that."""


class StoreFile(OutputFile):
    """A file that a command reads and adds to."""


class OutputFolder(click.Path):
    """A folder that a command writes pictures into."""


class Verb(click.Command):
    """A command that refuses to write over a file that it reads, or that it writes already."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check the outputs, then run the command.

        Raises:
            UsageError: an output is an input, or another output.
        """
        _check_outputs(self, ctx)
        return super().invoke(ctx)

    def get_help(self, ctx: click.Context) -> str:
        """The help, in the characters that standard output has."""
        return shown_help(super().get_help(ctx))


def shown_help(text: str) -> str:
    """A help text in the characters of standard output; click would send UTF-8 in any case."""
    from gemmkit.cli.encoding import HANDLER, nearest

    if getattr(sys.stdout, "errors", None) != HANDLER:
        return text
    return nearest(text, sys.stdout.encoding)


def _check_outputs(command: click.Command, ctx: click.Context) -> None:
    values = [
        (each.opts[0], each.type, Path(ctx.params[each.name]))
        for each in command.params
        if each.name is not None
        and isinstance(each.type, InputFile | OutputFile | OutputFolder)
        and ctx.params.get(each.name) not in (None, "", "-")
    ]
    outputs = [(name, path) for name, kind, path in values if isinstance(kind, OutputFile)]
    folders = [(name, path) for name, kind, path in values if isinstance(kind, OutputFolder)]
    if not (outputs or folders):
        return
    inputs = [
        *((path, f"the file of {name}") for name, kind, path in values if type(kind) is InputFile),
        *((path, "the file of --groups") for path in ctx.meta.get(READ_FILES, ())),
        *_target_files(ctx.params),
    ]
    for number, (name, path) in enumerate(outputs):
        for read, what in inputs:
            if _same(path, read):
                raise UsageError(f"{name} would overwrite {read}, {what}: name another file")
        for other, theirs in outputs[:number]:
            if _same(path, theirs):
                raise UsageError(f"{other} and {name} would both write {path}: name two files")
    suffix = f".{ctx.params.get('form')}"
    for name, folder in folders:
        for path, what in (*inputs, *((path, f"the file of {other}") for other, path in outputs)):
            if path.suffix.lower() == suffix and _same(path.parent, folder):
                raise UsageError(
                    f"{name} could overwrite {path}, {what}: name another folder or file"
                )


def _target_files(params: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """The user's kernel and the files that it includes, each with what it is."""
    from gemmkit.cxx.includes import included_files

    target = Path(params.get("target") or "")
    if not target.is_file():
        return
    yield target, "the kernel's own file"
    own = [each.removeprefix("-I") for each in params.get("options") or () if each[:2] == "-I"]
    searched = (target.parent, *(params.get("include_dirs") or ()), *own)
    folders = [str(Path(each).resolve()) for each in searched]
    try:
        text = target.read_text("utf-8", errors="replace")
    except OSError:
        # Loading the kernel says so.
        return
    for path in included_files(text, target.parent.resolve(), folders):
        yield path, f"which {target.name} includes"


def _same(one: Path, other: Path) -> bool:
    """Whether two paths name one file or folder; a device such as /dev/null is nobody's."""
    try:
        if one.exists() and other.exists():
            return (one.is_file() or one.is_dir()) and one.samefile(other)
        return one.resolve() == other.resolve()
    except (OSError, RuntimeError, ValueError):
        # Paths that cannot be looked up are refused where they are opened.
        return False


def writable_file(_: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse what cannot be written before a long run."""
    if path is None:
        return None
    if path.name in ("", "-"):
        raise UsageError(f"{option.opts[0]} takes the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied")
    return path


def writable_folder(_: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a folder that cannot be written or made before a long run."""
    if path is None:
        return None
    there = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        raise UsageError(f"{option.opts[0]} takes the name of a folder: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write into {there}: permission denied")
    return path


def read_file_option(name: str, parameter: str, text: str) -> Decorator:
    """An option that names a file to read, which need not exist."""
    path = InputFile(path_type=Path, dir_okay=False)
    return click.option(name, parameter, type=path, metavar="FILE", help=text)


def store_option(parameter: str, text: str) -> Decorator:
    """`--store FILE`, which is read and added to, and need not exist."""
    path = StoreFile(path_type=Path, dir_okay=False)
    return click.option("--store", parameter, type=path, metavar="FILE", help=text)


def written_file_option(name: str, parameter: str, text: str) -> Decorator:
    """An option that names a file to write, which is checked before the run."""
    path = OutputFile(path_type=Path, dir_okay=False)
    return click.option(
        name, parameter, type=path, metavar="FILE", callback=writable_file, help=text
    )
