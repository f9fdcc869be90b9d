"""A product of arrays on a GPU made ready: kernels chosen, compiled, loaded and packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gemmkit.devices.context import Context
from gemmkit.devices.launcher import (
    LaunchSequence,
    PreparedLaunch,
    prepared_launches,
)
from gemmkit.devices.patches import ROLES
from gemmkit.devices.scratch import Temporary, no_memory
from gemmkit.dispatch.choose import choose
from gemmkit.dtypes import Dtype
from gemmkit.ops.compiled import compiled, step_numbers, step_places
from gemmkit.ops.making import Making, makings_of, prepared_places
from gemmkit.ops.operands import Operand, same_memory
from gemmkit.ops.placement import Step
from gemmkit.ops.request import Request


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
    """A launch for one thread, and the result: its shape, and its type where that is not A's.

    `makings` make what launches read in place of prepared operands.
    `plain` is the launch where it is of one kernel, and needs the addresses of a, b and out alone;
    `near` are `least` and `most` of the spans from out to a and to b, if there are no others.
    """

    launch: PreparedLaunch | LaunchSequence
    ordinal: int
    shape: tuple[int, ...]
    dtype: Dtype | None
    spans: tuple[Span, ...]
    makings: tuple[Making, ...] = ()
    plain: PreparedLaunch | None = None
    near: tuple[int, int, int, int] | None = None


def prepare(request: Request, steps: tuple[Step, ...], context: Context) -> Prepared:
    """Choose and compile what computes the steps of a request.

    Raises:
        UnsupportedProblem: no kernel takes one.
        CompileError, CompilerMissing: as `compile_plan`.
        DeviceError: the driver refuses the code.
    """
    terms, temporary = request.terms, getattr(request.maker, "temporary", no_memory)
    launches: list[PreparedLaunch] = []
    found: dict[tuple[str, str], Making] = {}
    for step in steps:
        own, makings = _launches(step, context, temporary)
        launches += own
        found |= {(each.role, each.form): each for each in makings}
    single = launches[0] if len(launches) == 1 else None
    # Empty results overlap nothing.
    spans = tuple(spans_of(request.operands)) if steps else ()
    return Prepared(
        launch=single or LaunchSequence(context, launches, temporary),
        ordinal=context.ordinal,
        shape=request.shape.result,
        dtype=None if terms.out_dtype == terms.dtype else terms.out_dtype,
        spans=spans,
        makings=tuple(found.values()),
        plain=single if single is not None and single.plain else None,
        near=_near(spans),
    )


def _launches(
    step: Step, context: Context, temporary: Temporary
) -> tuple[tuple[PreparedLaunch, ...], tuple[Making, ...]]:
    """The launches of one step, none where its grid is empty, and what makes the forms of prepared
    operands that they read."""
    choice = choose(step.problem, context.spec)
    plan, binary = compiled(step.problem, choice.kernel, choice.config, context.spec)
    numbers, places = step_numbers(step), step_places(step)
    makings: tuple[Making, ...] = ()
    if plan.prepared:
        places, makings = prepared_places(step), tuple(makings_of(plan, binary, step, context))
    return prepared_launches(context, plan, binary, numbers, places, temporary), makings


def _near(spans: tuple[Span, ...]) -> tuple[int, int, int, int] | None:
    """The spans from out to a and b, if these are all."""
    by_operands = {(ROLES[each.written], ROLES[each.other]): each for each in spans}
    if by_operands.keys() != {("out", "a"), ("out", "b")}:
        return None
    a, b = by_operands["out", "a"], by_operands["out", "b"]
    return a.least, a.most, b.least, b.most


def spans_of(operands: Mapping[str, Operand]) -> Iterator[Span]:
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
