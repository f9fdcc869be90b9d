"""Scales that are given as numbers: factors of alpha."""

from __future__ import annotations

from numbers import Real
from typing import Any

from gemmkit.dtypes import OPERAND_TYPES, RESULT_TYPES
from gemmkit.errors import UsageError
from gemmkit.ops.request import number

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
