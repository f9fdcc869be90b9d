"""All exceptions and warnings of gemmkit."""

from __future__ import annotations

from collections.abc import Iterable

from gemmkit.loading import load


class GemmkitError(Exception):
    """Base of all gemmkit errors; its text is one clear message for the user."""


class UsageError(GemmkitError, ValueError):
    """An invalid argument: an unknown kernel, board or config key, or an invalid shape."""


class UnsupportedType(UsageError, TypeError):
    """An argument type, or an element type of an array, that gemmkit does not accept."""


class UnsupportedProblem(GemmkitError):
    """A kernel or configuration refuses a problem; the text names the rule and an alternative."""


class CompileError(GemmkitError):
    """The CUDA compiler rejected a source; the text has its message and the source lines."""


class CompilerMissing(CompileError):
    """No CUDA compiler on this machine; the text says how to get one or do without it."""


class UnsupportedInstruction(GemmkitError):
    """A PTX instruction that the emulator does not support; the text names form and line."""


class SanitizerFinding(GemmkitError):
    """A kernel broke a rule of the machine (out-of-bounds access, deadlock, …)."""


class DeviceError(GemmkitError):
    """A device is missing, or an allocation, copy or launch on it failed.

    `printed` are the lines that a kernel had printed before it failed on the emulator, `place` is
    the file and line of the access that the emulator refused, and `steps` the limit of steps at
    which the emulator stopped a block that had not ended.
    """

    printed: tuple[str, ...] = ()
    place: tuple[str, int] | None = None
    steps: int | None = None


class FileError(GemmkitError, OSError):
    """A file that holds a matrix cannot be read or written; the text says where and why."""


class DistributedError(GemmkitError):
    """A product over several ranks failed: a rank ended, or asked for something else."""


class TuningError(GemmkitError):
    """The tuner or its store failed."""


class EmulationWarning(UserWarning):
    """No GPU is usable, so the emulator computes products of host arrays; the text says why."""


# Minimum similarity, 0 to 1, of a suggested name: `tanh` and `gelu_tanh` reach it, `tf32` and
# `float32` do not.
_ALIKE = 0.6


def nearest(given: object, known: Iterable[str], most: int = 2) -> list[str]:
    """The known names most similar to the given one, ignoring case; may be none."""
    load("difflib")
    import difflib

    names = {name.lower(): name for name in known}
    wanted = str(given).strip().lower()
    found = difflib.get_close_matches(wanted, names, n=most, cutoff=_ALIKE)
    if not found and wanted:
        # The similarity of short names says little.
        begun = [name for name in names if name.startswith(wanted)]
        found = begun[:1] or [name for name in names if _one_off(name, wanted)][:most]
    return [names[name] for name in found]


def _one_off(one: str, other: str) -> bool:
    """Whether two names of the same length differ in a single character."""
    return len(one) == len(other) and sum(map(str.__ne__, one, other)) == 1


def unknown_name(kind: str, given: object, known: Iterable[str], form: str = "") -> str:
    """The message for an unknown name: suggests the nearest one or two, otherwise lists all.

    Args:
        kind: the kind of thing, such as "board".
        given: the name.
        known: the vocabulary.
        form: a remark after the full list, such as ", joined by '+'".
    """
    names = list(known)
    near = nearest(given, names)
    if near:
        return f"unknown {kind} '{given}': did you mean {' or '.join(near)}?"
    return f"unknown {kind} '{given}': use one of {', '.join(names)}{form}"
