"""How precisely float32 is multiplied where a call does not say: the setting, for all threads and
within blocks.

A call settles it once, and what it leaves behind (an operator of PyTorch, a traced program) keeps
it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

from gemmkit.dtypes import PRECISIONS, Precision, full_type_name, precisions_of
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.tracing import compiling
from gemmkit.problem_fields import known_precision

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Setting:
    """That of all threads; `touched` says whether anyone has ever changed it, here or by a block.

    Attributes of a plain object, which `torch.compile` guards.
    """

    default: Precision = "ieee"
    touched = False


class _SeenByCompiler(threading.local):
    """The blocks that a thread entered or left last: `torch.compile` does not trace context
    variables.

    An attribute that each thread's object has itself: of those of its class, `torch.compile` would
    not see a change.
    """

    def __init__(self) -> None:
        self.blocks: tuple[Precision, ...] = ()


setting = _Setting()
# The precisions of the blocks that a thread or a task is in, outermost first. The blocks themselves
# keep nothing: several threads and tasks may be in the same one, and leave it in any order.
_entered: ContextVar[tuple[Precision, ...]] = ContextVar("gemmkit.precision", default=())
_seen = _SeenByCompiler()


def _blocks() -> tuple[Precision, ...]:
    return _seen.blocks if compiling() else _entered.get()


def _change(blocks: tuple[Precision, ...]) -> None:
    setting.touched = True
    _seen.blocks = blocks
    if not compiling():
        _entered.set(blocks)


def get_precision() -> Precision:
    """The precision of float32 products of calls in this thread, or task of asyncio, that do not
    give one."""
    blocks = _blocks()
    return blocks[-1] if blocks else setting.default


def set_precision(precision: str) -> None:
    """Set the precision of float32 products of calls that do not give one, in all threads.

    Within `gemmkit.precision`, that one goes first.

    Args:
        precision: "ieee" (the default), "fp32" or "tf32": see `GemmProblem`.

    Raises:
        UsageError: there is no such precision of float32.
    """
    found = _known_setting(precision)
    setting.touched = True
    setting.default = found


class _Within(ContextDecorator):
    """The setting while a block or a decorated function runs; may be entered repeatedly."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision

    def __enter__(self) -> None:
        _change((*_blocks(), self._precision))

    def __exit__(self, *_: object) -> None:
        _change(_blocks()[:-1])

    def __call__(self, function: _Function) -> _Function:
        """The function with its body, or the body of a coroutine, in the block.

        Raises:
            UnsupportedType: it is a generator function, whose body runs in between the caller's.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UnsupportedType(
                f"'{function.__qualname__}' is a generator function, whose body runs after the "
                "call has returned: use `with gemmkit.precision(…)` inside of it"
            )
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @wraps(function)
        async def within(*args: Any, **options: Any) -> Any:
            with self:
                return await function(*args, **options)

        return cast(_Function, within)


def precision(precision: str) -> ContextDecorator:
    """Set the precision of float32 products of calls that do not give one, in this thread or task
    of asyncio, while a `with` block or a decorated function runs.

    Tasks that are created in a block keep its precision. `torch.compile` sees the block that the
    thread entered or left last, whichever task it is of.

    Args:
        precision: "ieee", "fp32" or "tf32": see `GemmProblem`.

    Raises:
        UsageError: there is no such precision of float32.
    """
    return _Within(_known_setting(precision))


def settled(given: Any, dtype: str) -> Precision:
    """The precision of a product of operands of a type, by any of its names: the given one, or else
    that of the setting, which is of float32 alone.

    Raises:
        UsageError: there is no such precision, or not of this type.
    """
    if given is None:
        return get_precision() if dtype == "float32" else "ieee"
    return _known(given, full_type_name(dtype))


def _known_setting(given: Any) -> Precision:
    """A precision of float32, which the setting is for."""
    if isinstance(given, str) and given.strip().lower() == "fast":
        raise UsageError(
            f"precision '{given}' is of 8-bit types, and the setting of float32: use one of "
            f"{', '.join(PRECISIONS)} here, and give '{given}' to a call"
        )
    return _known(given)


def _known(given: Any, dtype: str = "float32") -> Precision:
    if given == "ieee" or (dtype == "float32" and given in PRECISIONS):
        found: Precision = given
        return found
    if not isinstance(given, str):
        raise UnsupportedType(
            f"precision = {given!r} is of type {type(given).__name__}: use one of "
            f"{', '.join(precisions_of(dtype))}"
        )
    return known_precision(given, dtype)
