"""The one driver call that every product makes, with as little on the way as Python allows.

All its arguments lie ready in memory: `cuLaunchKernelEx` takes grid, block and stream as a struct,
and the parameters of the kernel as one buffer.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


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
