"""What a product of arrays on a GPU comes to: launches that lie ready, or a copy to make first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gemmkit.dispatch.choose import choose
from gemmkit.ops.arguments import step_numbers, step_places
from gemmkit.ops.compiled import compiled
from gemmkit.ops.context import Context
from gemmkit.ops.launcher import ROLES, Launch, Temporary, no_memory
from gemmkit.ops.operands import Operand, View
from gemmkit.ops.placement import Copied, Step, place
from gemmkit.ops.request import Request, same_memory, stacks
from gemmkit.problem import Dtype

WIDEST_ACCESS = 16


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
    launches: None = None


class Span(NamedTuple):
    """Two operands that may not share memory, by their places in `ROLES`.

    They may do so if the other's address minus that of what is written lies between `least` and
    `most`.
    """

    written: int
    other: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Launches for one thread, and the result: its shape, and its type where that is not A's.

    `plain` is the launch where it is the only one, and needs the addresses of a, b and out alone;
    `near` are `least` and `most` of the spans from out to a and to b, if there are no others.
    """

    launches: tuple[Launch, ...]
    ordinal: int
    shape: tuple[int, ...]
    dtype: Dtype | None
    spans: tuple[Span, ...]
    plain: Launch | None = None
    near: tuple[int, int, int, int] | None = None


def prepare(request: Request, context: Context) -> Prepared | Detour:
    """Choose and compile what computes a request, or name what must be replaced before.

    Without `out`, a row-major result is assumed.

    Raises:
        UnsupportedProblem: no kernel takes it.
        CompileError, CompilerMissing: as `compile_plan`.
        DeviceError: the driver refuses the code.
    """
    shape, operands = request.shape, request.operands
    if 0 in shape.result:
        return Prepared((), context.ordinal, shape.result, _dtype(request), ())
    views = {role: each.view for role, each in operands.items()}
    views.setdefault("out", View.tight(shape.result))
    detour = _before_placing(request, context.ordinal)
    if detour is not None:
        return detour
    terms = replace(request.terms, alignment=alignment(_bits(operands)))
    placed = place(stacks(shape, views), terms)
    if isinstance(placed, Copied):
        own = views[placed.role].shape
        if placed.whole:
            stack = stacks(shape, views)[placed.role].shape
            own = shape.result if placed.role == "residual" else stack
        return Detour(
            *(placed.role, placed.reason, own),
            *(terms.out_dtype, context.ordinal),
            # Of a vector, or a stack of vectors, there are no columns.
            by_columns=placed.by_columns and not (shape.vector_a or shape.vector_b),
        )
    temporary = getattr(request.maker, "temporary", no_memory)
    found = (_launch(step, context, temporary) for step in placed)
    launches = tuple(launch for launch in found if launch is not None)
    spans = tuple(_spans(operands))
    return Prepared(
        launches=launches,
        ordinal=context.ordinal,
        shape=shape.result,
        dtype=_dtype(request),
        spans=spans,
        plain=launches[0] if len(launches) == 1 and launches[0].plain else None,
        near=_near(spans),
    )


def _dtype(request: Request) -> Dtype | None:
    """The type of the result, where it is not that of A."""
    terms = request.terms
    return None if terms.out_dtype == terms.dtype else terms.out_dtype


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
        return Detour("bias", "its elements are not in one piece", bias.view.shape, dtype, ordinal)
    return None


def alignment(addresses: int) -> int:
    """What addresses are multiples of, at most the 16 bytes of the widest access.

    They come as the union of their bits, or of the lowest four.
    """
    low = addresses & (WIDEST_ACCESS - 1)
    return low & -low or WIDEST_ACCESS


def _bits(operands: Mapping[str, Operand]) -> int:
    """The union of the bits of all matrices' addresses."""
    bits = 0
    for role, operand in operands.items():
        if role != "bias":
            bits |= operand.address
    return bits


def _launch(step: Step, context: Context, temporary: Temporary) -> Launch | None:
    """One step's launch; None where its grid is empty."""
    choice = choose(step.problem, context.spec)
    plan, binary = compiled(step.problem, choice.kernel, choice.config, context.spec)
    if plan.blocks == 0:
        return None
    return Launch(
        context,
        plan,
        binary,
        {**step_numbers(step), "workspace": 0, "arrivals": 0},
        step_places(step),
        temporary,
    )


def _near(spans: tuple[Span, ...]) -> tuple[int, int, int, int] | None:
    """The spans from out to a and b, if these are all."""
    by_operands = {(ROLES[each.written], ROLES[each.other]): each for each in spans}
    if by_operands.keys() != {("out", "a"), ("out", "b")}:
        return None
    a, b = by_operands["out", "a"], by_operands["out", "b"]
    return a.least, a.most, b.least, b.most


def _spans(operands: Mapping[str, Operand]) -> Iterator[Span]:
    """Pairs of what is written and what may not be the same memory."""
    for role in ("out", "auxiliary"):
        written = operands.get(role)
        if written is None:
            continue
        for other, operand in operands.items():
            read_in_place = role == "out" and other in ("c", "residual")
            if other == role or (read_in_place and same_memory(written, operand)):
                continue
            if other in ROLES and not (role == "auxiliary" and other == "out"):
                low, high = (each - written.address for each in written.extent)
                start, end = (each - operand.address for each in operand.extent)
                yield Span(ROLES.index(role), ROLES.index(other), low - end, high - start)
