"""`DeviceArray`: gemmkit's own array on a GPU, for libraries that can only take others' memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmkit.devices.context import Memory, context_of
from gemmkit.devices.streams import let_wait
from gemmkit.dtypes import ITEM_BYTES, Dtype
from gemmkit.loading import load
from gemmkit.ops.operands import View

# DLPack's numbers: its code for CUDA devices, and the legacy default stream.
_CUDA, _LEGACY_STREAM = 2, 1
_NO_WAITING = -1


class DeviceArray:
    """A row-major array that any library takes by `__cuda_array_interface__` or `__dlpack__`.

    `stream` is the handle of the stream on which it is written; memory is given back in its order.

    Raises:
        DeviceError: there is not enough memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Dtype, ordinal: int, stream: int) -> None:
        self.shape, self.dtype, self.ordinal, self.stream = shape, dtype, ordinal, stream
        self.view = View.tight(shape)
        nbytes = self.view.extent[1] * ITEM_BYTES[dtype]
        self.memory: Memory = context_of(ordinal).allocate_on(nbytes, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype == "bfloat16":
            raise AttributeError("the CUDA array interface has no bfloat16: use __dlpack__")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self.memory.address, False),
            "strides": None,
            # Interfaces call the legacy default stream 1, for 0 is not allowed.
            "stream": self.stream or _LEGACY_STREAM,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.ordinal

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """A DLPack capsule, for use on a stream; it has been made to wait for the results.

        Raises:
            UsageError: bfloat16, and there is no ml_dtypes.
        """
        load("cuda.core.utils", "gemmkit.ops.libraries.numpy")
        from cuda.core import Buffer
        from cuda.core.utils import StridedMemoryView

        from gemmkit.ops.libraries.numpy import numpy_type

        if stream != _NO_WAITING:
            let_wait(stream or _LEGACY_STREAM, self.stream, context_of(self.ordinal))
        kept = Buffer.from_handle(self.memory.address, self.memory.nbytes, owner=self.memory)
        view = StridedMemoryView.from_buffer(kept, self.shape, dtype=numpy_type(self.dtype))
        return view.__dlpack__(stream=_NO_WAITING, **options)
