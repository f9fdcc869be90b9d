"""The functions that XLA calls for products of groups of rows, on the CPU and on CUDA GPUs."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.errors import UnsupportedProblem
from gemmkit.jax.call_frame import Buffer, Call
from gemmkit.jax.registry import gpu_array, numpy_view, place_of, register
from gemmkit.ops.grouped import grouped_matmul
from gemmkit.ops.libraries.dlpack import on_stream
from gemmkit.ops.operands import View, known_dtype
from gemmkit.ops.ragged import ragged_matmul
from gemmkit.ops.ragged_request import Ends, host_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

RAGGED_TARGET, OUTER_TARGET = "gemmkit_ragged_matmul", "gemmkit_ragged_outer"


# Kinds of products for which no kernel reads offsets on the GPU: what decides that, each once.
_READ_ON_HOST: set[Hashable] = set()
_MOST_KINDS = 1024


def _on_host(call: Call) -> None:
    a, b, offsets, out = (numpy_view(each) for each in (*call.arguments, *call.results))
    ends = host_offsets(offsets, b.shape[0], a.shape[0])
    out[ends[-1] if ends.size else 0 :] = 0
    ragged_matmul(
        a,
        b.swapaxes(1, 2) if call.attributes["layout"] == "nt" else b,
        ends,
        out=out,
        precision=call.attributes["precision"],
    )


def _on_gpu(call: Call) -> None:
    (a, b, offsets), (out,) = call.arguments, call.results
    place, stream, layout = place_of(out), call.stream(), call.attributes["layout"]
    # Rows past the last end, wherever that is.
    _clear(out, place[1], stream)
    if not b.shape[0]:
        return

    def multiply(ends: Any) -> None:
        ragged_matmul(
            gpu_array(a, place),
            gpu_array(b, place, layout == "nt"),
            ends,
            out=gpu_array(out, place),
            precision=call.attributes["precision"],
        )

    kind = a.dtype, b.shape, layout, place
    with on_stream(stream, place[1]):
        if kind not in _READ_ON_HOST:
            try:
                multiply(gpu_array(offsets, place))
            except UnsupportedProblem:
                # No kernel reads them there, for this type, board or alignment.
                if len(_READ_ON_HOST) >= _MOST_KINDS:
                    _READ_ON_HOST.clear()
                _READ_ON_HOST.add(kind)
            else:
                return
        multiply(_brought(offsets, place[1], stream))


def _outer_on_host(call: Call) -> None:
    a, c, offsets, out = (numpy_view(each) for each in (*call.arguments, *call.results))
    parts = _parts(host_offsets(offsets, out.shape[0], a.shape[0]))
    grouped_matmul(
        [a[start:end].T for start, end in parts],
        [c[start:end] for start, end in parts],
        out=list(out),
        precision=call.attributes["precision"],
    )


def _outer_on_gpu(call: Call) -> None:
    (a, c, offsets), (out,) = call.arguments, call.results
    place, stream = place_of(out), call.stream()
    groups, k, n = out.shape
    parts = _parts(host_offsets(_brought(offsets, place[1], stream), groups, a.shape[0]))
    own, other = gpu_array(a, place), gpu_array(c, place)
    every, size = gpu_array(out, place), View.tight(out.shape).strides[0]
    with on_stream(stream, place[1]):
        grouped_matmul(
            [own.part(start * k, View((k, end - start), (1, k))) for start, end in parts],
            [other.part(start * n, View((end - start, n), (n, 1))) for start, end in parts],
            out=[every.part(group * size, View((k, n), (n, 1))) for group in range(groups)],
            precision=call.attributes["precision"],
        )


def _parts(ends: Ends) -> list[tuple[int, int]]:
    """First row of each group, and the one after its last."""
    return list(pairwise((0, *ends.tolist())))


def _clear(buffer: Buffer, ordinal: int, stream: int) -> None:
    """Have a stream make all bytes of a GPU's memory zero."""
    from cuda.bindings import driver

    from gemmkit.devices.context import context_of
    from gemmkit.devices.cuda_errors import cuda_errors, result

    nbytes = prod(buffer.shape) * ITEM_BYTES[known_dtype(buffer.dtype, "the result")]
    context = context_of(ordinal)
    with cuda_errors("clearing the result"), context.current():
        result(driver.cuMemsetD8Async(buffer.address, 0, nbytes, stream))


def _brought(buffer: Buffer, ordinal: int, stream: int) -> NDArray[Any]:
    """Elements of a GPU's memory, for which a stream is waited for."""
    from cuda.bindings import driver

    from gemmkit.devices.context import context_of
    from gemmkit.devices.cuda_errors import cuda_errors, result

    found = np.empty(buffer.shape, buffer.dtype)
    if found.size:
        context = context_of(ordinal)
        with cuda_errors("reading the offsets"), context.current():
            result(
                driver.cuMemcpyDtoHAsync(found.ctypes.data, buffer.address, found.nbytes, stream)
            )
            result(driver.cuStreamSynchronize(stream))
    return found


register(RAGGED_TARGET, _on_host, _on_gpu)
register(OUTER_TARGET, _outer_on_host, _outer_on_gpu)
