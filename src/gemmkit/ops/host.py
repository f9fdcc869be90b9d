"""Products of arrays in host memory: on the emulator, or on the GPU there and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.choose import gpu_problem
from gemmkit.devices.device import Buffer, Device
from gemmkit.errors import DeviceError, UnsupportedType, UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.grouped_problem import GroupedProblem
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.loading import load
from gemmkit.ops.arrays import bits
from gemmkit.ops.emulation_warning import warn_once
from gemmkit.ops.operands import Operand, View
from gemmkit.ops.placement import Copied, Step, Terms, place
from gemmkit.ops.request import Request, stacks
from gemmkit.ops.shapes import Shape

Raw = NDArray[Any]


class Carrier(Protocol):
    """A device to which host arrays are brought, as one call uses it.

    `alignment` is what kernels may take its buffers' addresses to be multiples of, at most.
    With `by_columns` it reads matrices as well whose transpose is row-major.
    """

    alignment: int
    by_columns: bool
    spec: GpuSpec

    def upload(self, array: Raw) -> Buffer:
        """A device copy of a C-contiguous array."""

    def empty(self, nbytes: int) -> Buffer:
        """Device memory, its content undefined."""

    def run(self, step: Step, buffers: Mapping[str, Buffer]) -> None:
        """Compute one step; offsets of its matrices count from the buffers' beginnings."""

    def tiles(self, problem: GroupedProblem) -> TileConfig:
        """The configuration for products of different shapes."""

    def launch(
        self, plan: LaunchPlan, binary: Binary, arguments: Mapping[str, int | float]
    ) -> None:
        """Run a plan's grid."""

    def download(self, buffer: Buffer, out: Raw) -> None:
        """Fill a C-contiguous array, when all steps are done."""


@contextmanager
def carrier_on(device: Device | str | None) -> Iterator[Carrier]:
    """The carrier that is asked for: by default the GPU's if there is one, else the emulator.

    The emulator comes with an `EmulationWarning`, once, unless `device` asks for it or for either.

    Raises:
        UsageError: `device` is no device that computes here.
        DeviceError: there is no GPU, and one is asked for.
    """
    emulated = getattr(device, "kind", None) == "emulator"
    ordinal = 0 if emulated or device in ("auto", "cuda", None) else _ordinal(device)
    if device == "cuda" and (problem := _no_gpu()):
        raise DeviceError(f"no usable GPU: {problem}; device='emulator' needs none")
    if emulated or device == "emulator" or (device in ("auto", None) and _no_gpu()):
        load("gemmkit.ops.emulation")
        from gemmkit.devices.emulated import EmulatedDevice
        from gemmkit.ops.emulation import emulation

        if device is None:
            warn_once(_no_gpu())
        if emulated and not isinstance(device, EmulatedDevice):
            raise _no_device(device)
        yield emulation(device if isinstance(device, EmulatedDevice) else None)
        return
    load("gemmkit.ops.staging", "cuda.bindings.driver")
    from gemmkit.ops.staging import staging

    with staging(ordinal) as staged:
        yield staged


def _ordinal(device: object) -> int:
    """Which GPU a device of gemmkit is; 0 for the emulator by its name."""
    found = getattr(getattr(device, "context", None), "device_id", None)
    if found is None and device != "emulator":
        raise _no_device(device)
    return int(found or 0)


def _no_device(device: object) -> UsageError:
    kind = UsageError if isinstance(device, str) else UnsupportedType
    return kind(f"device = {device!r}: use 'auto', 'cuda', 'emulator', or a device of open_device")


@cache
def _no_gpu() -> str | None:
    """Why there is no usable GPU, or None; asked once."""
    return gpu_problem()


def multiply(request: Request, carrier: Carrier) -> Operand:
    """The product of host arrays, in `out` or in a new array.

    Raises:
        GemmkitError: as compiling and launching raise.
    """
    shape, terms = request.shape, request.terms
    if 0 in shape.result:
        return _result(request)
    raw = {role: _collapsed(role, bits(each)) for role, each in request.operands.items()}
    least = max(terms.item_bytes("a"), terms.item_bytes("out"))
    terms = replace(terms, alignment=carrier.alignment or least)
    written = {"out": _result(request)}
    if "auxiliary" in request.operands:
        written["auxiliary"] = request.operands["auxiliary"]
    arrays, steps = _placed(shape, terms, raw, carrier)
    buffers = {role: carrier.upload(array) for role, array in arrays.items()}
    for role, operand in written.items():
        if role == "out" and "c" in raw:
            c = np.broadcast_to(raw["c"], shape.result)
            buffers[role] = carrier.upload(_native(c))
        else:
            buffers[role] = carrier.empty(_nbytes(operand))
    for step in steps:
        carrier.run(step, buffers)
    for role, operand in written.items():
        if not operand.view.empty:
            _store(carrier, buffers[role], bits(operand))
    return written["out"]


def _result(request: Request) -> Operand:
    if "out" in request.operands:
        return request.operands["out"]
    like, terms = request.operands["a"], request.terms
    return request.maker.empty(like, request.shape.result, terms.out_dtype, None)


def _nbytes(operand: Operand) -> int:
    return int(np.prod(operand.view.shape, dtype=np.int64)) * operand.item_bytes


def _placed(
    shape: Shape, terms: Terms, raw: Mapping[str, Raw], carrier: Carrier
) -> tuple[dict[str, Raw], tuple[Step, ...]]:
    """What is uploaded, in pieces that are read in place there, and the steps that do."""
    views, arrays = {}, {}
    for role in ("a", "b", "bias", "residual"):
        if role in raw:
            arrays[role], views[role] = _contiguous(raw[role], carrier.by_columns)
    views["out"] = View.tight(shape.result)
    if "auxiliary" in raw:
        views["auxiliary"] = View.tight(shape.result)
    while True:
        steps = place(stacks(shape, views), terms)
        if not isinstance(steps, Copied):
            return arrays, steps
        stack = stacks(shape, views)[steps.role].shape
        wide = shape.result if steps.role == "residual" else stack
        arrays[steps.role] = _native(np.broadcast_to(raw[steps.role], wide))
        views[steps.role] = View.tight(wide)


def _collapsed(role: str, array: Raw) -> Raw:
    """An array without the repetitions of a broadcast, where its shape need not tell them."""
    free = {"a": array.ndim - 2, "b": array.ndim - 2, "bias": 0}.get(role, array.ndim)
    return array[
        tuple(
            slice(0, 1) if step == 0 and place < free else slice(None)
            for place, step in enumerate(array.strides)
        )
    ]


def _contiguous(array: Raw, by_columns: bool) -> tuple[Raw, View]:
    """The array in one piece, without a copy if it is so already, and how it lies."""
    if by_columns and array.ndim > 1 and not array.flags.c_contiguous:
        flipped = array.swapaxes(-1, -2)
        if _is_native(flipped):
            strides = View.tight(flipped.shape).strides
            return flipped, View(array.shape, (*strides[:-2], strides[-1], strides[-2]))
    return _native(array), View.tight(array.shape)


def _native(array: Raw) -> Raw:
    """The array in one piece, aligned and in this machine's byte order."""
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])


def _is_native(array: Raw) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative)


def _store(carrier: Carrier, buffer: Buffer, out: Raw) -> None:
    """Bring results to where they belong, whatever way they lie there."""
    if _is_native(out):
        carrier.download(buffer, out)
        return
    rows = np.empty(out.shape, out.dtype.newbyteorder("="))
    carrier.download(buffer, rows)
    out[...] = rows
