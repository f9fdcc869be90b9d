"""Numba's device arrays, read through the array interface that they share with others."""

from __future__ import annotations

from typing import Any

from gemmkit.errors import UnsupportedType
from gemmkit.ops.libraries import protocols
from gemmkit.ops.operands import Operand

NAME = "Numba"
WRITABLE = True
CURRENT_STREAMS = False

assign = protocols.assign
copied = protocols.copied
current_stream = protocols.current_stream
empty = protocols.empty
empty_like = protocols.empty_like
on_stream = protocols.on_stream
wait_for = protocols.wait_for
written_on = protocols.written_on


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    if not hasattr(array, "__cuda_array_interface__"):
        raise UnsupportedType(
            f"{role} has type {type(array).__name__}, which is not an array on a GPU"
        )
    return protocols.read(array, role)


def finished(result: Operand) -> Any:
    """As `Library.finished`."""
    from numba import cuda

    return cuda.as_cuda_array(result.array)
