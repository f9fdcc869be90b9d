"""Conversions between 8-bit floating-point numbers (e4m3, e5m2), two to a register, and wider ones.

Bit for bit those of an H100: rounded to nearest, ties to even; what is too large, infinities
included, becomes the largest finite number; a zero keeps its sign, a NaN loses it and its payload.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.half import halves, joined, rectified
from gemmkit.emulator.isa.semantics.raw import Bits, Operation
from gemmkit.emulator.isa.semantics.rounding import BINARY16, BINARY32, Doubles, decode, encode
from gemmkit.emulator.numerics.formats import FORMATS, Format, numbers_of, raw_of

_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
_NAN = 0x7F
_SIGN = 0x80


def _format(form: Form) -> tuple[Format, float]:
    name = form["E"].removesuffix("x2")
    return FORMATS[name], _LARGEST[name]


def _narrowed(form: Form, values: Doubles) -> Bits:
    """Numbers as 8 bits each, in 16."""
    of, largest = _format(form)
    if form["A"] == "relu":
        values = rectified(values)
    exponent = np.maximum(np.frexp(values)[1] - 1, of.lowest) - of.fraction_bits
    rounded = np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent)
    size = np.minimum(np.abs(np.where(np.isfinite(values), rounded, values)), largest)
    bits = raw_of(np.where(np.isnan(values), 0.0, size), of).astype(np.uint16)
    bits |= np.where(np.signbit(values), np.uint16(_SIGN), np.uint16(0))
    return np.where(np.isnan(values), np.uint16(_NAN), bits)


def _pair(high: Bits, low: Bits) -> Bits:
    found: Bits = high << np.uint16(8) | low
    return found


def _convert_pack(form: Form, a: Bits, b: Bits) -> Bits:
    """Two float32 numbers, the first to the upper half."""
    high, low = (_narrowed(form, decode(each, BINARY32)) for each in (a, b))
    return _pair(high, low)


def _convert_narrow(form: Form, a: Bits) -> Bits:
    """The two numbers of an f16x2."""
    low, high = (_narrowed(form, decode(each, BINARY16)) for each in halves(a))
    return _pair(high, low)


def _convert_widen(form: Form, a: Bits) -> Bits:
    """To an f16x2, exactly."""
    of, _ = _format(form)
    found = []
    for part in (a & np.uint16(0xFF), a >> np.uint16(8)):
        values = numbers_of(part, of)
        if form["A"] == "relu":
            values = rectified(values)
        found.append(encode(values, BINARY16))
    return joined(*found)


OPERATIONS: Mapping[str, Operation] = {
    "convert_fp8_pack": _convert_pack,
    "convert_fp8_narrow": _convert_narrow,
    "convert_fp8_widen": _convert_widen,
}
