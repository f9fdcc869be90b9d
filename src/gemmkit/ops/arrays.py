"""Which library an array is of, and its elements as an operand; no library is imported before."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from gemmkit.dtypes import Dtype
from gemmkit.errors import UnsupportedType
from gemmkit.loading import load
from gemmkit.ops.operands import Operand

# Our modules for the classes of other packages, and for what follows a protocol.
_PACKAGES = {
    "numpy": "numpy",
    "torch": "torch",
    "cupy": "cupy",
    "jax": "jax",
    "jaxlib": "jax",
    "numba": "numba",
    "numba_cuda": "numba",
}
_PROTOCOLS = ("__cuda_array_interface__", "__dlpack__")
_NDARRAY_UFUNC = np.ndarray.__array_ufunc__


class Library(Protocol):
    """What the operations need of a library of arrays: a module of `gemmkit.ops.libraries`.

    `WRITABLE` says whether arrays may be changed once they are made.
    """

    NAME: str
    WRITABLE: bool

    def read(self, array: Any, role: str) -> Operand:
        """Where the array's elements are; `role` is what a message calls it.

        Raises:
            UsageError: it cannot be an operand.
        """

    def empty(
        self, like: Operand, shape: tuple[int, ...], dtype: Dtype, stream: int | None = None
    ) -> Operand:
        """A new row-major array where `like` is, from the library's pool.

        On a GPU it is for use on a stream, by default on the library's current one.
        """

    def finished(self, result: Operand) -> Any:
        """A result that `empty` made, as users get it."""


class GpuLibrary(Library, Protocol):
    """What they need besides, of one whose arrays can be on a GPU.

    `CURRENT_STREAMS` says whether the library has a current stream, on which it works.
    """

    CURRENT_STREAMS: bool

    def empty_like(self, target: Operand, *, by_columns: bool) -> Operand:
        """A new array of the same shape and type, row-major or with column-major matrices."""

    def copied(self, operand: Operand, shape: tuple[int, ...], *, by_columns: bool) -> Operand:
        """A copy, repeated to a shape, row-major or with each matrix column-major."""

    def assign(self, target: Operand, source: Operand) -> None:
        """Copy elements into an array that may be strided; the source may broadcast to it."""

    def current_stream(self, device: int) -> int:
        """The handle of the stream on which the library works."""

    def on_stream(self, stream: int, device: int) -> AbstractContextManager[None]:
        """Make it the current one for a while."""

    def wait_for(self, operand: Operand, stream: int) -> None:
        """Have a stream wait until the operand's elements are there, if its library does not."""

    def written_on(self, operand: Operand, stream: int) -> None:
        """Take note of the stream on which an operand is being written."""


class Glances(NamedTuple):
    """What many arrays look like: where each is, and its shape and strides in elements.

    `kind` is their type of elements and their device, which are those of all.
    """

    addresses: NDArray[np.int64]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    kind: Hashable


class WarmLibrary(GpuLibrary, Protocol):
    """And of one whose calls are to cost little."""

    def watched(self) -> bool:
        """Whether a tracer of the library's must see what is done to its arrays."""

    def glance(self, array: Any) -> tuple[int, Hashable]:
        """The address, and all else on which a launch depends."""

    def glance_at_matrices(self, a: Any, b: Any, out: Any) -> tuple[int, int, int, Hashable]:
        """The same of two arrays and of the result, or None, in one call; None is at address 0."""

    def glance_at_strides(self, a: Any, b: Any, out: Any) -> tuple[int, int, int, Hashable]:
        """As `glance_at_matrices`, but for what the caller knows to be the same: the shapes, types
        and devices of three arrays without gradients.

        Raises:
            RuntimeError: an operand has to be read by the slow way.
        """

    def glance_at_many(self, arrays: list[Any]) -> Glances:
        """What `glance` tells of all arrays, at once.

        Raises:
            TypeError, ValueError: they are not all of one kind.
        """

    def new(self, like: Any, shape: tuple[int, ...], dtype: Dtype | None) -> tuple[Any, int]:
        """A new array on the same device, by default of the same type, and its address."""

    def new_matrices(
        self, like: Any, rows: list[int], columns: int, dtype: Dtype | None
    ) -> tuple[list[Any], NDArray[np.int64]]:
        """New matrices of as many columns each, as `new` makes them, and their addresses.

        They may share one allocation, with none between them if `rows` are multiples of 16 bytes.
        """

    def overwritten(self, array: Any) -> None:
        """Take note, before a launch, that it replaces an array's elements.

        Raises:
            UsageError: they may not be replaced now.
        """

    def temporary(self, nbytes: int, device: int) -> tuple[object, int] | None:
        """Memory of the graph into which the current stream is being captured, and its address.

        None if the library keeps no memory apart for graphs.
        """


