"""Whether tensors have to be multiplied by an operator of PyTorch, rather than where they are.

That is so while `torch.compile` or another tracer records, and for tensors without memory.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


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
    tensors = [each for each in arrays if isinstance(each, torch.Tensor)]
    if not tensors:
        return False
    if _operator.running:
        return False
    from gemmkit.ops.libraries.torch import stand_ins, watched

    return watched() or stand_ins(tensors)
