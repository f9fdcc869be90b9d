"""Conversions between PTX's types."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.half import joined, rectified
from gemmkit.emulator.isa.semantics.raw import (
    SIGNED,
    UNSIGNED,
    Bits,
    Integers,
    Operation,
    integers,
    raw,
)
from gemmkit.emulator.isa.semantics.rounding import (
    BINARY32,
    FORMATS,
    Doubles,
    decode,
    direction,
    encode,
    flush,
    integral,
    round_to,
    rounded_sum,
    saturate,
)
from gemmkit.emulator.isa.types import TYPES, PtxType


def _bounds(of: PtxType) -> tuple[int, int]:
    return (-(2 ** (of.bits - 1)), 2 ** (of.bits - 1) - 1) if of.is_signed else (0, 2**of.bits - 1)


def _convert_integer(form: Form, a: Bits) -> Bits:
    return raw(integers(a, form.type), TYPES[form["D"]].bits)


def _convert_integer_saturate(form: Form, a: Bits) -> Bits:
    to, of = TYPES[form["D"]], form.type
    (least, most), (low, high) = _bounds(of), _bounds(to)
    return raw(np.clip(integers(a, of), max(least, low), min(most, high)), to.bits)


def _convert_to_float(form: Form, a: Bits) -> Bits:
    """A 64-bit integer is split into the sum of two float64 numbers, which is then rounded once."""
    kind = FORMATS[form["D"]]
    wide = integers(a, form.type).astype(SIGNED[64] if form.type.is_signed else UNSIGNED[64])
    low = wide.astype(np.uint64) & np.uint64(2**32 - 1)
    high = (wide >> wide.dtype.type(32)).astype(np.float64) * 2.0**32
    return encode(rounded_sum(high, low.astype(np.float64), kind, direction(form["R"])), kind)


def _source(form: Form, bits: Bits) -> Doubles:
    return _flushed(form, decode(bits, FORMATS[form["T"]]), form["T"])


def _flushed(form: Form, values: Doubles, name: str) -> Doubles:
    """`.ftz` flushes only float32 numbers, for any conversion."""
    return flush(values, BINARY32) if form.modifiers.get("F") and name == "f32" else values


def _result(form: Form, values: Doubles) -> Bits:
    values = _flushed(form, values, form["D"])
    if form.modifiers.get("A") == "sat":
        values = saturate(values)
    return encode(values, FORMATS[form["D"]])


def _convert_to_integer(form: Form, a: Bits) -> Bits:
    """Clamped to the range; a NaN gives 0, or 2 ** (bits - 1) if one of the types has 64 bits."""
    to = TYPES[form["D"]]
    whole = integral(_source(form, a), direction(form["R"]))
    nan = 2 ** (to.bits - 1) if 64 in (to.bits, form.type.bits) else 0
    return _clamped(whole, to, nan)


def _clamped(whole: Doubles, to: PtxType, nan: int) -> Bits:
    low, high = _bounds(to)
    inside = (whole >= low) & (whole < float(high + 1))
    native = SIGNED[64] if to.is_signed else UNSIGNED[64]
    within: Integers = np.where(inside, whole, 0.0).astype(native)
    clamped = np.where(
        inside,
        raw(within, to.bits),
        np.where(whole < low, UNSIGNED[to.bits](low % 2**to.bits), UNSIGNED[to.bits](high)),
    )
    return np.where(np.isnan(whole), UNSIGNED[to.bits](nan), clamped)


def _convert_narrow(form: Form, a: Bits) -> Bits:
    return _result(form, round_to(_source(form, a), FORMATS[form["D"]], direction(form["R"])))


def _convert_widen(form: Form, a: Bits) -> Bits:
    """To the same format or one that holds all of its numbers: nothing is rounded."""
    return _result(form, _source(form, a))


def _round_to_integral(form: Form, a: Bits) -> Bits:
    return _result(form, integral(_source(form, a), direction(form["R"])))


def _convert_pack(form: Form, a: Bits, b: Bits) -> Bits:
    """Two float32 numbers to the two halves of a register, the first to the upper half."""
    kind, mode = FORMATS[form["D"]], direction(form["R"])
    high, low = (round_to(decode(each, BINARY32), kind, mode) for each in (a, b))
    if form["A"] == "relu":
        high, low = rectified(high), rectified(low)
    return joined(encode(low, kind), encode(high, kind))


def _convert_tf32(form: Form, a: Bits) -> Bits:
    """To tf32, a float32 number whose low 13 bits are zero; `.rna` rounds ties away from zero."""
    kept, quiet = np.uint32(0xFFFF_E000), np.uint32(BINARY32.canonical_nan)
    bits = np.where(np.isnan(decode(a, BINARY32)), quiet & kept, a)
    if form["A"] == "relu":
        bits = np.where(bits >> np.uint32(31), np.uint32(0), bits)
    half = {"rna": np.uint32(0x1000), "rz": np.uint32(0)}.get(
        form["R"], np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
    )
    # The low bits of the NaN are zero, so that nothing is carried into its fraction.
    return (bits + half) & kept


OPERATIONS: Mapping[str, Operation] = {
    "convert_integer": _convert_integer,
    "convert_integer_saturate": _convert_integer_saturate,
    "convert_to_float": _convert_to_float,
    "convert_to_integer": _convert_to_integer,
    "convert_narrow": _convert_narrow,
    "convert_widen": _convert_widen,
    "round_to_integral": _round_to_integral,
    "saturate": _convert_widen,
    "convert_pack": _convert_pack,
    "convert_tf32": _convert_tf32,
}
