"""Whether tensors have to be multiplied by an operator of PyTorch, rather than where they are.

That is so while `torch.compile` or another tracer records, and for tensors without memory. What
`torch.fx.symbolic_trace` passes through functions are no tensors at all: calls are recorded whole.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gemmkit.loading import load


def compiling() -> bool:
    """Whether `torch.compile` is tracing the caller."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_dynamo_compiling())


class _Operator(threading.local):
    """Whether a thread is inside an operator, where tensors have memory in any mode."""

    running = False


_operator = _Operator()


@contextmanager
def inside_operator() -> Iterator[None]:
    """Have products be computed rather than handed to an operator."""
    before, _operator.running = _operator.running, True
    try:
        yield
    finally:
        _operator.running = before


def needs_operator(arrays: Iterable[Any]) -> bool:
    """Whether there are tensors among some arrays that only PyTorch's dispatcher can multiply."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_dynamo_compiling():
        # torch.compile takes NumPy's arrays for tensors.
        return any(isinstance(each, (torch.Tensor, np.ndarray)) for each in arrays)
    arrays = list(arrays)
    if symbolic(arrays):
        return True
    tensors = [each for each in arrays if isinstance(each, torch.Tensor)]
    if not tensors:
        return False
    if _operator.running:
        return False
    load("gemmkit.ops.libraries.torch")
    from gemmkit.ops.libraries.torch import stand_ins, watched

    return watched() or stand_ins(tensors)


# --- torch.fx -----------------------------------------------------------------------------------

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def symbolic(arguments: Iterable[Any]) -> bool:
    """Whether some arguments, or members of lists among them, stand for values of `torch.fx`."""
    torch = sys.modules.get("torch")
    return torch is not None and any(True for _ in _symbols(arguments, torch.fx.Proxy))


def _symbols(arguments: Iterable[Any], kind: type) -> Iterator[Any]:
    for each in arguments:
        if isinstance(each, kind):
            yield each
        elif isinstance(each, (list, tuple)) and any(
            # Of thousands of arrays, their types are looked at once.
            issubclass(own, (kind, list, tuple))
            for own in set(map(type, each))
        ):
            yield from _symbols(each, kind)


def record(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    *,
    writes: Iterable[str] = ("out", "auxiliary"),
) -> Any:
    """What stands for the result of a call, which the graph that is being traced makes later.

    `writes` are the parameters that it overwrites, for which it stays in a graph that does not use
    its result.
    """
    import torch

    given = signature(function).bind(*arguments, **options).arguments
    if any(given.get(name) is not None for name in writes):
        torch.fx.node.has_side_effect(function)
    symbols = tuple(_symbols(given.values(), torch.fx.Proxy))
    return torch.overrides.handle_torch_function(function, symbols, *arguments, **options)


def recordable(
    *writes: str,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Have `torch.fx` record the calls of a function, which overwrites these arguments, whole."""

    def of(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
            if not compiling() and symbolic((*arguments, *options.values())):
                found: Result = record(call, arguments, options, writes=writes)
                return found
            return function(*arguments, **options)

        return call

    return of
