"""Copies and flags in the order of a stream that need no multiprocessor: for work under products.

A kernel that waited for a flag would hold a multiprocessor, which a persistent kernel beside it
counts on. The driver's stream memory operations wait and write without one, and its copies between
GPUs are made by copy engines.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from gemmkit.devices.driver import library
from gemmkit.errors import DeviceError

# CU_STREAM_WAIT_VALUE_GEQ of cuda.h: (int32)(*address - value) >= 0, so that counts may wrap.
_AT_LEAST = 0
# CU_STREAM_WRITE_VALUE_DEFAULT: what the stream did before is seen before the value.
_AFTER_ALL = 0

_MASK = 0xFFFFFFFF


@cache
def _calls() -> tuple[Any, Any, Any]:
    """`cuMemcpyAsync`, `cuStreamWriteValue32`, `cuStreamWaitValue32`, with typed arguments."""
    driver = library()
    copy, write, wait = (
        driver.cuMemcpyAsync,
        driver.cuStreamWriteValue32_v2,
        driver.cuStreamWaitValue32_v2,
    )
    copy.argtypes = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
    for each in (write, wait):
        each.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint
    return copy, write, wait


def _check(status: int, doing: str) -> None:
    if status:
        raise DeviceError(f"{doing} failed with the CUDA driver's error {status}")


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy memory, which may be another GPU's, in the order of a stream.

    Raises:
        DeviceError: the driver refuses it.
    """
    _check(_calls()[0](target, source, nbytes, stream), "a copy between GPUs")


def write_flag(address: int, value: int, stream: int) -> None:
    """Write a 4-byte flag, which may be another GPU's, after all that is on the stream.

    Raises:
        DeviceError: the driver refuses it.
    """
    _check(_calls()[1](stream, address, value & _MASK, _AFTER_ALL), "writing a flag")


def wait_for_flag(address: int, value: int, stream: int) -> None:
    """Have a stream wait until a flag of its own GPU has at least a value.

    Raises:
        DeviceError: the driver refuses it.
    """
    _check(_calls()[2](stream, address, value & _MASK, _AT_LEAST), "waiting for a flag")
