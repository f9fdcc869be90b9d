"""Memory that is another's, such as XLA's, on a stream that is said: gemmkit's own arrays of it.

Libraries read them by the DLPack protocol: `__cuda_array_interface__` has no name for bfloat16.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import Dtype
from gemmkit.ops.arrays import Glances
from gemmkit.ops.libraries import protocols
from gemmkit.ops.libraries.device_array import DeviceArray
from gemmkit.ops.operands import Operand, View, known_dtype

NAME = "DLPack"
WRITABLE = True
CURRENT_STREAMS = True

CPU, CUDA = 1, 2

# Codes of DLPack, and bits.
_TYPES = {
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "int32": (0, 32),
    "int64": (0, 64),
}
# What `__cuda_array_interface__` calls those that it has names for.
_NAMED = {"float16", "float32", "float64", "int32", "int64"}
_NAME = b"dltensor"


class _Device(Structure):
    _fields_ = (("kind", c_int32), ("ordinal", c_int32))


class _DataType(Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class _Managed(Structure):
    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _DELETER))


# Another owns the memory, and the array below the description: readers have nothing to give back.
_NOTHING = _DELETER(lambda _: None)


class DlpackArray:
    """An array in memory that is another's, for readers that finish while it and this live.

    Args:
        address: of element 0.
        view: sizes, and strides in elements.
        dtype: float32, float64, float16, bfloat16, float8_e4m3fn or float8_e5m2; of offsets int32
            or int64.
        device: DLPack's code of the place, and its ordinal.
    """

    GEMMKIT_LIBRARY = "dlpack"

    def __init__(self, address: int, view: View, dtype: str, device: tuple[int, int]) -> None:
        self.address, self.view, self.dtype, self.device = address, view, dtype, device
        self._described: _Managed | None = None

    def part(self, first: int, view: View) -> DlpackArray:
        """Some of the elements, from one on, as another array."""
        nbytes = _TYPES[self.dtype][1] // 8
        return DlpackArray(self.address + first * nbytes, view, self.dtype, self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device[0] != CUDA or self.dtype not in _NAMED:
            raise AttributeError("the CUDA array interface does not have it: use __dlpack__")
        kind = np.dtype(self.dtype)
        return {
            "version": 3,
            "shape": self.view.shape,
            "typestr": kind.str,
            "data": (self.address, False),
            "strides": tuple(step * kind.itemsize for step in self.view.strides),
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """The place, as DLPack has it."""
        return self.device

    def __dlpack__(self, **_options: Any) -> Any:
        """A capsule; whoever reads it launches on the stream that it was given apart from this."""
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (c_void_p, ctypes.c_char_p, c_void_p)
        if self._described is None:
            self._described = self._description()
        return make(ctypes.addressof(self._described), _NAME, None)

    def _description(self) -> _Managed:
        sides = len(self.view.shape)
        self._shape = (c_int64 * sides)(*self.view.shape)
        self._strides = (c_int64 * sides)(*self.view.strides)
        code, bits = _TYPES[self.dtype]
        kind, device = _DataType(code, bits, 1), _Device(*self.device)
        tensor = _Tensor(self.address, device, sides, kind, self._shape, self._strides, 0)
        return _Managed(tensor, None, _NOTHING)


# --- what the operations need -------------------------------------------------------------------


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    if not isinstance(array, DlpackArray) or array.device[0] != CUDA:
        return protocols.read(array, role)
    own = known_dtype(array.dtype, role)
    return Operand(array, array.address, array.view, own, array.device[1], writable=True)


def empty(
    like: Operand, shape: tuple[int, ...], dtype: Dtype, stream: int | None = None
) -> Operand:
    """As `Library.empty`."""
    if like.device is None:
        return protocols.empty(like, shape, dtype)
    return protocols.empty(
        like, shape, dtype, current_stream(like.device) if stream is None else stream
    )


empty_like = protocols.empty_like
copied = protocols.copied
assign = protocols.assign
finished = protocols.finished


class _Current(threading.local):
    """The stream of each thread; the default one until another is said."""

    stream = 0


_current = _Current()


def current_stream(device: int) -> int:  # noqa: ARG001 (all have the same)
    """As `GpuLibrary.current_stream`."""
    return _current.stream


@contextmanager
def on_stream(stream: int, device: int) -> Iterator[None]:  # noqa: ARG001
    """As `GpuLibrary.on_stream`."""
    before, _current.stream = _current.stream, stream
    try:
        yield
    finally:
        _current.stream = before


def wait_for(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.wait_for`: the stream that is said has them."""


def written_on(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.written_on`."""
    protocols.written_on(operand, stream)


# --- for warm calls -----------------------------------------------------------------------------


def watched() -> bool:
    """As `WarmLibrary.watched`: nothing is traced here."""
    return False


def glance(array: Any) -> tuple[int, Hashable]:
    """As `WarmLibrary.glance`."""
    return array.address, (array.view.shape, array.view.strides, array.dtype, array.device)


def glance_at_matrices(a: Any, b: Any, out: Any) -> tuple[int, int, int, Hashable]:
    """As `WarmLibrary.glance_at_matrices`."""
    (address_a, key_a), (address_b, key_b) = glance(a), glance(b)
    address, key = (0, None) if out is None else glance(out)
    return address_a, address_b, address, (key_a, key_b, key)


def glance_at_many(arrays: list[Any]) -> Glances:
    """As `WarmLibrary.glance_at_many`."""
    (kind,) = {(each.dtype, each.device) for each in arrays}
    return Glances(
        np.array([each.address for each in arrays], np.int64),
        tuple([each.view.shape for each in arrays]),
        tuple([each.view.strides for each in arrays]),
        kind,
    )


def new(like: Any, shape: tuple[int, ...], dtype: Dtype | None) -> tuple[Any, int]:
    """As `WarmLibrary.new`."""
    own = known_dtype(like.dtype, "the result") if dtype is None else dtype
    made = DeviceArray(shape, own, like.device[1], _current.stream)
    return made, made.memory.address


def new_matrices(
    like: Any, rows: list[int], columns: int, dtype: Dtype | None
) -> tuple[list[Any], NDArray[np.int64]]:
    """As `WarmLibrary.new_matrices`."""
    made = [new(like, (number, columns), dtype) for number in rows]
    return [array for array, _ in made], np.array([place for _, place in made], np.int64)


def overwritten(array: Any) -> None:
    """As `WarmLibrary.overwritten`: nothing to be noted."""


def temporary(nbytes: int, device: int) -> tuple[object, int] | None:  # noqa: ARG001
    """As `WarmLibrary.temporary`: its owner knows no graphs of gemmkit's."""
    return None
