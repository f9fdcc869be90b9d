"""Memory that is another's, such as XLA's, as an array that libraries read by the DLPack protocol.

`__cuda_array_interface__` has no name for bfloat16; DLPack has one.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

from gemmkit.ops.operands import View

CPU, CUDA = 1, 2

# Codes of DLPack, and bits.
_TYPES = {
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}
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
        dtype: float32, float64, float16, bfloat16, float8_e4m3fn or float8_e5m2.
        device: DLPack's code of the place, and its ordinal.
    """

    def __init__(self, address: int, view: View, dtype: str, device: tuple[int, int]) -> None:
        sides = len(view.shape)
        self.address, self.view, self.dtype, self.device = address, view, dtype, device
        self._shape = (c_int64 * sides)(*view.shape)
        self._strides = (c_int64 * sides)(*view.strides)
        code, bits = _TYPES[dtype]
        self._managed = _Managed(
            _Tensor(
                address,
                _Device(*device),
                sides,
                _DataType(code, bits, 1),
                self._shape,
                self._strides,
                0,
            ),
            None,
            _NOTHING,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """The place, as DLPack has it."""
        return self.device

    def part(self, first: int, view: View) -> DlpackArray:
        """Some of the elements, from one on, as another array."""
        nbytes = _TYPES[self.dtype][1] // 8
        return DlpackArray(self.address + first * nbytes, view, self.dtype, self.device)

    def __dlpack__(self, **_options: Any) -> Any:
        """A capsule; whoever reads it launches on the stream that it was given apart from this."""
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (c_void_p, ctypes.c_char_p, c_void_p)
        return make(ctypes.addressof(self._managed), _NAME, None)
