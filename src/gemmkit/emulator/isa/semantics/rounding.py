"""Exact rounding of sums and products to any of PTX's formats, in any rounding mode.

Values are held as float64, which represents every float32, binary16 and bfloat16 number. A sum of
two float64 values is rounded to one of these formats through rounding to odd: of the two float64
neighbors of the exact sum, the one with an odd last bit preserves on which side of every coarser
tie the sum is, so that the second rounding is correct (Boldo and Melquiond, "Emulation of FMA and
correctly rounded sums", 2008; it requires two bits more than the target has).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.unsignedinteger]
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format of PTX, stored in `bits` bits.

    `precision` counts the significand's bits including the leading one; the smallest normal number
    is 2 ** `min_exponent`.
    """

    bits: int
    precision: int
    min_exponent: int
    canonical_nan: int

    @property
    def smallest_normal(self) -> float:
        """The number below which values are subnormal."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        top = math.ldexp(1.0, 1 - self.min_exponent)
        return top * (2.0 - math.ldexp(1.0, 1 - self.precision))


BINARY64 = Format(64, 53, -1022, 0x7FF8_0000_0000_0000)
BINARY32 = Format(32, 24, -126, 0x7FFF_FFFF)
BINARY16 = Format(16, 11, -14, 0x7FFF)
BFLOAT16 = Format(16, 8, -126, 0x7FFF)

FORMATS = {
    "f64": BINARY64,
    "f32": BINARY32,
    "f16": BINARY16,
    "f16x2": BINARY16,
    "bf16": BFLOAT16,
    "bf16x2": BFLOAT16,
}

_INTEGRAL: dict[str, Callable[[Doubles], Doubles]] = {
    "n": np.rint,
    "z": np.trunc,
    "m": np.floor,
    "p": np.ceil,
}


def direction(modifier: str) -> str:
    """The direction of a rounding modifier (`rn`, `rzi`, ``): n to nearest even, z to zero, m down,
    p up."""
    return modifier[1] if modifier else "n"


def decode(bits: Bits, form: Format) -> Doubles:
    """The numbers that raw bits represent."""
    if form is BINARY64:
        return bits.view(np.float64)
    if form is BINARY32:
        return bits.view(np.float32).astype(np.float64)
    if form is BINARY16:
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def encode(values: Doubles, form: Format) -> Bits:
    """The raw bits of numbers that the format represents exactly; every NaN becomes the canonical
    one."""
    bits: Bits
    if form is BINARY64:
        bits = values.view(np.uint64)
    elif form is BINARY16:
        bits = values.astype(np.float16).view(np.uint16)
    else:
        bits = values.astype(np.float32).view(np.uint32)
    if form is BFLOAT16:
        bits = (bits >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), bits.dtype.type(form.canonical_nan), bits)


def integral(values: Doubles, mode: str) -> Doubles:
    """Numbers rounded to integral values; a zero keeps its sign, infinities and NaN stay."""
    return _INTEGRAL[mode](values)


def round_to(values: Doubles, form: Format, mode: str) -> Doubles:
    """Numbers rounded to a format narrower than float64, subnormal numbers included."""
    if form is BINARY32 and mode == "n":
        return values.astype(np.float32).astype(np.float64)
    _, exponent = np.frexp(values)
    last_place = np.maximum(exponent - form.precision, form.min_exponent - form.precision + 1)
    rounded = np.ldexp(integral(np.ldexp(values, -last_place), mode), last_place)
    rounded = np.where(np.isfinite(values), rounded, values)
    return _overflowed(rounded, values, form, mode)


def _overflowed(rounded: Doubles, exact: Doubles, form: Format, mode: str) -> Doubles:
    """Beyond the largest finite number: infinity, or that number if the mode rounds inward."""
    beyond = (np.abs(rounded) > form.largest) & np.isfinite(exact)
    inward = {
        "n": np.zeros_like(beyond),
        "z": np.ones_like(beyond),
        "m": exact > 0,
        "p": exact < 0,
    }[mode]
    limit = np.where(inward, form.largest, np.inf)
    return np.where(beyond, np.copysign(limit, exact), rounded)


def flush(values: Doubles, form: Format) -> Doubles:
    """`.ftz`: subnormal numbers become zeros of the same sign."""
    return np.where(np.abs(values) < form.smallest_normal, np.copysign(0.0, values), values)


def saturate(values: Doubles) -> Doubles:
    """`.sat`: to [0, 1]; NaN becomes +0."""
    return np.where(values > 0, np.minimum(values, 1.0), 0.0)


def rounded_sum(a: Doubles, b: Doubles, form: Format, mode: str) -> Doubles:
    """a + b rounded once."""
    total = a + b
    error = _sum_error(a, b, total)
    if form is BINARY64:
        rounded = _directed(total, error, mode)
    else:
        rounded = round_to(_to_odd(total, error), form, mode)
    if mode == "m":  # x - x is -0 when rounding down, and +0 else
        canceled = (a == -b) & (np.signbit(a) != np.signbit(b))
        rounded = np.where(canceled, -0.0, rounded)
    return rounded


def _sum_to_odd(a: Doubles, b: Doubles) -> Doubles:
    """a + b rounded to odd."""
    total = a + b
    return _to_odd(total, _sum_error(a, b, total))


def _to_odd(total: Doubles, error: Doubles) -> Doubles:
    """A float64 sum, and one unit from an even last bit toward the exact sum if it has an error."""
    if not error.any():
        return total
    units = total.view(np.int64)
    grows = np.signbit(error) == np.signbit(total)
    to_odd = (error != 0) & (units & 1 == 0)
    odd: Doubles = np.where(to_odd, np.where(grows, units + 1, units - 1), units).view(np.float64)
    return odd


def _sum_error(a: Doubles, b: Doubles, total: Doubles) -> Doubles:
    """The exact a + b less the float64 sum (Knuth's TwoSum), or its sign where that overflowed."""
    from_b = total - a
    error = (a - (total - from_b)) + (b - from_b)
    if np.isfinite(error).all():
        return error
    overflowed = np.isinf(total) & np.isfinite(a) & np.isfinite(b)
    return np.where(overflowed, -total, np.where(np.isfinite(total), error, 0.0))


def _directed(nearest: Doubles, error: Doubles, mode: str) -> Doubles:
    """A float64 result rounded in a mode, from the nearest one and the sign of its error."""
    if mode == "n":
        return nearest
    goal = {"p": np.inf, "m": -np.inf, "z": 0.0}[mode]
    beyond = {"p": error > 0, "m": error < 0, "z": error * np.sign(nearest) < 0}[mode]
    return np.where(beyond, np.nextafter(nearest, goal), nearest)


def rounded_product(a: Doubles, b: Doubles, form: Format, mode: str) -> Doubles:
    """a * b rounded once; a and b are numbers of the format."""
    product = a * b
    if form is not BINARY64:
        return round_to(product, form, mode)
    return product if mode == "n" else _fused64(a, b, np.copysign(0.0, product), mode)


def rounded_product_sum(a: Doubles, b: Doubles, c: Doubles, form: Format, mode: str) -> Doubles:
    """a * b + c rounded once; a, b and c are numbers of the format."""
    if form is BINARY64:
        return _fused64(a, b, c, mode)
    product = a * b
    if mode == "n" and not product.any():
        # A product of narrower numbers does not underflow to zero: the sum is c.
        return product + c
    return rounded_sum(product, c, form, mode)


def _fused64(a: Doubles, b: Doubles, c: Doubles, mode: str) -> Doubles:
    """a * b + c in float64, with integer arithmetic where float64's own is not exact enough."""
    lanes = np.broadcast_arrays(a, b, c)
    result = np.empty(lanes[0].shape, np.float64)
    exact: Mask = np.zeros(result.shape, bool)
    if mode == "n":
        # Neither the product nor its error overflows or underflows.
        factors = np.abs(lanes[:2])
        exact = np.logical_and.reduce((factors > 2.0**-480) & (factors < 2.0**480))
        exact = exact & (np.abs(lanes[2]) < 2.0**960)
        result[exact] = _fused64_to_nearest(*(each[exact] for each in lanes))
        # The product with a zero is one.
        zero = (np.minimum(*factors) == 0) & (np.maximum(*factors) < np.inf)
        result[zero] = (lanes[0] * lanes[1] + lanes[2])[zero]
        exact = exact | zero
    result[~exact] = [
        _fused64_scalar(float(x), float(y), float(z), mode)
        for x, y, z in zip(*(each[~exact] for each in lanes), strict=True)
    ]
    return result


def _fused64_to_nearest(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    """A product's two halves and c: the errors of two sums, added and rounded to odd, are added to
    the larger of the sums (Boldo and Melquiond)."""
    product, rest = _exact_product(a, b)
    low = c + rest
    high = product + low
    errors = _sum_error(c, rest, low), _sum_error(product, low, high)
    total: Doubles = high + _sum_to_odd(*errors)
    return total


def _exact_product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """The float64 product and its error (Dekker), from factors in halves of 26 bits (Veltkamp)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = (_halves(each) for each in (a, b))
    error = a_high * b_high - product
    return product, ((error + a_high * b_low) + a_low * b_high) + a_low * b_low


def _halves(a: Doubles) -> tuple[Doubles, Doubles]:
    shifted = a * (2.0**27 + 1)
    high = shifted - (shifted - a)
    return high, a - high


def _fused64_scalar(a: float, b: float, c: float, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    (na, da), (nb, db), (nc, dc) = (each.as_integer_ratio() for each in (a, b, c))
    numerator, denominator = na * nb * dc + nc * da * db, da * db * dc
    if numerator == 0:
        product_sign = math.copysign(1.0, a) * math.copysign(1.0, b)
        if product_sign == math.copysign(1.0, c):
            return math.copysign(0.0, c)
        return -0.0 if mode == "m" else 0.0
    return _rounded_quotient(numerator, denominator, mode)


def _rounded_quotient(numerator: int, denominator: int, mode: str) -> float:
    """A non-zero quotient of integers as float64."""
    endless = math.inf if numerator > 0 else -math.inf
    try:
        nearest = numerator / denominator  # of integers, Python rounds it correctly
        rounded, scale = nearest.as_integer_ratio()
        error = numerator * scale - rounded * denominator
    except OverflowError:
        nearest, error = endless, -numerator
    inward = error < 0 if numerator > 0 else error > 0
    outward = error > 0 if numerator > 0 else error < 0
    away = "p" if numerator > 0 else "m"
    if inward and mode not in ("n", away):
        return math.nextafter(nearest, 0.0)
    if outward and mode == away:
        return math.nextafter(nearest, endless)
    return nearest
