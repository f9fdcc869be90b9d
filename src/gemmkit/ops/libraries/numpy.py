"""NumPy's arrays: in host memory, read through their array interface."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gemmkit.dtypes import Dtype, is_narrow
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.operands import Operand, View, known_dtype, library_name

NAME = "NumPy"
WRITABLE = True


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    if _is_masked(array):
        raise UnsupportedType(
            f"{role} is a masked array, whose mask would be lost: use its filled()"
        )
    plain = np.asarray(array)
    dtype, item = known_dtype(plain.dtype.name, role), plain.itemsize
    writable, elements = bool(plain.flags.writeable), None
    if plain.dtype.isnative and not any(step % item for step in plain.strides):
        view = View(plain.shape, tuple(step // item for step in plain.strides))
    else:
        order = ">" if (sys.byteorder == "little") != plain.dtype.isnative else "<"
        view, elements = View.tight(plain.shape), plain.view(f"{order}u{item}")
    return Operand(plain, plain.ctypes.data, view, dtype, None, writable, elements)


def _is_masked(array: Any) -> bool:
    """Whether it is one of NumPy's masked arrays, whose module takes longer to import than most."""
    masked = getattr(sys.modules.get("numpy.ma.core"), "MaskedArray", None)
    return masked is not None and isinstance(array, masked)


def empty(like: Operand, shape: tuple[int, ...], dtype: Dtype, _: int | None = None) -> Operand:
    """As `Library.empty`."""
    return read(np.empty(shape, numpy_type(dtype, like.array)), "the result")


def finished(result: Operand) -> Any:
    """As `Library.finished`; the product of two vectors is a number, as NumPy has it."""
    return result.array if result.view.shape else result.array[()]


def in_class_of(result: Any, operands: tuple[Any, ...]) -> Any:
    """A result of `finished` in the class that NumPy's `matmul` gives for these operands.

    That is the class of the one of highest `__array_priority__`, the first of equals, as its
    `__array_wrap__` makes it.
    """
    special = [each for each in operands if isinstance(each, np.ndarray)]
    special = [each for each in special if type(each) is not np.ndarray]
    if not special:
        return result
    chosen = max(special, key=lambda each: float(each.__array_priority__))
    plain, context = np.asarray(result), (np.matmul, operands, 0)
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return chosen.__array_wrap__(plain, context)
    try:
        return chosen.__array_wrap__(plain, context, not plain.shape)
    except TypeError:
        # A class that was written for NumPy 1.
        return chosen.__array_wrap__(plain, context)


def numpy_type(dtype: Dtype, like: object = None) -> np.dtype[Any]:
    """NumPy's type for a name; bfloat16 and types of 8 bits are those of an array, or else
    ml_dtypes's.

    Raises:
        UsageError: NumPy has no such type without ml_dtypes, and that is not installed.
    """
    name = library_name(dtype)
    if dtype != "bfloat16" and not is_narrow(dtype):
        return np.dtype(dtype)
    if isinstance(like, np.ndarray) and like.dtype.name == name:
        own: np.dtype[Any] = like.dtype
        return own
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(f"NumPy's {name} comes with ml_dtypes: pip install ml_dtypes") from None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found
