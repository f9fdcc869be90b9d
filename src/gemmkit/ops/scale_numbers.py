"""Scales that are given as numbers: factors of alpha, or arrays of one element in lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from numbers import Real
from typing import Any, cast

import numpy as np

from gemmkit.dtypes import OPERAND_TYPES, RESULT_TYPES
from gemmkit.errors import UsageError
from gemmkit.loading import load
from gemmkit.ops.arrays import GpuLibrary, library_of
from gemmkit.ops.request import Call, number
from gemmkit.ops.scale_shapes import SCALES

# The smallest number that fp32 rounds to infinity.
_FIRST_INFINITE = (2 - 2.0**-24) * 2.0**127


def without_numbers(alpha: Any, scale_a: Any, scale_b: Any, like: Any) -> tuple[Any, Any, Any]:
    """Alpha times those scales that are numbers, and those that are arrays; None for the others.

    Args:
        alpha: as the call gives it; returned unchanged where no scale is a number.
        scale_a, scale_b: as the call gives them.
        like: an array of the operands' type; None where there is no product.

    Raises:
        UsageError: operands have no scales, or the factor of the product is not a finite number of
            fp32.
        UnsupportedType: alpha is no number.
    """
    numbers = {
        role: each
        for role, each in (("scale_a", scale_a), ("scale_b", scale_b))
        if isinstance(each, Real)
    }
    if not numbers:
        return alpha, scale_a, scale_b
    factor = number("alpha", alpha)
    # Of what stands for an array while a program is recorded, asking would be recorded too.
    kind = str(like.dtype).removeprefix("torch.") if hasattr(type(like), "dtype") else ""
    for role, each in numbers.items():
        if kind in RESULT_TYPES:
            raise UsageError(
                f"{role} is for a and b of {' and '.join(OPERAND_TYPES)}, not {kind}: alpha "
                "scales products of other types"
            )
        scale = number(role, each)
        if not _is_finite(scale):
            raise UsageError(
                f"{role} = {scale}: a number is a factor of alpha, which must be finite in fp32; "
                "as an array of one element it makes results infinite or NaN"
            )
        factor *= scale
    if not _is_finite(factor) and _is_finite(number("alpha", alpha)):
        told = ", ".join(f"{role} = {each}" for role, each in numbers.items())
        raise UsageError(
            f"alpha = {alpha} times {told} is {factor}, which is not a finite fp32 number"
        )
    return (
        factor,
        None if "scale_a" in numbers else scale_a,
        None if "scale_b" in numbers else scale_b,
    )


def _is_finite(value: float) -> bool:
    """Whether it is finite in fp32."""
    return abs(value) < _FIRST_INFINITE


def as_arrays(call: Call) -> Call:
    """A call of `grouped_matmul` with arrays of one element in place of the numbers in its lists of
    scales; the call itself where there are none.

    Those for arrays on a GPU are made there, by the library of the first of as_, on the stream of
    the call: nothing waits, and a graph that is being captured sets them at each replay.

    Raises:
        UsageError: a number is not finite in fp32, the first of as_ cannot be an operand, or the
            stream is none of its GPU.
        DeviceError: the GPU's memory is full.
    """
    scales: dict[str, list[Any]] = {
        role: members for role in SCALES if (members := getattr(call, role)) is not None
    }
    if not call.a or not any(issubclass(kind, Real) for kind in _types(scales.values())):
        return call
    values: dict[float, Any] = {}
    for role, members in scales.items():
        for place, each in enumerate(members):
            if isinstance(each, Real):
                value = number(f"{role}[{place}]", each)
                if not _is_finite(value):
                    raise UsageError(
                        f"{role}[{place}] = {value}: a number must be finite in fp32; as an array "
                        "of one element it makes results infinite or NaN"
                    )
                values[value] = None
    made = _arrays_of(values, call)
    changed: dict[str, Any] = {
        role: [made[number(role, each)] if isinstance(each, Real) else each for each in members]
        for role, members in scales.items()
    }
    return call._replace(**changed)


def _types(lists: Iterable[list[Any]]) -> set[type]:
    """The types of all members: there may be thousands of these, and of few types."""
    return {kind for members in lists for kind in set(map(type, members))}


def _arrays_of(values: Iterable[float], call: Call) -> Mapping[float, Any]:
    """For each number an array of one element, where the first `a` of a call is."""
    library = library_of(call.a[0], "as_[0]")
    like = library.read(call.a[0], "as_[0]")
    if like.device is None:
        return {value: np.asarray(value, np.float32) for value in values}
    load("gemmkit.devices.context", "gemmkit.ops.prepared_forms")
    from gemmkit.devices.context import context_of
    from gemmkit.ops.prepared_forms import stream_of

    context, own = context_of(like.device), cast(GpuLibrary, library)
    stream = stream_of(like, library, call.stream)
    found = {}
    with ExitStack() as entered:
        if own.CURRENT_STREAMS and own.current_stream(like.device) != stream:
            entered.enter_context(own.on_stream(stream, like.device))
        for value in values:
            made = own.empty(like, (), "float32", stream)
            context.set_float(made.address, value, stream)
            found[value] = made.array
    return found
