"""NumPy's arrays: in host memory, read through their array interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmkit.errors import UsageError
from gemmkit.ops.operands import Operand, View, element_strides, known_dtype
from gemmkit.problem import Dtype

NAME = "NumPy"
WRITABLE = True


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    if hasattr(array, "mask"):
        raise UsageError(f"{role} is a masked array, whose mask would be lost: use its filled()")
    plain = np.asarray(array)
    dtype = known_dtype(plain.dtype.name, role)
    if not plain.dtype.isnative:
        raise UsageError(f"{role} has the other byte order: convert it with astype('{dtype}')")
    return Operand(
        array=plain,
        address=plain.ctypes.data,
        view=View(plain.shape, element_strides(plain.strides, plain.itemsize, role)),
        dtype=dtype,
        device=None,
        writable=bool(plain.flags.writeable),
    )


def empty(like: Operand, shape: tuple[int, ...], dtype: Dtype, _: int | None = None) -> Operand:
    """As `Library.empty`."""
    return read(np.empty(shape, numpy_type(dtype, like.array)), "the result")


def finished(result: Operand) -> Any:
    """As `Library.finished`; the product of two vectors is a number, as NumPy has it."""
    return result.array if result.view.shape else result.array[()]


def numpy_type(dtype: Dtype, like: object = None) -> np.dtype[Any]:
    """NumPy's type for a name; bfloat16 is that of an array, or else ml_dtypes's.

    Raises:
        UsageError: NumPy has no bfloat16 without ml_dtypes, and that is not installed.
    """
    if dtype != "bfloat16":
        return np.dtype(dtype)
    if isinstance(like, np.ndarray) and like.dtype.name == dtype:
        own: np.dtype[Any] = like.dtype
        return own
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError("NumPy's bfloat16 comes with ml_dtypes: pip install ml_dtypes") from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
