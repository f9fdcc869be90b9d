"""The one warning that there is no GPU and that products are emulated."""

from __future__ import annotations

import sys
import warnings

from gemmkit.errors import EmulationWarning

# Packages between a user's line and the warning: our own, and those that call us back.
_BETWEEN = ("gemmkit", "contextlib", "functools", "torch", "jax")

_warned = False


def warn_once(reason: str | None) -> None:
    """Warn at the line that called gemmkit, the first time in this process.

    Args:
        reason: why there is no usable GPU.
    """
    global _warned
    if _warned:
        return
    _warned = True
    warnings.warn(
        f"no usable GPU: {reason}. Products of arrays in host memory run on gemmkit's emulator, a "
        "thousand times slower than on a GPU; pass device='emulator' to silence this warning",
        EmulationWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """The `stacklevel` of the nearest frame outside of gemmkit, as `warn_once` passes it."""
    level = 2
    frame = sys._getframe(level)
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    return level


def _is_between(module: str) -> bool:
    return module.partition(".")[0] in _BETWEEN
