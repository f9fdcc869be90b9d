"""The one driver call that every product makes, with as little on the way as Python allows.

All its arguments lie ready in memory: `cuLaunchKernelEx` takes grid, block and stream as a struct,
and the parameters of the kernel as one buffer.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

# Keys of the list that describes a buffer of parameters, from cuda.h.
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0


class LaunchConfiguration(ctypes.Structure):
    """`CUlaunchConfig` of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Parameters:
    """A kernel's parameter space, and the list that tells the driver of it.

    `words` are its 64-bit words, to be patched; an address lies in one of them.
    """

    def __init__(self, packed: bytes) -> None:
        self._space = bytearray(packed + bytes(-len(packed) % 8))
        self._bytes = (ctypes.c_char * len(self._space)).from_buffer(self._space)
        self._size = ctypes.c_size_t(len(packed))
        self._list = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER,
            ctypes.addressof(self._bytes),
            _BUFFER_SIZE,
            ctypes.addressof(self._size),
            _END,
        )
        self.words = memoryview(self._space).cast("Q")
        self.pointer = ctypes.c_void_p(ctypes.addressof(self._list))


@cache
def library() -> ctypes.CDLL:
    """The driver's library; its calls let other Python threads run."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def launcher() -> Any:
    """`cuLaunchKernelEx(config, function, None, parameters)`: an error's number, or 0."""
    return library().cuLaunchKernelEx


def capture_query() -> Any:
    """`cuStreamIsCapturing(stream, status)`."""
    return library().cuStreamIsCapturing
