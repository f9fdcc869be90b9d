"""`--against` of `gemmkit explain`: the kernel that the target is compared with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gemmkit.cli.target import find_rung, find_target, names_file, target_options
from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from gemmkit.kernels.kernel import Kernel
    from gemmkit.kernels.plan import TileConfig

# What two files may have in common; all else describes one kernel and its parameters.
_COMMON = ("grid", "block", "layout", "multiple_of", "include_dirs", "options")


@click.command("--against", add_help_option=False)
@target_options
def _described(**_: Any) -> None:
    """A file and its launch options, as `--against` takes them; it is parsed and never run."""


def find_other(
    text: str, target: Kernel, described: Mapping[str, Any]
) -> tuple[Kernel, TileConfig]:
    """The kernel and configuration that `--against` names.

    Args:
        text: `NAME:KEY=VALUE,…`, where an empty name is the target itself; or a file and its own
            launch options, as on a command line.
        target: the kernel that is explained.
        described: the options that describe it; a file has those of `_COMMON` unless it has others.

    Raises:
        UsageError: there is no such kernel or file, or an option is not valid.
    """
    from gemmkit.kernels.catalog import read_settings

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--against {text!r}: {str(error).lower()}") from None
    if not "".join(words).strip(" :"):
        raise UsageError("--against takes a rung, a file, or :KEY=VALUE for the target itself")
    if names_file(words[0]):
        other = _own(words, text, described)
        return _told_apart(other, target, words[1:]), other.configure({})
    name, _, changes = text.partition(":")
    kernel = find_rung(name) if name else target
    return kernel, kernel.configure(read_settings(changes) if changes else {})


def _own(words: list[str], text: str, described: Mapping[str, Any]) -> Kernel:
    """The kernel of a file that is followed by options."""
    try:
        context = _described.make_context("--against", list(words))
    except click.UsageError as error:
        raise UsageError(f"--against {text!r}: {error.format_message()}") from None
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    common = {name: described.get(name) for name in _COMMON}
    return find_target(**{**common, **given})


def _told_apart(other: Kernel, target: Kernel, options: list[str]) -> Kernel:
    """The kernel, by another name than the target's."""
    if other.name != target.name:
        return other
    files = [each.file.name if each.file is not None else "" for each in (other, target)]
    further = f"of {files[0]}" if files[0] != files[1] else " ".join(options) or "(again)"
    return replace(other, name=f"{other.name} {further}")
