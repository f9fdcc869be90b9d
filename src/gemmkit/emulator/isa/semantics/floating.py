"""Arithmetic on float32 and float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.raw import UNSIGNED, Bits, Mask, Operation
from gemmkit.emulator.isa.semantics.rounding import (
    BINARY64,
    FORMATS,
    Doubles,
    decode,
    direction,
    encode,
    flush,
    round_to,
    rounded_product,
    rounded_product_sum,
    rounded_sum,
    saturate,
)


def _source(form: Form, bits: Bits) -> Doubles:
    kind = FORMATS[form["T"]]
    values = decode(bits, kind)
    return flush(values, kind) if form.modifiers.get("F") else values


def _result(form: Form, values: Doubles) -> Bits:
    kind = FORMATS[form["T"]]
    if form.modifiers.get("F"):
        values = flush(values, kind)
    if form.modifiers.get("A") == "sat":
        values = saturate(values)
    return encode(values, kind)


def _float(form: Form, a: Bits, b: Bits) -> Bits:
    x, y = _source(form, a), _source(form, b)
    kind, mode = FORMATS[form["T"]], direction(form["R"])
    if form["O"] == "mul":
        return _result(form, rounded_product(x, y, kind, mode))
    return _result(form, rounded_sum(x, -y if form["O"] == "sub" else y, kind, mode))


def _fused_multiply_add(form: Form, a: Bits, b: Bits, c: Bits) -> Bits:
    x, y, z = (_source(form, each) for each in (a, b, c))
    total = rounded_product_sum(x, y, z, FORMATS[form["T"]], direction(form["R"]))
    return _result(form, total)


def _float_divide(form: Form, a: Bits, b: Bits) -> Bits:
    if form["T"] == "f64":
        return _result(form, _source(form, a) / _source(form, b))
    # In float32, so that a subnormal quotient is rounded once.
    x, y = (_source(form, each).astype(np.float32) for each in (a, b))
    return _result(form, (x / y).astype(np.float64))


def _float_root(form: Form, a: Bits) -> Bits:
    x = _source(form, a)
    if form["T"] == "f64":
        return _result(form, np.sqrt(x) if form["O"] == "sqrt" else 1.0 / x)
    narrow = x.astype(np.float32)
    root = np.sqrt(narrow) if form["O"] == "sqrt" else np.float32(1.0) / narrow
    return _result(form, root.astype(np.float64))


# The part of an fp64 number that `.approx.ftz` reads and gives.
UPPER_HALF = 0xFFFF_FFFF_0000_0000

_APPROXIMATED: Mapping[str, Callable[[Doubles], Doubles]] = {
    "sqrt": np.sqrt,
    "rcp": lambda x: 1.0 / x,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def _approximate(form: Form, a: Bits) -> Bits:
    kind = FORMATS[form["T"]]
    if kind is not BINARY64:
        values = _APPROXIMATED[form["O"]](_source(form, a))
        return _result(form, round_to(values, kind, "n"))
    halved = bool(form.modifiers.get("F"))
    values = _APPROXIMATED[form["O"]](_source(form, _upper_half(a) if halved else a))
    return _upper_half(_result(form, values)) if halved else _result(form, values)


def _upper_half(bits: Bits) -> Bits:
    """fp64 numbers without the lower 32 bits; a NaN stays a NaN."""
    return np.where(np.isnan(bits.view(np.float64)), bits, bits & np.uint64(UPPER_HALF))


def _float_extreme(form: Form, a: Bits, b: Bits) -> Bits:
    x, y = _source(form, a), _source(form, b)
    return _result(form, extreme(x, y, form["O"], bool(form.modifiers.get("N"))))


def extreme(x: Doubles, y: Doubles, operation: str, nan_wins: bool) -> Doubles:
    """`min` or `max`: -0 is less than +0; the number wins over a NaN unless `nan_wins`."""
    lesser = (x < y) | ((x == y) & np.signbit(x))
    chosen = np.where(lesser == (operation == "min"), x, y)
    if nan_wins:
        return np.where(np.isnan(x) | np.isnan(y), np.nan, chosen)
    return np.where(np.isnan(x), y, np.where(np.isnan(y), x, chosen))


def _float_sign(form: Form, a: Bits) -> Bits:
    if form.modifiers.get("F"):
        a = encode(_source(form, a), FORMATS[form["T"]])
    sign = _sign_bit(form)
    return a & ~sign if form["O"] == "abs" else a ^ sign


def _sign_bit(form: Form) -> Bits:
    width = form.type.bits
    return np.asarray(UNSIGNED[width](1 << width - 1))


def _copy_sign(form: Form, a: Bits, b: Bits) -> Bits:
    """b with the sign of a."""
    sign = _sign_bit(form)
    return (a & sign) | (b & ~sign)


def _test_property(form: Form, a: Bits) -> Mask:
    values = decode(a, FORMATS[form["T"]])
    subnormal = (values != 0) & (np.abs(values) < FORMATS[form["T"]].smallest_normal)
    properties: Mapping[str, Mask] = {
        "finite": np.isfinite(values),
        "infinite": np.isinf(values),
        "number": ~np.isnan(values),
        "notanumber": np.isnan(values),
        "normal": np.isfinite(values) & ~subnormal,  # zeros count as normal
        "subnormal": subnormal,
    }
    return properties[form["P"]]


OPERATIONS: Mapping[str, Operation] = {
    "float": _float,
    "fused_multiply_add": _fused_multiply_add,
    "float_divide": _float_divide,
    "float_divide_approximate": _float_divide,
    "float_extreme": _float_extreme,
    "float_sign": _float_sign,
    "copy_sign": _copy_sign,
    "test_property": _test_property,
    "float_root": _float_root,
    "approximate": _approximate,
}
