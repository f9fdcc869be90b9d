"""Memory on a GPU that prepared calls use again and again, for what they gather or add up.

An allocation takes the host as long as a tenth of a product of few rows over ranks. Work on one
stream is done in order, so that the next call from the same thread may write to the same memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import get_ident
from typing import Any

import torch

from gemmkit.ops.libraries.torch import current_stream

# Larger arrays are allocated anew: their products take so long that the host waits.
MOST_BYTES = 8 << 20
MOST_BYTES_KEPT = 64 << 20


class KeptArrays:
    """Matrices by type and shape, each for one thread on one stream."""

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Any] = {}
        self._bytes = 0

    def matrix(self, like: Any, dtype: Any, rows: int, columns: int) -> Any:
        """A matrix of a type on the device of `like`, with any content, which is valid until this
        is called again for one of its type and shape by the same thread on the same stream.

        It is new where `like` is not on a GPU, where it takes more than `MOST_BYTES`, and while a
        CUDA graph is captured, which keeps the addresses.
        """
        device = like.get_device()
        if device < 0 or torch.cuda.is_current_stream_capturing():
            return like.new_empty((rows, columns), dtype=dtype)
        key = get_ident(), device, current_stream(device), dtype, rows, columns
        found = self._arrays.get(key)
        if found is None:
            # What is made in inference mode may not be written to after it.
            with torch.inference_mode(False):
                found = like.new_empty((rows, columns), dtype=dtype)
            self._keep(key, found)
        return found

    def _keep(self, key: Hashable, array: Any) -> None:
        if array.nbytes > MOST_BYTES:
            return
        if self._bytes + array.nbytes > MOST_BYTES_KEPT:
            self._arrays.clear()
            self._bytes = 0
        self._arrays[key] = array
        self._bytes += array.nbytes


kept_arrays = KeptArrays()
