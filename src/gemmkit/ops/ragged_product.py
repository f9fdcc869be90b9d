"""A ragged product of arrays: read, and multiplied where the arrays are.

A call that looks like one before, with other addresses and offsets, only launches.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from gemmkit.errors import GemmkitError, UsageError
from gemmkit.loading import load
from gemmkit.ops import warm
from gemmkit.ops.arrays import WarmLibrary, bits, library_of, note_overwritten
from gemmkit.ops.grouped import grouped_matmul
from gemmkit.ops.operands import WIDEST_ACCESS, Operand
from gemmkit.ops.precision import get_precision
from gemmkit.ops.ragged_request import RaggedRequest, host_offsets, read_ragged
from gemmkit.ops.scale_shapes import SCALES
from gemmkit.ops.tracing import needs_operator
from gemmkit.scales import TENSOR
from gemmkit.trials import changes

if TYPE_CHECKING:
    from gemmkit.ops.ragged_launches import Prepared

# Calls that a thread keeps prepared: numbers of tokens come again; and kinds of calls that differ
# in nothing but the number of rows.
_MOST_KEPT, _MOST_FAMILIES = 1024, 64


class RaggedCall(NamedTuple):
    """The arguments of `ragged_matmul`."""

    a: Any
    b: Any
    offsets: Any
    out: Any
    bias: Any
    residual: Any
    auxiliary: Any
    alpha: float
    beta: float
    epilogue: Any
    precision: Any
    stream: Any
    device: Any
    scale_a: Any = None
    scale_b: Any = None

    @property
    def arrays(self) -> dict[str, Any]:
        """All but the offsets, by role; None where there is none."""
        return {
            "a": self.a,
            "b": self.b,
            "out": self.out,
            "bias": self.bias,
            "residual": self.residual,
            "auxiliary": self.auxiliary,
            "scale_a": self.scale_a,
            "scale_b": self.scale_b,
        }

    def read(self) -> RaggedRequest:
        """As `read_ragged`."""
        return read_ragged(
            self.arrays,
            self.offsets,
            alpha=self.alpha,
            beta=self.beta,
            epilogue=self.epilogue,
            precision=self.precision,
        )


class Seen(NamedTuple):
    """What a call's launch depends on, and the addresses of its arrays by role.

    The offsets' address is 0 where they are not on a GPU.
    """

    library: WarmLibrary
    key: Hashable
    addresses: dict[str, int]
    offsets: int


class _Ready(threading.local):
    """What a thread has prepared."""

    def __init__(self) -> None:
        self.calls: warm.Calls[Prepared] = warm.Calls(_MOST_KEPT)
        # By what they have in common and the class of their rows.
        self.families: warm.Calls[Prepared] = warm.Calls(_MOST_FAMILIES)


_ready = _Ready()


def ragged_product(call: RaggedCall) -> Any:
    """What `ragged_matmul` returns.

    Raises:
        GemmkitError: as `ragged_matmul`.
    """
    seen = glance(call)
    if seen is not None:
        prepared = _prepared(call, seen)
        if prepared is not None:
            again = _repeated(call, seen, prepared)
            if again is not None:
                return again
    if needs_operator([*call.arrays.values(), call.offsets]):
        raise UsageError(
            "ragged_matmul is not recorded by PyTorch's tracers: use gemmkit.torch.ragged_matmul"
        )
    request = call.read()
    note_overwritten(call.out, call.auxiliary)
    ordinal = request.operands["a"].device
    if ordinal is None:
        return _on_host(request, call)
    return _on_gpu(request, call, ordinal)


def _prepared(call: RaggedCall, seen: Seen) -> Prepared | None:
    """What calls like one need, or that of one that differs in the number of rows made ready for
    its own; None if there is none."""
    calls, families = _ready.calls, _ready.families
    if calls.version != changes.count:
        calls.forget()
        families.forget()
    found = calls.get(seen.key)
    if found is None:
        family = _family(call, seen)
        like = None if family is None else families.get(family[0])
        if like is not None and family is not None:
            found = like.resized(family[1])
            calls.keep(seen.key, found)
    return found


def _family(call: RaggedCall, seen: Seen) -> tuple[Hashable, int] | None:
    """All on which a launch depends but the number of rows, of which the class counts; and that
    number. None where it is 0, or more than a bias and scales go in beside A and B."""
    from gemmkit.groups import row_class

    if not seen.addresses.keys() <= {"a", "b", "bias", *SCALES}:
        return None
    (a, b), strides, kind = seen.library.glance_at_many([call.a, call.b])[1:]
    if not (len(a) == 2 and len(b) == 3 and a[0] and b[0]):
        return None
    scales: Hashable = None
    if call.scale_a is not None:
        (shape,), *rest = seen.library.glance_at_many([call.scale_a])[1:]
        # Strides of a single row do not matter, and may not be those of several.
        if a[0] == 1:
            return None
        of_rows = len(shape) == 2 and shape[0] == a[0]
        scales = (of_rows, shape[of_rows:], *rest)
    # But for what A, B, a result and the scales of A look like.
    others = cast("tuple[Hashable, ...]", seen.key)[2:]
    return (a[1], row_class(a[0], b[0]), b, strides, kind, scales, others), a[0]


def glance(call: RaggedCall) -> Seen | None:
    """What the launch of a call depends on; None where it has to be read in full."""
    library = warm.LIBRARIES.get(type(call.a))
    if library is None or call.stream is not None or call.device is not None or library.watched():
        return None
    if not (isinstance(call.alpha, Real) and isinstance(call.beta, Real)):
        return None
    try:
        a, b, out, seen = library.glance_at_matrices(call.a, call.b, call.out)
        addresses = {"a": a, "b": b}
        if call.out is not None:
            addresses["out"] = out
        # Lists and NumPy's arrays are in host memory; others may be on either side.
        where: Hashable = None
        there = 0
        if type(call.offsets) not in (list, tuple, np.ndarray):
            there, where = library.glance(call.offsets)
        further: list[Hashable] = []
        for role, array in (
            ("scale_a", call.scale_a),
            ("scale_b", call.scale_b),
            ("bias", call.bias),
            ("residual", call.residual),
            ("auxiliary", call.auxiliary),
        ):
            if array is None:
                further.append(None)
                continue
            addresses[role], own = library.glance(array)
            further.append(own)
        precision = get_precision() if call.precision is None else call.precision
        low = (a | b | out) % WIDEST_ACCESS
        # The kernel reads offsets of 64 bits whole.
        key = (seen, *further, where, there % 8, low, call.alpha, call.beta, call.epilogue)
        found = (*key, precision)
        hash(found)
    except (AttributeError, TypeError, ValueError, RuntimeError, GemmkitError):
        # Operands of several libraries, or no arrays: reading them tells what is wrong.
        return None
    return Seen(library, found, addresses, there)


def _repeated(call: RaggedCall, seen: Seen, prepared: Prepared) -> Any | None:
    """The result of a call that looks like one before; None where only a full reading tells whether
    it is valid."""
    library, addresses = seen.library, seen.addresses
    result = call.out
    if result is None:
        result, addresses["out"] = library.new(call.a, prepared.shape, prepared.dtype)
        if addresses["out"] % WIDEST_ACCESS:
            return None
    if prepared.may_overlap(addresses, call.out is not None):
        return None
    offsets = None
    if not prepared.reads_offsets:
        offsets = host_offsets(call.offsets, prepared.groups, prepared.shape[0])
    if call.out is not None:
        library.overwritten(call.out)
    if call.auxiliary is not None:
        library.overwritten(call.auxiliary)
    prepared.run(addresses, offsets, seen.offsets, library.current_stream(prepared.ordinal))
    return result


def _on_gpu(request: RaggedRequest, call: RaggedCall, ordinal: int) -> Any:
    """The product of arrays on a GPU, which is not waited for."""
    load("gemmkit.ops.ragged_gpu")
    from gemmkit.ops.product import check_device
    from gemmkit.ops.ragged_gpu import multiply

    if call.device is not None:
        check_device(call.device, ordinal)
    library, kind = library_of(call.a, "a"), type(call.a)
    if hasattr(library, "glance"):
        warm.LIBRARIES.setdefault(kind, cast(WarmLibrary, library))
    result, prepared = multiply(request, ordinal, call.stream)
    seen = glance(call)
    if prepared is not None and seen is not None:
        _ready.calls.keep(seen.key, prepared)
        family = _family(call, seen)
        if family is not None:
            _ready.families.keep(family[0], prepared)
    return call.out if call.out is not None else request.library.finished(result)


def _on_host(request: RaggedRequest, call: RaggedCall) -> Any:
    """The product of host arrays, as one of many matrices that are views of these."""
    if call.stream is not None:
        raise UsageError(
            "stream is for arrays on a GPU; products of host arrays are done when the call ends"
        )
    library, arrays = request.library, call.arrays
    made = None
    if arrays["out"] is None:
        shape = (request.rows, request.n)
        made = library.empty(request.operands["a"], shape, request.terms.out_dtype, None)
        arrays["out"] = library.finished(made) if library.WRITABLE else _written(made)
    if not library.WRITABLE:
        arrays = {role: None if each is None else np.asarray(each) for role, each in arrays.items()}
    ends = cast(Any, request.offsets).tolist()
    members: dict[str, list[Any] | None] = {
        role: None if array is None else list(_of_groups(request, role, array, ends))
        for role, array in arrays.items()
    }
    grouped_matmul(
        members.pop("a") or [],
        members.pop("b") or [],
        alpha=call.alpha,
        beta=call.beta,
        c=members["out"] if request.terms.beta else None,
        epilogue=call.epilogue,
        precision=call.precision,
        device=call.device,
        **cast(Mapping[str, Any], members),
    )
    if made is not None and not library.WRITABLE:
        return library.finished(made)
    return arrays["out"]


def _written(made: Operand) -> Any:
    """A result that is not finished, as an array of NumPy's."""
    from gemmkit.ops.libraries.numpy import numpy_type

    return bits(made).view(numpy_type(made.dtype))


def _of_groups(request: RaggedRequest, role: str, array: Any, ends: list[int]) -> Iterator[Any]:
    """What each group has of an array."""
    for number, (start, end) in enumerate(pairwise((0, *ends))):
        if role in SCALES:
            own = array
            if len(array.shape) > 2:
                own = array[number if array.shape[0] == request.groups else 0]
            of_rows = role == "scale_a" and request.terms.scales.a != TENSOR
            yield own[start:end] if of_rows else own
        elif role == "b" or (role == "bias" and request.own_bias):
            yield array[number]
        elif role == "bias" and request.terms.epilogue.bias != "row":
            yield array
        else:
            yield array[start:end]
