"""Integer arithmetic: two's complement, wrapping unless a form saturates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.raw import (
    SIGNED,
    UNSIGNED,
    Bits,
    Integers,
    Mask,
    Operation,
    integers,
    ones,
    raw,
)
from gemmkit.emulator.isa.types import TYPES, PtxType, widened

_BASIC: Mapping[str, Callable[[Integers, Integers], Integers]] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
}


def _integer(form: Form, a: Bits, b: Bits) -> Bits:
    of = form.type
    return raw(_BASIC[form["O"]](integers(a, of), integers(b, of)), of.bits)


def _integer_saturate(form: Form, a: Bits, b: Bits) -> Bits:
    wide = _BASIC[form["O"]](a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64))
    return raw(np.clip(wide, -(2**31), 2**31 - 1), 32)


def _carry(form: Form, a: Bits, b: Bits, carry: Mask | None = None) -> tuple[Bits, Mask]:
    """Sum or difference with the carry (of a difference: borrow) in and out."""
    taken = raw(np.asarray(False if carry is None else carry), form.type.bits)
    if form["O"] == "add":
        partial = a + b
        total = partial + taken
        return total, (partial < a) | (total < partial)
    partial = a - b
    return partial - taken, (a < b) | (partial < taken)


def _carry_in(form: Form, a: Bits, b: Bits, carry: Mask) -> Bits:
    return _carry(form, a, b, carry)[0]


def _multiply(form: Form, a: Bits, b: Bits) -> Bits:
    of = form.type
    return a * b if form["P"] == "lo" else _high_half(a, b, of)


def _multiply_add(form: Form, a: Bits, b: Bits, c: Bits) -> Bits:
    return _multiply(form, a, b) + c


def _high_half(a: Bits, b: Bits, of: PtxType) -> Bits:
    if of.bits < 64:
        wide = SIGNED[64] if of.is_signed else UNSIGNED[64]
        product = integers(a, of).astype(wide) * integers(b, of).astype(wide)
        return raw(product >> wide(of.bits), of.bits)
    high = _high_half_u64(a, b)
    if of.is_signed:  # a negative factor reads as itself plus 2**64
        zero = np.uint64(0)
        high = high - np.where(a.view(np.int64) < 0, b, zero)
        high = high - np.where(b.view(np.int64) < 0, a, zero)
    return high


def _high_half_u64(a: Bits, b: Bits) -> Bits:
    """Long multiplication with digits of 32 bits."""
    digit, mask = np.uint64(32), np.uint64(2**32 - 1)
    a_high, a_low, b_high, b_low = a >> digit, a & mask, b >> digit, b & mask
    low = a_low * b_low
    middle = a_high * b_low + (low >> digit)
    other_middle = a_low * b_high + (middle & mask)
    high: Bits = a_high * b_high + (middle >> digit) + (other_middle >> digit)
    return high


def _multiply_wide(form: Form, a: Bits, b: Bits) -> Bits:
    of, to = form.type, TYPES[widened(form["T"])]
    wide = SIGNED[to.bits] if of.is_signed else UNSIGNED[to.bits]
    return raw(integers(a, of).astype(wide) * integers(b, of).astype(wide), to.bits)


def _multiply_add_wide(form: Form, a: Bits, b: Bits, c: Bits) -> Bits:
    return _multiply_wide(form, a, b) + c


def _multiply24(form: Form, a: Bits, b: Bits) -> Bits:
    """The low half of the product of the operands' low 24 bits."""
    mask = np.uint32(0xFFFFFF)
    return (a & mask) * (b & mask) if not form.type.is_signed else _signed24(a) * _signed24(b)


def _signed24(bits: Bits) -> Bits:
    eight = np.uint32(8)
    return raw((bits << eight).view(np.int32) >> np.int32(8), 32)


def _multiply24_add(form: Form, a: Bits, b: Bits, c: Bits) -> Bits:
    return _multiply24(form, a, b) + c


def _divide(form: Form, a: Bits, b: Bits) -> Bits:
    """Quotient rounded toward zero, or the remainder with the dividend's sign.

    A zero divisor gives all ones, in quotient and remainder: PTX leaves it undefined, and this is
    what the instruction sequences of ptxas give.
    """
    of = form.type
    x, y = integers(a, of), integers(b, of)
    numerator, denominator = _magnitude(x, of), _magnitude(y, of)
    divisor = np.where(denominator == 0, UNSIGNED[of.bits](1), denominator)
    if form["O"] == "div":
        result, negative = numerator // divisor, (x < 0) != (y < 0)
    else:
        result, negative = numerator % divisor, (x < 0) & np.ones_like(y, bool)
    return np.where(b == 0, ones(of.bits), np.where(negative, np.negative(result), result))


def _magnitude(values: Integers, of: PtxType) -> Bits:
    """Absolute values as unsigned numbers, correct for the most negative one too."""
    return raw(np.abs(values), of.bits)


def _integer_unary(form: Form, a: Bits) -> Bits:
    values = integers(a, form.type)
    return raw(np.abs(values) if form["O"] == "abs" else np.negative(values), form.type.bits)


def _absolute_difference_add(form: Form, a: Bits, b: Bits, c: Bits) -> Bits:
    x, y = integers(a, form.type), integers(b, form.type)
    return c + raw(np.maximum(x, y), form.type.bits) - raw(np.minimum(x, y), form.type.bits)


def _dot4(form: Form, a: Bits, b: Bits, c: Bits) -> Bits:
    """Four products of bytes, each operand's bytes signed or not, added to c."""
    total = c
    for index in range(4):
        shift = np.uint32(8 * index)
        x = _byte(a >> shift, TYPES[form["T"]].is_signed)
        y = _byte(b >> shift, TYPES[form["U"]].is_signed)
        total = total + x * y
    return total


def _byte(bits: Bits, signed: bool) -> Bits:
    low = bits.astype(np.uint8)
    return raw(low.view(np.int8) if signed else low, 32)


OPERATIONS: Mapping[str, Operation] = {
    "integer": _integer,
    "integer_saturate": _integer_saturate,
    "carry_out": _carry,
    "carry_in": _carry_in,
    "multiply": _multiply,
    "multiply_add": _multiply_add,
    "multiply_wide": _multiply_wide,
    "multiply_add_wide": _multiply_add_wide,
    "multiply24": _multiply24,
    "multiply24_add": _multiply24_add,
    "divide": _divide,
    "integer_unary": _integer_unary,
    "absolute_difference_add": _absolute_difference_add,
    "dot4": _dot4,
}
