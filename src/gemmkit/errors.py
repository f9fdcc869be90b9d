"""What can go wrong: every error that gemmkit raises on purpose, and what it warns of."""

from __future__ import annotations

from collections.abc import Iterable


class GemmkitError(Exception):
    """Base of all gemmkit errors; its text is one clear message for the user."""


class UsageError(GemmkitError, ValueError):
    """An argument that is not valid: an unknown kernel, board, config key or bad shape."""


class UnsupportedType(UsageError, TypeError):
    """An argument of a type, or an array with elements of a type, that gemmkit does not take."""


class UnsupportedProblem(GemmkitError):
    """A kernel or configuration refuses a problem; the text names the rule and what would work."""


class CompileError(GemmkitError):
    """The CUDA compiler rejected a source; the text holds its message and the source lines."""


class CompilerMissing(CompileError):
    """There is no CUDA compiler on this machine; the text says how to get or to do without one."""


class UnsupportedInstruction(GemmkitError):
    """The emulator met a PTX form outside its instruction table; the text names form and line."""


class SanitizerFinding(GemmkitError):
    """A kernel broke a rule of the machine (out-of-bounds access, deadlock, …)."""


class DeviceError(GemmkitError):
    """A device is missing, or it failed while it allocated, copied or ran.

    `printed` are the lines that a kernel had printed before it failed on the emulator.
    """

    printed: tuple[str, ...] = ()


class TuningError(GemmkitError):
    """The tuner or its store could not do what was asked."""


class EmulationWarning(UserWarning):
    """No GPU is usable, so the emulator computes products of host arrays; the text says why."""


# How alike two names are that may be meant for each other, from 0 to 1: `fp16` and `float16` are.
_ALIKE = 0.5


def nearest(given: object, known: Iterable[str], most: int = 2) -> list[str]:
    """The known names that are most like the given one, without regard to case, or none."""
    import difflib

    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(given).strip().lower(), names, n=most, cutoff=_ALIKE)
    return [names[name] for name in found]


def unknown_name(kind: str, given: object, known: Iterable[str], form: str = "") -> str:
    """The message for a name that is not in a vocabulary: the nearest one or two, or else all.

    Args:
        kind: what is named, such as "board".
        given: the name.
        known: the vocabulary.
        form: what else there is to say of it where all of it is listed, such as ", joined by '+'".
    """
    names = list(known)
    near = nearest(given, names)
    if near:
        return f"unknown {kind} '{given}': did you mean {' or '.join(near)}?"
    return f"unknown {kind} '{given}': use one of {', '.join(names)}{form}"
