"""Products of arrays: read, placed, prepared and launched; on a GPU, the next call only launches.

`product` serves warm calls; `_on_gpu` and `_on_host` serve the others, from top to bottom.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from math import prod
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gemmkit.dtypes import is_narrow
from gemmkit.errors import UsageError
from gemmkit.loading import load
from gemmkit.ops.arrays import GpuLibrary, WarmLibrary, library_of, note_overwritten
from gemmkit.ops.precision import get_precision, setting
from gemmkit.ops.request import Call, HostOptions, Request
from gemmkit.ops.tracing import needs_operator
from gemmkit.ops.warm import LIBRARIES, Calls
from gemmkit.trials import changes

if TYPE_CHECKING:
    from gemmkit.devices.device import Device
    from gemmkit.epilogue import Epilogue
    from gemmkit.ops.detours import Detour
    from gemmkit.ops.operands import Operand
    from gemmkit.ops.prepared import Prepared, Span
    from gemmkit.ops.prepared_operands import Held

_HOST_OPTIONS = "device_memory, devices and progress are for arrays in host memory"

# Bytes of operands and result from which products of host arrays are streamed: smaller ones do not
# gain what the plan and the pinned memory of a first call take.
STREAMED_BYTES = 256 << 20

# Calls that a thread keeps prepared.
_MOST_KEPT = 4096


class _Ready(threading.local):
    """What a thread has prepared."""

    def __init__(self) -> None:
        self.calls: Calls[Prepared | Detour] = Calls(_MOST_KEPT)


_ready = _Ready()


# Addresses of bias, residual, auxiliary output and scales where there are none.
NOTHING: tuple[int, ...] = (0, 0, 0, 0, 0, 0)


def product(
    a: Any,
    b: Any,
    out: Any,
    c: Any,
    bias: Any,
    residual: Any,
    auxiliary: Any,
    alpha: float,
    beta: float,
    epilogue: Epilogue | str | None,
    out_dtype: Any,
    stream: Any,
    device: Device | str | None,
    precision: str | None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_result: Any = None,
    held: Held | None = None,
    host: HostOptions | None = None,
) -> Any:
    """What `matmul` returns for its arguments, which come as `Call` has them.

    A call like one that this thread has made before looks at no more than what its launches
    depend on: shapes, strides, types, devices and the low bits of addresses.

    Returns:
        `NotImplemented` if only an operator of PyTorch can multiply these arrays, or record it.

    Raises:
        GemmkitError: as `matmul`.
    """
    library = LIBRARIES.get(type(a))
    if (
        library is None
        or stream is not None
        or device is not None
        or host is not None
        or library.watched()
    ):
        return _cold(
            Call(
                *(a, b, out, c, bias, residual, auxiliary),
                *(alpha, beta, epilogue, out_dtype, stream, device, precision),
                scale_a,
                scale_b,
                scale_result,
                held,
                host,
            ),
            None,
        )
    key: Hashable = None
    prepared: Prepared | Detour | None = None
    try:
        address_a, address_b, address_out, seen = library.glance_at_matrices(a, b, out)
        low = address_a | address_b | address_out
        further = None
        if (
            bias is not None
            or residual is not None
            or auxiliary is not None
            or scale_a is not None
            or scale_b is not None
            or scale_result is not None
            # What `gemm` overwrites without adding to it is no more than `out`.
            or (c is not None and (c is not out or beta != 0))
        ):
            further, addresses, bits = further_operands(
                library,
                address_out,
                (c, bias, residual, auxiliary, scale_a, scale_b, scale_result),
            )
            low |= bits
        told = get_precision() if precision is None and setting.touched else precision
        sides = None if held is None else held.sides
        key = seen, further, low & 15, alpha, beta, epilogue, out_dtype, told, sides
        calls = _ready.calls
        if calls.version != changes.count:
            calls.forget()
        prepared = calls.get(key)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        # Operands of several libraries, or no arrays: the slow way finds out what they are.
        key = None
    if prepared is None or prepared.launch is None:
        call = Call(
            *(a, b, out, c, bias, residual, auxiliary),
            *(alpha, beta, epilogue, out_dtype, stream, device, precision),
            scale_a,
            scale_b,
            scale_result,
            held,
        )
        return _cold(call, key) if prepared is None else prepared.take(call, product)
    result = out
    if out is None:
        result, address_out = library.new(a, prepared.shape, prepared.dtype)
    if further is None:
        addresses = NOTHING
    if out is not None or auxiliary is not None:
        near = prepared.near
        if (
            overlapping(prepared.spans, (address_a, address_b, address_out, *addresses))
            if near is None
            else near[0] < address_a - address_out < near[1]
            or near[2] < address_b - address_out < near[3]
        ):
            # They may lie in the gaps of each other; reading the call refuses it if they do not.
            Call(
                *(a, b, out, c, bias, residual, auxiliary),
                *(alpha, beta, epilogue, out_dtype, stream, device, precision),
                scale_a,
                scale_b,
                scale_result,
                held,
            ).read()
        if out is not None:
            library.overwritten(out)
        if auxiliary is not None:
            library.overwritten(auxiliary)
    current = library.current_stream(prepared.ordinal)
    if prepared.plain is not None:
        prepared.plain.run_plain(address_a, address_b, address_out, current)
        return result
    if held is not None:
        addresses = (*addresses, *held.addresses(prepared.makings, current))
    prepared.launch.run((address_a, address_b, address_out, *addresses), current)
    return result


def are_warm(a: Any, b: Any, c: Any) -> bool:
    """Whether arrays of these types have been multiplied on a GPU before; c may be None.

    Those are of libraries whose arrays can be written.
    """
    return type(a) in LIBRARIES and type(b) in LIBRARIES and (c is None or type(c) in LIBRARIES)


def overlapping(spans: tuple[Span, ...], addresses: tuple[int, ...]) -> bool:
    """Whether operands that may not share memory lie in overlapping stretches of it."""
    for written, other, least, most in spans:
        if least < addresses[other] - addresses[written] < most:
            return True
    return False


def further_operands(
    library: WarmLibrary, address_out: int, operands: tuple[Any, Any, Any, Any, Any, Any, Any]
) -> tuple[Hashable, tuple[int, ...], int]:
    """Of c, bias, residual, auxiliary output and scales what a launch depends on.

    Also the addresses of all but c, and the bits of those that are matrices of the result's type.
    """
    key: list[Hashable] = []
    addresses = []
    for array in operands:
        if array is None:
            key.append(None)
            addresses.append(0)
            continue
        address, seen = library.glance(array)
        # Whether it is the result, which may be added to in place.
        key.append((seen, address == address_out))
        addresses.append(address)
    c, *others = addresses
    residual, auxiliary = others[1:3]
    return (
        tuple(key),
        tuple(others),
        c | residual | auxiliary,
    )


def _cold(call: Call, key: Hashable | None) -> Any:
    """The product of a call that is seen for the first time, or is of a kind that is not kept."""
    if needs_operator(call.arrays.values()):
        if call.host is not None:
            raise UsageError(f"{_HOST_OPTIONS}, and not for what PyTorch traces or differentiates")
        return NotImplemented
    request = call.read()
    ordinal = request.operands["a"].device
    if ordinal is None:
        return _on_host(call, request)
    if call.host is not None:
        raise UsageError(f"{_HOST_OPTIONS}; these are on GPU {ordinal}")
    return _on_gpu(call, request, ordinal, key)


# --- arrays on a GPU ----------------------------------------------------------------------------


def _on_gpu(call: Call, request: Request, ordinal: int, key: Hashable | None) -> Any:
    """The product of arrays on a GPU: placed, prepared, and launched."""
    load("gemmkit.ops.detours", "gemmkit.ops.prepared")
    from gemmkit.devices.context import context_of
    from gemmkit.devices.streams import check_stream, stream_handle
    from gemmkit.ops.detours import Detour

    library = cast(GpuLibrary, request.maker)
    if call.device is not None:
        check_device(call.device, ordinal)
        return product(*call._replace(device=None))
    context = context_of(ordinal)
    if call.stream is None:
        stream = library.current_stream(ordinal)
    else:
        stream = stream_handle(call.stream)
        check_stream(stream, context)
        if library.CURRENT_STREAMS:
            with library.on_stream(stream, ordinal):
                return product(*call._replace(stream=None))
    kind = type(call.a)
    if kind not in LIBRARIES and hasattr(library, "glance"):
        LIBRARIES[kind] = cast(WarmLibrary, library)
        return product(*call)
    prepared = _prepared(request, ordinal)
    # Other numbers, such as tensors of one element, may be the same object with another value.
    if key is not None and isinstance(call.alpha, Real) and isinstance(call.beta, Real):
        _ready.calls.keep(key, prepared)
    if isinstance(prepared, Detour):
        return prepared.take(call, product)
    note_overwritten(call.out, call.auxiliary)
    return _launch(request, prepared, stream, call.held)


def prepared_call(call: Call) -> Prepared | None:
    """What launches a call with `out` that this process has made before: for this thread, which
    keeps it itself; None for arrays in host memory, and where an operand is copied first.

    Raises:
        GemmkitError: as `matmul`.
    """
    request = call.read()
    ordinal = request.operands["a"].device
    found = None if ordinal is None else _prepared(request, ordinal)
    return found if found is not None and found.launch is not None else None


def _prepared(request: Request, ordinal: int) -> Prepared | Detour:
    """The launches of a request, or what must be replaced before."""
    from gemmkit.devices.context import context_of
    from gemmkit.ops.detours import Detour, place_on_gpu
    from gemmkit.ops.prepared import prepare

    placed = place_on_gpu(request, ordinal)
    return placed if isinstance(placed, Detour) else prepare(request, placed, context_of(ordinal))


def _launch(request: Request, prepared: Prepared, stream: int, held: Held | None) -> Any:
    """The result of a request, on a stream that waits for its operands."""
    from gemmkit.devices.patches import ROLES
    from gemmkit.kernels.operand_copies import PREPARED

    library, operands = cast(GpuLibrary, request.maker), request.operands
    made = operands.get("out")
    if made is None:
        terms = request.terms
        made = library.empty(operands["a"], prepared.shape, terms.out_dtype, stream)
    for role, operand in operands.items():
        cast(GpuLibrary, library_of(operand.array, role)).wait_for(operand, stream)
    everything = {**operands, "out": made}
    addresses = [everything[role].address if role in everything else 0 for role in ROLES]
    if held is not None:
        first = ROLES.index(PREPARED[0])
        addresses[first : first + len(PREPARED)] = held.addresses(prepared.makings, stream)
    prepared.launch.run(addresses, stream)
    for role in ("out", "auxiliary"):
        if role in everything:
            written = everything[role]
            cast(GpuLibrary, library_of(written.array, role)).written_on(written, stream)
    return made.array if "out" in operands else library.finished(made)


def check_device(device: object, ordinal: int) -> None:
    """Check that `device` means the GPU on which the arrays are.

    Raises:
        UsageError: it does not.
    """
    own = getattr(getattr(device, "context", None), "ordinal", None)
    if device not in ("auto", "cuda") and own != ordinal:
        named = device if isinstance(device, str) else getattr(device, "kind", device)
        raise UsageError(
            f"the arrays are on GPU {ordinal}, where they are multiplied; device = {named!r} is "
            "for arrays in host memory"
        )


# --- arrays in host memory ----------------------------------------------------------------------


def _on_host(call: Call, request: Request) -> Any:
    """The product of host arrays, by way of a GPU or on the emulator."""
    load("gemmkit.ops.host", "gemmkit.ops.libraries.numpy")
    from gemmkit.ops.carriers import carrier_on
    from gemmkit.ops.host import multiply
    from gemmkit.ops.libraries.numpy import in_class_of

    if call.stream is not None:
        raise UsageError(
            "stream is for arrays on a GPU; the product of host arrays is done when the call ends"
        )
    note_overwritten(call.out, call.auxiliary)
    result = _streamed(call, request)
    if result is None:
        with carrier_on(call.device) as carrier:
            result = multiply(request, carrier)
    if call.out is not None:
        return call.out
    made = request.maker.finished(result)
    return in_class_of(made, (call.a, call.b)) if isinstance(call.a, np.ndarray) else made


def _streamed(call: Call, request: Request) -> Operand | None:
    """The product where tiles of it are streamed; None where it is not asked for and does not pay.

    Operands that repeat elements, as broadcasts do, count with all of them.
    """
    from gemmkit.ops.host import result_of

    shape, terms = request.shape, request.terms
    elements = prod(shape.stack) * (shape.m * shape.k + shape.k * shape.n)
    nbytes = elements * terms.item_bytes("a") + prod(shape.result) * terms.item_bytes("out")
    if is_narrow(terms.out_dtype):
        if call.host is not None:
            raise UsageError(
                f"results of {terms.out_dtype} are not streamed: device_memory, devices and "
                "progress are for others"
            )
        return None
    if 0 in shape.result or (call.host is None and nbytes < STREAMED_BYTES):
        return None
    load("gemmkit.ops.streamed.entry")
    from gemmkit.ops.streamed.entry import multiply_streamed

    result = result_of(request)
    return result if multiply_streamed(request, result, call.device, call.host) else None