def library_of(array: object, role: str) -> Library:
    """The library that an array is of.

    Raises:
        UnsupportedType: it is not an array, or of a class that gives ufuncs a meaning of its own.
    """
    name = _library_name(array)
    if name is None and type(array).__name__ == "PreparedOperand":
        raise UnsupportedType(
            f"{role} is a prepared operand, which only gemmkit.matmul and gemm take, as a or b: "
            "give its array"
        )
    if name is None and type(array).__name__ == "PreparedGroups":
        raise UnsupportedType(
            f"{role} is what prepare_groups made, which only grouped_matmul takes, as bs"
        )
    if name is None:
        raise UnsupportedType(
            f"{role} has type {type(array).__name__}; gemmkit takes arrays of NumPy, PyTorch, "
            "CuPy, "
            "JAX and Numba, and whatever has __cuda_array_interface__ or __dlpack__"
        )
    if name in ("numpy", "protocols") and _overrides_ufuncs(type(array)):
        raise UnsupportedType(
            f"{role} has type {type(array).__name__}, which defines __array_ufunc__: what it "
            "adds to "
            "its elements, such as units, would be lost; give them as a plain array"
        )
    return _module(name)


def _overrides_ufuncs(kind: type) -> bool:
    """Whether NumPy would leave a product of this class to the class."""
    return getattr(kind, "__array_ufunc__", _NDARRAY_UFUNC) is not _NDARRAY_UFUNC


@cache
def _module(name: str) -> Library:
    module = f"gemmkit.ops.libraries.{name}"
    load(module)
    return cast(Library, import_module(module))


def _library_name(array: object) -> str | None:
    # What gemmkit gives another's memory as.
    own: str | None = getattr(type(array), "GEMMKIT_LIBRARY", None)
    if own is not None:
        return own
    for base in type(array).__mro__:
        name = _PACKAGES.get(base.__module__.partition(".")[0])
        if name is not None:
            return name
    return "protocols" if any(hasattr(array, each) for each in _PROTOCOLS) else None


class _Memory:
    """Elements as NumPy finds them; their bits, since they are only moved or compared in place."""

    def __init__(self, operand: Operand) -> None:
        item = operand.item_bytes
        self.kept = operand.array
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"=u{item}",
            "shape": operand.view.shape,
            "strides": tuple(step * item for step in operand.view.strides),
            "data": (operand.address, not operand.writable),
        }


def bits(operand: Operand) -> NDArray[Any]:
    """The elements of an operand as unsigned integers of their size, unaligned or byte-swapped too.

    Those of an operand on a GPU may not be touched, but their addresses can be asked about.
    """
    if operand.elements is not None:
        return operand.elements
    if operand.view.empty:
        return np.empty(operand.view.shape, f"u{operand.item_bytes}")
    return np.asarray(_Memory(operand))


def note_overwritten(*arrays: Any) -> None:
    """Have the libraries of some arrays take note that their elements are being replaced.

    None stands for no array.

    Raises:
        UsageError: as `WarmLibrary.overwritten`.
    """
    for array in arrays:
        note = None if array is None else getattr(library_of(array, ""), "overwritten", None)
        if note is not None:
            note(array)
