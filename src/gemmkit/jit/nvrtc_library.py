"""NVRTC's C interface through ctypes, so that compiling needs neither a driver nor bindings."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p

from gemmkit.errors import CompileError
from gemmkit.loading import first_use, load

# Values of `nvrtcResult`.
SUCCESS, INVALID_OPTION, COMPILATION = 0, 5, 6

_STRINGS = POINTER(c_char_p)
# All return an `nvrtcResult`. Without declared types, ctypes would pass pointers as 32-bit numbers.
_ARGUMENTS = {
    "nvrtcVersion": (POINTER(c_int), POINTER(c_int)),
    "nvrtcGetNumSupportedArchs": (POINTER(c_int),),
    "nvrtcGetSupportedArchs": (POINTER(c_int),),
    "nvrtcCreateProgram": (POINTER(c_void_p), c_char_p, c_char_p, c_int, _STRINGS, _STRINGS),
    "nvrtcDestroyProgram": (POINTER(c_void_p),),
    "nvrtcAddNameExpression": (c_void_p, c_char_p),
    "nvrtcCompileProgram": (c_void_p, c_int, _STRINGS),
    "nvrtcGetLoweredName": (c_void_p, c_char_p, _STRINGS),
    **{
        f"nvrtcGet{output}{suffix}": (c_void_p, kind)
        for output in ("ProgramLog", "PTX", "CUBIN")
        for suffix, kind in (("Size", POINTER(c_size_t)), ("", c_char_p))
    },
}


class NvrtcProgram:
    """A translation unit; valid within `NvrtcLibrary.program`."""

    def __init__(self, library: NvrtcLibrary, handle: c_void_p) -> None:
        self._library, self._handle = library, handle

    def add_name_expression(self, name: bytes) -> None:
        """Have a template instance compiled, and its symbol kept."""
        self._library.call("nvrtcAddNameExpression", self._handle, name)

    def compile(self, flags: Sequence[bytes]) -> int:
        """Compile; returns the `nvrtcResult`."""
        with first_use():
            return self._library.status(
                "nvrtcCompileProgram", self._handle, len(flags), _strings(flags)
            )

    def lowered_name(self, name: bytes) -> str:
        """The symbol of a name expression."""
        symbol = c_char_p()
        self._library.call("nvrtcGetLoweredName", self._handle, name, byref(symbol))
        return (symbol.value or b"").decode()

    def log(self) -> bytes:
        """What the compiler and ptxas said; each part ends with a zero byte."""
        return self._output("ProgramLog")

    def ptx(self) -> bytes:
        """The PTX, with a zero byte at its end."""
        return self._output("PTX")

    def cubin(self) -> bytes:
        """The binary for an architecture."""
        return self._output("CUBIN")

    def _output(self, name: str) -> bytes:
        size = c_size_t()
        self._library.call(f"nvrtcGet{name}Size", self._handle, byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._library.call(f"nvrtcGet{name}", self._handle, buffer)
        return buffer.raw[: size.value]


class NvrtcLibrary:
    """NVRTC's shared library, loaded from its path.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it is too old to have all functions.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
        library.nvrtcGetErrorString.argtypes = (c_int,)
        library.nvrtcGetErrorString.restype = c_char_p
        self._library = library

    def version(self) -> str:
        """Major and minor version, such as `13.5`."""
        major, minor = c_int(), c_int()
        self.call("nvrtcVersion", byref(major), byref(minor))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> tuple[int, ...]:
        """The compute capabilities that it compiles for, times ten, lowest first."""
        count = c_int()
        self.call("nvrtcGetNumSupportedArchs", byref(count))
        found = (c_int * count.value)()
        self.call("nvrtcGetSupportedArchs", found)
        return tuple(found)

    @contextmanager
    def program(
        self, source: bytes, file_name: bytes, headers: Mapping[bytes, bytes]
    ) -> Iterator[NvrtcProgram]:
        """A program of a source and of headers by the names under which they are included."""
        handle = c_void_p()
        self.call(
            "nvrtcCreateProgram",
            byref(handle),
            source,
            file_name,
            len(headers),
            _strings(list(headers.values())),
            _strings(list(headers)),
        )
        try:
            yield NvrtcProgram(self, handle)
        finally:
            self.status("nvrtcDestroyProgram", byref(handle))

    def status(self, function: str, *arguments: object) -> int:
        """Call a function; returns its `nvrtcResult`."""
        return int(getattr(self._library, function)(*arguments))

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that has to succeed.

        Raises:
            CompileError: it did not; the text has the name of the error.
        """
        status = self.status(function, *arguments)
        if status != SUCCESS:
            raise CompileError(f"{function} failed: {self.error_name(status)}")

    def error_name(self, status: int) -> str:
        """The name of an `nvrtcResult`, such as `NVRTC_ERROR_OUT_OF_MEMORY`."""
        return bytes(self._library.nvrtcGetErrorString(status)).decode()


def open_library() -> NvrtcLibrary:
    """NVRTC from NVIDIA's wheel, a CUDA toolkit or the system's library path.

    Raises:
        ImportError: there is no `cuda.pathfinder`, which knows these places.
        RuntimeError: there is no NVRTC in any of them.
        OSError: the library cannot be loaded.
        AttributeError: it is too old.
    """
    load("cuda.pathfinder")
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    if path is None:
        raise OSError("its library has no known path")
    return NvrtcLibrary(path)


def _strings(texts: Sequence[bytes]) -> ctypes.Array[c_char_p]:
    return (c_char_p * len(texts))(*texts)
