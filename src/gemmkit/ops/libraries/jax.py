"""JAX's arrays, which are never written: results are made in other memory and handed over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemmkit.dtypes import Dtype
from gemmkit.errors import UsageError
from gemmkit.ops.libraries import numpy as host
from gemmkit.ops.libraries import protocols
from gemmkit.ops.libraries.device_array import DeviceArray
from gemmkit.ops.operands import Operand, known_dtype

NAME = "JAX"
WRITABLE = False
CURRENT_STREAMS = False

current_stream = protocols.current_stream
on_stream = protocols.on_stream
wait_for = protocols.wait_for
written_on = protocols.written_on
assign = protocols.assign
empty_like = protocols.empty_like


class _InHostMemory:
    """A result in host memory on its way to a JAX device."""

    def __init__(self, values: np.ndarray[Any, Any], device: Any) -> None:
        self.values, self.device = values, device


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    if isinstance(array, jax.core.Tracer):
        raise UsageError(
            f"{role} is being traced: inside jax.jit, grad and vmap use gemmkit.jax.matmul or "
            "gemmkit.jax.ragged_matmul"
        )
    check_present(array, role)
    known_dtype(str(array.dtype), role)
    devices = list(array.devices())
    if len(devices) != 1:
        raise UsageError(f"{role} is spread over {len(devices)} devices: bring it to one")
    if devices[0].platform == "cpu":
        found = host.read(np.asarray(array), role)
        writable = False
    elif devices[0].platform in ("gpu", "cuda"):
        found = protocols.read(array, role)
        writable = False
    else:
        raise UsageError(f"{role} is on {devices[0]}; gemmkit computes on CUDA and on the CPU")
    return Operand(array, found.address, found.view, found.dtype, found.device, writable)


def check_present(array: Any, role: str) -> None:
    """Check that an array of JAX's still has its elements; others are none of JAX's.

    Raises:
        UsageError: it has not.
    """
    own = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    if own and array.is_deleted():
        raise UsageError(f"{role} has been deleted, or donated to a function: give another array")


def empty(
    like: Operand, shape: tuple[int, ...], dtype: Dtype, stream: int | None = None
) -> Operand:
    """As `Library.empty`."""
    if like.device is not None:
        return protocols.empty(like, shape, dtype, stream)
    made = host.empty(like, shape, dtype)
    (device,) = like.array.devices()
    pending = _InHostMemory(made.array, device)
    return Operand(pending, made.address, made.view, made.dtype, None, writable=True)


def finished(result: Operand) -> Any:
    """As `Library.finished`."""
    if isinstance(result.array, DeviceArray):
        return jax.dlpack.from_dlpack(result.array)
    return jax.device_put(result.array.values, result.array.device)


def copied(operand: Operand, shape: tuple[int, ...], *, by_columns: bool) -> Operand:
    """As `GpuLibrary.copied`."""
    if by_columns:
        raise UsageError("residual must lie in memory as out does, row by row")
    return read(jnp.array(jnp.broadcast_to(operand.array, shape)), "a copy")
