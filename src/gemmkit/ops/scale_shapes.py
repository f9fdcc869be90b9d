"""Scales of operands of 8 bits: their type, and the shapes that they may have."""

from __future__ import annotations

from collections.abc import Mapping

from gemmkit.dtypes import OPERAND_TYPES, Dtype
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.operands import Operand
from gemmkit.ops.shapes import Shape
from gemmkit.scales import KINDS_OF_A, KINDS_OF_B, NONE, UNSCALED, ScaleKind, Scales

SCALES = ("scale_a", "scale_b")


def read_scales(shapes: Mapping[str, tuple[int, ...]], shape: Shape) -> Scales:
    """How A and B are scaled, by the shapes of scale_a and scale_b, of those that there are.

    Raises:
        UsageError: one has another shape than scales can have.
    """
    found = {}
    for role, lines in zip(SCALES, (shape.m, shape.n), strict=True):
        if role not in shapes:
            found[role[-1]] = NONE
            continue
        own, allowed = shapes[role], shapes_of_scales(role, lines, shape.k)
        matrix = usual_shape(own)
        kind = next((each for each, wanted in allowed.items() if wanted == matrix), None)
        if kind is None:
            told = ", ".join(f"{wanted} ({each.name})" for each, wanted in allowed.items())
            raise UsageError(f"{role} has the shape {own}; use one of {told}")
        found[role[-1]] = kind
    return Scales(**found) if found["a"] != NONE or found["b"] != NONE else UNSCALED


def shapes_of_scales(role: str, lines: int, k: int) -> dict[ScaleKind, tuple[int, int]]:
    """The shapes that the scales of an operand with so many lines may have, by their kinds."""
    if role == "scale_a":
        return {each: each.shape(lines, k) for each in KINDS_OF_A if each != NONE}
    return {each: each.shape(lines, k)[::-1] for each in KINDS_OF_B if each != NONE}


def usual_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """That of the last matrix of scales: one scale may have fewer dimensions."""
    return (1, 1) if shape in ((), (1,)) else shape[-2:]


def check_scale_type(role: str, operand: Operand, dtype: Dtype) -> None:
    """See that scales are float32, and of A and B, which have the type `dtype`, of 8 bits.

    Raises:
        UsageError, UnsupportedType: they are not.
    """
    if operand.dtype != "float32":
        raise UnsupportedType(f"{role} has type {operand.dtype}: scales are float32")
    if dtype not in OPERAND_TYPES:
        raise UsageError(
            f"{role} is for a and b of {' and '.join(OPERAND_TYPES)}, not {dtype}: alpha "
            "scales products of other types"
        )
