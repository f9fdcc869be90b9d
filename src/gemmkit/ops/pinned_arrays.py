"""`empty_pinned`: NumPy arrays in page-locked host memory, which a GPU copies by itself."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.choose import gpu_problem
from gemmkit.loading import load
from gemmkit.ops.libraries.numpy import numpy_type
from gemmkit.ops.operands import known_dtype


def empty_pinned(shape: int | tuple[int, ...], dtype: Any = "float32") -> NDArray[Any]:
    """A new NumPy array in page-locked (pinned) host memory; its content is undefined.

    A GPU copies such memory at the full speed of the link, without the host's help; it is shared by
    all GPUs. Pinning takes longer than a copy, so make such arrays once.
    Where there is no usable GPU, it is ordinary memory.

    Args:
        shape: a number, or one for each dimension.
        dtype: a type of elements, as NumPy takes them, or "bfloat16" (which needs ml_dtypes).

    Raises:
        DeviceError: so much memory cannot be pinned.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    name = getattr(dtype, "name", dtype)
    wanted = numpy_type(known_dtype(name, "dtype")) if name == "bfloat16" else np.dtype(dtype)
    if gpu_problem() is not None:
        return np.empty(sizes, wanted)
    load("gemmkit.devices.pinned", "gemmkit.devices.context")
    from gemmkit.devices.context import context_of
    from gemmkit.devices.pinned import pinned_bytes

    memory = pinned_bytes(prod(sizes) * wanted.itemsize, context_of(0))
    return memory.view(wanted).reshape(sizes)
