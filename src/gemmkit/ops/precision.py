"""How precisely float32 is multiplied where a call does not say: the setting, for all threads and
for one.

A call settles it once, and what it leaves behind (an operator of PyTorch, a traced program) keeps
it.
"""

from __future__ import annotations

import threading
from contextlib import ContextDecorator
from typing import Any

from gemmkit.dtypes import ALL_PRECISIONS, PRECISIONS, Precision
from gemmkit.errors import UnsupportedType
from gemmkit.problem_fields import known_precision


class _Setting:
    """That of all threads; `touched` says whether anyone has ever changed it, here or in a thread.

    Attributes of a plain object, which `torch.compile` guards.
    """

    default: Precision = "ieee"
    touched = False


class _Entered(threading.local):
    """That of a thread, None outside of `precision`.

    An attribute that each thread's object has itself: of those of its class, `torch.compile` would
    not see a change.
    """

    def __init__(self) -> None:
        self.precision: Precision | None = None


setting = _Setting()
_entered = _Entered()


def get_precision() -> Precision:
    """The precision of float32 products of calls in this thread that do not give one."""
    return _entered.precision or setting.default


def set_precision(precision: str) -> None:
    """Set the precision of float32 products of calls that do not give one, in all threads.

    Within `gemmkit.precision`, that one goes first.

    Args:
        precision: "ieee" (the default), "fp32" or "tf32": see `GemmProblem`.

    Raises:
        UsageError: there is no such precision.
    """
    found = _known(precision)
    setting.touched = True
    setting.default = found


class _Within(ContextDecorator):
    """A thread's setting while a block or a decorated function runs; may be entered repeatedly."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._before: list[Precision | None] = []

    def __enter__(self) -> None:
        setting.touched = True
        self._before.append(_entered.precision)
        _entered.precision = self._precision

    def __exit__(self, *_: object) -> None:
        _entered.precision = self._before.pop()


def precision(precision: str) -> ContextDecorator:
    """Set the precision of float32 products of calls that do not give one, in this thread, while a
    `with` block or a decorated function runs.

    Args:
        precision: "ieee", "fp32" or "tf32": see `GemmProblem`.

    Raises:
        UsageError: there is no such precision.
    """
    return _Within(_known(precision))


def settled(given: Any, dtype: str) -> Precision:
    """The precision of a product of operands of a type: the given one, or else that of the setting,
    which is of float32 alone.

    Raises:
        UsageError: there is no such precision, or not of this type.
    """
    if given is None:
        return get_precision() if dtype == "float32" else "ieee"
    return _known(given, dtype)


def _known(given: Any, dtype: str = "float32") -> Precision:
    if given == "ieee" or (dtype == "float32" and given in PRECISIONS):
        found: Precision = given
        return found
    if not isinstance(given, str):
        raise UnsupportedType(
            f"precision = {given!r} is of type {type(given).__name__}: use one of "
            f"{', '.join(ALL_PRECISIONS)}"
        )
    return known_precision(given, dtype)
