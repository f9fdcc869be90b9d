"""`quantize`: arrays of 8 bits with scales, as `matmul` takes them."""

from __future__ import annotations

import sys
from typing import Any

from gemmkit.dtypes import OPERAND_TYPES, Dtype, full_type_name
from gemmkit.errors import UnsupportedType, UsageError, unknown_name
from gemmkit.ops.operands import library_name

# Rows and columns that share a scale; None for all.
_BLOCKS: dict[str, tuple[int | None, int | None]] = {
    "tensor": (None, None),
    "rows": (1, None),
    "columns": (None, 1),
    "1x128": (1, 128),
    "128x1": (128, 1),
    "128x128": (128, 128),
}
_LARGEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}
# No smaller scale: its reciprocal is finite, and elements over it are no larger than the largest.
_SMALLEST_SCALE = 2.0**-126


def quantize(x: Any, dtype: Any = "float8_e4m3", *, scale: str = "tensor") -> tuple[Any, Any]:
    """Round an array to 8 bits, each part of it divided by a scale, so that x ≈ quantized · scale.

    A scale is the largest magnitude of its part over the largest number of the type, in float32; 1
    where all of the part are zero. Elements that are not finite do not count for that, and remain
    so: NaN is NaN, and an infinity is one in float8_e5m2, and NaN in float8_e4m3, which has none.

    Args:
        x: rows × columns elements, or a stack of such matrices, of PyTorch, JAX, or NumPy with
            the package `ml_dtypes`.
        dtype: float8_e4m3 (the default; also e4m3 or float8_e4m3fn) or float8_e5m2.
        scale: what has a scale of its own: the "tensor" (of a stack, each matrix), its "rows" or
            "columns", or blocks of rows × columns: "1x128" or "128x128" for a, "128x1" or
            "128x128" for b, whose k are rows.

    Returns:
        the array of 8 bits, and the scales, one for each part, as `scale_a` or `scale_b` of
        `matmul`. Those of "1x128" lie by columns, as `torch._scaled_mm` and DeepGEMM want them.

    Raises:
        UsageError: an unknown word, or fewer than two dimensions.
        UnsupportedType: no such type of 8 bits, or not in x's library.
    """
    if scale not in _BLOCKS:
        raise UsageError(unknown_name("scale", str(scale), _BLOCKS))
    narrow = _narrow_type(dtype)
    library = _library(x)
    kind = _library_type(library, narrow)
    if x.ndim < 2:
        raise UsageError(f"x has {x.ndim} dimensions: quantize takes matrices, or stacks of them")
    *stack, rows, columns = x.shape
    down, across = (
        own or max(size, 1) for own, size in zip(_BLOCKS[scale], (rows, columns), strict=True)
    )
    wide = _as_float32(library, x)
    # A part that is the whole has a scale though there is nothing in it.
    high, long = (
        max(-(-size // own), 1 if of_all is None else 0)
        for size, own, of_all in zip((rows, columns), (down, across), _BLOCKS[scale], strict=True)
    )
    padded = _padded(library, wide, high * down - rows, long * across - columns)
    blocks = padded.reshape((*stack, high, down, long, across))
    finite = library.where(library.isfinite(blocks), library.abs(blocks), 0.0)
    largest = library.amax(finite, (-3, -1))
    scales = library.clip(largest / _LARGEST[narrow], _SMALLEST_SCALE, None)
    scales = library.where(largest == 0, 1.0, scales)
    quantized = (blocks / scales[..., :, None, :, None]).reshape(padded.shape)
    if narrow == "float8_e4m3":
        # Casts may take infinities for the largest number instead.
        quantized = library.where(library.isfinite(quantized), quantized, library.nan)
    scales = _as_float32(library, scales)
    if scale == "1x128":
        scales = _by_columns(library, scales)
    return _cast(library, quantized[..., :rows, :columns], kind), scales


def _narrow_type(given: Any) -> Dtype:
    name = getattr(given, "name", None) or getattr(given, "__name__", None) or str(given)
    full = full_type_name(str(name).removeprefix("torch."))
    for known in OPERAND_TYPES:
        if full == known:
            return known
    raise UnsupportedType(unknown_name("type of 8 bits", str(name), OPERAND_TYPES))


def _library(x: Any) -> Any:
    """The module whose functions work on an array.

    Raises:
        UnsupportedType: it is of none that has arrays of 8 bits.
    """
    name = type(x).__module__.partition(".")[0]
    if name == "torch":
        return sys.modules["torch"]
    if name in ("jax", "jaxlib"):
        from jax import numpy

        return numpy
    if name == "numpy":
        import numpy

        return numpy
    raise UnsupportedType(
        f"x has type {type(x).__name__}: quantize takes arrays of PyTorch, JAX or NumPy"
    )


def _library_type(library: Any, dtype: Dtype) -> Any:
    """A type of 8 bits as a library has it.

    Raises:
        UnsupportedType: it has none.
    """
    if library.__name__ != "numpy":
        return getattr(library, library_name(dtype))
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedType(
            "NumPy's types of 8 bits come with the package ml_dtypes: `pip install ml_dtypes`"
        ) from None
    return getattr(ml_dtypes, library_name(dtype))


def _as_float32(library: Any, array: Any) -> Any:
    return _cast(library, array, library.float32)


def _cast(library: Any, array: Any, kind: Any) -> Any:
    if library.__name__ == "torch":
        return array.to(kind)
    if library.__name__ == "numpy":
        # ml_dtypes warns of infinities that become NaN.
        with library.errstate(invalid="ignore", over="ignore"):
            return array.astype(kind)
    return array.astype(kind)


def _padded(library: Any, array: Any, rows: int, columns: int) -> Any:
    """The array with further rows and columns of zeros."""
    if not rows and not columns:
        return array
    if library.__name__ == "torch":
        return library.nn.functional.pad(array, (0, columns, 0, rows))
    return library.pad(array, (*((0, 0),) * (array.ndim - 2), (0, rows), (0, columns)))


def _by_columns(library: Any, array: Any) -> Any:
    """The same numbers, in memory column by column; of JAX, which does not tell, as they are."""
    if library.__name__ == "torch":
        return array.mT.contiguous().mT
    if library.__name__ == "numpy":
        return library.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return array
