"""The C structures by which XLA calls a foreign function, read from Python with ctypes.

They are those of `xla/ffi/api/c_api.h`, a C interface with versions that jaxlib carries: fields are
only ever added at a structure's end. So a Python function can be XLA's handler, without a compiled
extension, on the stream and on the buffers that XLA gives it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmkit.errors import DeviceError, GemmkitError

if TYPE_CHECKING:
    from ctypes import _Pointer

# What is read here is the same from 0.1 on, which is what a jaxlib has that does not say.
MAJOR_VERSION, OLDEST_MINOR_VERSION = 0, 1

_METADATA_EXTENSION = 1
_EXECUTE = 3
_STRING = 4
_INVALID_ARGUMENT, _INTERNAL = 3, 13

# XLA_FFI_DataType of what gemmkit multiplies, and of offsets.
_DTYPES = {
    4: "int32",
    5: "int64",
    10: "float16",
    11: "float32",
    12: "float64",
    16: "bfloat16",
    19: "float8_e5m2",
    20: "float8_e4m3fn",
}


class _Extension(Structure):
    pass


_Extension._fields_ = [
    ("struct_size", c_size_t),
    ("type", c_int),
    ("next", POINTER(_Extension)),
]


class _Version(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("major_version", c_int),
        ("minor_version", c_int),
    )


class _Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("api_version", _Version), ("traits", ctypes.c_uint32))


class _MetadataExtension(Structure):
    _fields_ = (("base", _Extension), ("metadata", POINTER(_Metadata)))


class _ErrorArgs(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("message", c_char_p),
        ("code", c_int),
    )


class _StreamArgs(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("context", c_void_p),
        ("stream", c_void_p),
    )


class _DestroyArgs(Structure):
    _fields_ = (("struct_size", c_size_t), ("extension_start", c_void_p), ("error", c_void_p))


_CREATE_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArgs))
_DESTROY_ERROR = ctypes.CFUNCTYPE(None, POINTER(_DestroyArgs))
_GET_STREAM = ctypes.CFUNCTYPE(c_void_p, POINTER(_StreamArgs))


class _Api(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("api_version", _Version),
        ("internal_api", c_void_p),
        ("create_error", _CREATE_ERROR),
        ("error_message", c_void_p),
        ("destroy_error", _DESTROY_ERROR),
        ("register_handler", c_void_p),
        ("get_stream", _GET_STREAM),
    )


class _Buffer(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class _Buffers(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("items", POINTER(POINTER(_Buffer))),
    )


class _Text(Structure):
    _fields_ = (("bytes", c_void_p), ("size", c_size_t))


class _Attributes(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(_Text))),
        ("items", POINTER(c_void_p)),
    )


class _CallFrame(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(_CallFrame))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A row-major array of XLA's: where it is, in host or GPU memory, its sizes and its type."""

    address: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call by XLA: what to read, what to write, and the texts given as attributes."""

    arguments: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    attributes: dict[str, str]
    _frame: Any

    def stream(self) -> int:
        """The CUDA stream (a `cudaStream_t`) that the work belongs on.

        Raises:
            DeviceError: the call is not one on a GPU.
        """
        api = self._frame.api.contents
        told = _StreamArgs(ctypes.sizeof(_StreamArgs), None, self._frame.context, None)
        error = api.get_stream(ctypes.byref(told))
        if error:
            api.destroy_error(ctypes.byref(_DestroyArgs(ctypes.sizeof(_DestroyArgs), None, error)))
            raise DeviceError("XLA gave no CUDA stream for a product on the GPU")
        return int(told.stream or 0)


def make_handler(work: Callable[[Call], None]) -> Any:
    """A C function for XLA that does `work`; whatever that raises becomes XLA's error.

    XLA may call it until the process ends: keep the object as long.
    """

    def handle(pointer: _Pointer[_CallFrame]) -> int | None:
        frame = pointer.contents
        try:
            if frame.extension_start and frame.extension_start.contents.type == _METADATA_EXTENSION:
                _answer_metadata(frame)
            elif frame.stage == _EXECUTE:
                work(_read(frame))
        except GemmkitError as error:
            return _error(frame, str(error), _INVALID_ARGUMENT)
        except BaseException as error:
            # Whatever passed through C would be printed, and the result taken as computed.
            return _error(frame, f"{type(error).__name__}: {error}", _INTERNAL)
        return None

    return HANDLER(handle)


def _answer_metadata(frame: Any) -> None:
    """Tell XLA which version of its interface the handler is for: that of this jaxlib."""
    extension = ctypes.cast(frame.extension_start, POINTER(_MetadataExtension)).contents
    told = extension.metadata.contents
    told.api_version.major_version = MAJOR_VERSION
    told.api_version.minor_version = (
        frame.api.contents.api_version.minor_version if frame.api else OLDEST_MINOR_VERSION
    )
    told.traits = 0


def _error(frame: Any, message: str, code: int) -> int | None:
    told = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, message.encode(), code)
    made: int | None = frame.api.contents.create_error(ctypes.byref(told))
    return made


def _read(frame: Any) -> Call:
    attributes = frame.attributes
    texts = {
        _text(attributes.names[index].contents): _text(
            ctypes.cast(attributes.items[index], POINTER(_Text)).contents
        )
        for index in range(attributes.size)
        if attributes.types[index] == _STRING
    }
    return Call(_buffers(frame.arguments), _buffers(frame.results), texts, frame)


def _text(span: Any) -> str:
    return ctypes.string_at(span.bytes, span.size).decode()


def _buffers(given: Any) -> tuple[Buffer, ...]:
    items = (given.items[index].contents for index in range(given.size))
    return tuple(
        Buffer(
            item.data or 0,
            tuple(item.dims[: item.rank]),
            _DTYPES.get(item.dtype, f"XLA's type {item.dtype}"),
        )
        for item in items
    )
