"""Arithmetic on binary16 and bfloat16, one or two numbers per register."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.floating import extreme
from gemmkit.emulator.isa.semantics.raw import Bits, Operation
from gemmkit.emulator.isa.semantics.rounding import (
    FORMATS,
    Doubles,
    decode,
    encode,
    flush,
    rounded_product,
    rounded_product_sum,
    rounded_sum,
    saturate,
)


def halves(bits: Bits) -> tuple[Bits, Bits]:
    """The lower and the upper 16 bits of 32."""
    return bits.astype(np.uint16), (bits >> np.uint32(16)).astype(np.uint16)


def joined(low: Bits, high: Bits) -> Bits:
    """32 bits from a lower and an upper half."""
    return high.astype(np.uint32) << np.uint32(16) | low.astype(np.uint32)


def _on_each_half(operation: Callable[..., Bits]) -> Callable[..., Bits]:
    """An operation on single numbers, applied to both numbers of a packed register."""

    def packed(form: Form, *sources: Bits) -> Bits:
        if form.type.kind != "packed":
            return operation(form, *sources)
        low, high = zip(*(halves(source) for source in sources), strict=True)
        return joined(operation(form, *low), operation(form, *high))

    return packed


def _source(form: Form, bits: Bits) -> Doubles:
    kind = FORMATS[form["T"]]
    values = decode(bits, kind)
    return flush(values, kind) if form["F"] else values


def _result(form: Form, values: Doubles) -> Bits:
    kind = FORMATS[form["T"]]
    if form["F"]:
        values = flush(values, kind)
    clamp = form.modifiers.get("A")
    if clamp == "sat":
        values = saturate(values)
    elif clamp == "relu":
        values = rectified(values)
    return encode(values, kind)


def rectified(values: Doubles) -> Doubles:
    """`.relu`: negative numbers become +0, a NaN stays."""
    return np.where(values <= 0, 0.0, values)


@_on_each_half
def _half(form: Form, a: Bits, b: Bits) -> Bits:
    x, y, kind = _source(form, a), _source(form, b), FORMATS[form["T"]]
    if form["O"] == "mul":
        return _result(form, rounded_product(x, y, kind, "n"))
    return _result(form, rounded_sum(x, -y if form["O"] == "sub" else y, kind, "n"))


@_on_each_half
def _half_fma(form: Form, a: Bits, b: Bits, c: Bits) -> Bits:
    x, y, z = (_source(form, each) for each in (a, b, c))
    return _result(form, rounded_product_sum(x, y, z, FORMATS[form["T"]], "n"))


@_on_each_half
def _half_sign(form: Form, a: Bits) -> Bits:
    if form["F"]:
        a = encode(_source(form, a), FORMATS[form["T"]])
    sign = np.uint16(0x8000)
    return a & ~sign if form["O"] == "abs" else a ^ sign


@_on_each_half
def _half_extreme(form: Form, a: Bits, b: Bits) -> Bits:
    x, y = _source(form, a), _source(form, b)
    return _result(form, extreme(x, y, form["O"], bool(form["N"])))


OPERATIONS: Mapping[str, Operation] = {
    "half": _half,
    "half_fma": _half_fma,
    "half_sign": _half_sign,
    "half_extreme": _half_extreme,
}
