"""Which operands of arrays on a GPU are read and written where they are, and copies of the others.

A product with such an operand takes a detour: it is that of another call, with the operand replaced
by a copy, or (what is written) by a new array that is copied back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from gemmkit.devices.context import context_of
from gemmkit.devices.streams import let_wait, stream_handle
from gemmkit.dtypes import Dtype
from gemmkit.ops.arrays import GpuLibrary, library_of
from gemmkit.ops.operands import Operand, View, alignment, same_memory
from gemmkit.ops.placement import SCALE_ROLES, Copied, Step, place
from gemmkit.ops.request import Call, Request

log = logging.getLogger("gemmkit")


@dataclass(frozen=True, slots=True)
class Detour:
    """An operand that is replaced first: by a copy, or (what is written) by a new array.

    `shape` is that of the replacement, `dtype` the type of the result, and `ordinal` the GPU.
    """

    role: str
    reason: str
    shape: tuple[int, ...]
    dtype: Dtype
    ordinal: int
    by_columns: bool = False
    launch: None = None

    def take(self, call: Call, product: Callable[..., Any]) -> Any:
        """What `product` makes of a call, by way of one with the operand replaced.

        Libraries without current streams copy on the default one, which is ordered with the call's
        own; of others, the stream that a call gives is the current one by now.

        Raises:
            GemmkitError: as `product`.
        """
        log.debug("%s is copied once: %s", self.role, self.reason)
        if call.stream is None:
            return _replaced(call, self, product)
        context, stream = context_of(self.ordinal), stream_handle(call.stream)
        default = cast(GpuLibrary, library_of(call.a, "a")).current_stream(self.ordinal)
        let_wait(default, stream, context)
        result = _replaced(call, self, product)
        let_wait(stream, default, context)
        return result


def place_on_gpu(request: Request, ordinal: int) -> tuple[Step, ...] | Detour:
    """The steps that compute a request on a GPU, or what must be replaced before.

    Without `out`, a row-major result is assumed.

    Raises:
        UnsupportedProblem: rows lie further apart than a kernel can tell.
    """
    shape, operands = request.shape, request.operands
    if 0 in shape.result:
        return ()
    detour = _before_placing(request, ordinal)
    if detour is not None:
        return detour
    views = {role: each.view for role, each in operands.items()}
    views.setdefault("out", View.tight(shape.result))
    terms = replace(request.terms, alignment=alignment(_bits(operands)))
    found = place(shape.stacks(views), terms)
    if not isinstance(found, Copied):
        return found
    own = views[found.role].shape
    if found.whole:
        stack = shape.stacks(views)[found.role].shape
        own = shape.result if found.role == "residual" else stack
    return Detour(
        *(found.role, found.reason, own, terms.out_dtype, ordinal),
        # Of a vector, or a stack of vectors, there are no columns.
        by_columns=found.by_columns and not (shape.vector_a or shape.vector_b),
    )


def _before_placing(request: Request, ordinal: int) -> Detour | None:
    """What stands in the way besides the matrices' layouts."""
    operands, shape, dtype = request.operands, request.shape, request.terms.out_dtype
    if "c" in operands and (
        "out" not in operands or not same_memory(operands["c"], operands["out"])
    ):
        residual, out = operands.get("residual"), operands.get("out")
        if residual is not None and out is not None and same_memory(residual, out):
            return Detour("residual", "c comes to where it lies", shape.result, dtype, ordinal)
        return Detour("c", "the result gets it first", shape.result, dtype, ordinal)
    bias = operands.get("bias")
    if bias is not None and not bias.view.is_tight:
        return Detour("bias", "its elements are not contiguous", bias.view.shape, dtype, ordinal)
    return None


def _bits(operands: Mapping[str, Operand]) -> int:
    """The union of the bits of all matrices' addresses."""
    bits = 0
    for role, operand in operands.items():
        if role not in ("bias", "scale_result", *SCALE_ROLES):
            bits |= operand.address
    return bits


# --- copies -------------------------------------------------------------------------------------


def _replaced(call: Call, detour: Detour, product: Callable[..., Any]) -> Any:
    def read(role: str) -> tuple[GpuLibrary, Operand]:
        array = getattr(call, role)
        found = cast(GpuLibrary, library_of(array, role))
        return found, found.read(array, role)

    role = detour.role
    if role == "c":
        # Where there is no `out`, the result is made here, and kept to be handed over.
        library, like = read("a")
        made = None
        if call.out is None:
            made = library.empty(like, detour.shape, detour.dtype)
        out = call.out if made is None else made.array
        own = cast(GpuLibrary, library_of(out, "out"))
        own.assign(own.read(out, "out"), read("c")[1])
        result = product(*call._replace(out=out, c=out))
        return result if made is None else library.finished(made)
    own, operand = read(role)
    if role in ("out", "auxiliary"):
        spare = own.empty_like(operand, by_columns=detour.by_columns)
        result = product(*call._replace(**{role: spare.array}))
        own.assign(operand, spare)
        return call.out if role == "out" else result
    copy = own.copied(operand, detour.shape, by_columns=detour.by_columns)
    return product(*call._replace(**{role: copy.array}))
