"""Native code for binary16 and bfloat16, one or two numbers per register, and from 8 bits to them.

They are computed in a wider format and rounded once: float32 is wide enough for sums of either
format and for products of binary16, float64 rounded to odd for the rest (see
`isa.semantics.rounding`). Conversions are integer code, so that no processor support is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmkit.emulator.codegen.floats import relation_holds
from gemmkit.emulator.codegen.integers import Emit
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.isa.form import Form

_CANONICAL_NAN = 0x7FFF
_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80}
_TWO_TO_112 = 0x7780_0000
_TWO_TO_120 = 0x7B80_0000
_HALF = 0x3F00_0000


def _kind(form: Form, modifier: str = "T") -> str:
    return form[modifier].removesuffix("x2")


def _constant(f: Function, like: Value, bits: int) -> Value:
    """A float32 constant, with as many lanes as `like`."""
    return f.cast("bitcast", literal(like.type, bits), "float")


def widened(f: Function, half: Value, kind: str) -> Value:
    """16 bits to float32, exactly."""
    word = f.resize(half, 32)
    if kind == "bf16":
        return f.cast("bitcast", f.shl(word, 16), "float")
    sign = f.shl(f.and_(word, 0x8000), 16)
    magnitude = f.shl(f.and_(word, 0x7FFF), 13)
    # Read as float32, the exponent is 112 too small. The product is exact, for subnormals too.
    scale = _constant(f, word, _TWO_TO_112)
    number = f.binary("fmul", f.cast("bitcast", magnitude, "float"), scale)
    special = f.compare("uge", magnitude, 0x0F80_0000)
    bits = f.select(special, f.or_(magnitude, 0x7F80_0000), f.cast("bitcast", number, "i32"))
    return f.cast("bitcast", f.or_(bits, sign), "float")


def narrowed(f: Function, number: Value, kind: str) -> Value:
    """float32 rounded to the nearest 16-bit number, ties to even."""
    bits = f.cast("bitcast", number, "i32")
    magnitude = f.and_(bits, 0x7FFF_FFFF)
    rounded = _narrow_bfloat(f, magnitude) if kind == "bf16" else _narrow_half(f, magnitude)
    signed = f.or_(rounded, f.and_(f.lshr(bits, 16), 0x8000))
    is_nan = f.compare("ugt", magnitude, 0x7F80_0000)
    return f.resize(f.select(is_nan, literal(bits.type, _CANONICAL_NAN), signed), 16)


def _narrow_bfloat(f: Function, magnitude: Value) -> Value:
    odd = f.and_(f.lshr(magnitude, 16), 1)
    return f.lshr(f.add(f.add(magnitude, 0x7FFF), odd), 16)


def _narrow_half(f: Function, magnitude: Value) -> Value:
    odd = f.and_(f.lshr(magnitude, 13), 1)
    # The exponent's bias is smaller by 112. A carry out of the fraction increments the exponent.
    normal = f.lshr(f.add(f.add(magnitude, 0xFFF - (112 << 23)), odd), 13)
    # Adding 1/2 rounds a small number at the last bit of the subnormals.
    half = _constant(f, magnitude, _HALF)
    shifted = f.binary("fadd", f.cast("bitcast", magnitude, "float"), half)
    small = f.sub(f.cast("bitcast", shifted, "i32"), _HALF)
    is_small = f.compare("ult", magnitude, 113 << 23)
    is_large = f.compare("uge", magnitude, 143 << 23)
    infinite = literal(magnitude.type, _INFINITY["f16"])
    return f.select(is_large, infinite, f.select(is_small, small, normal))


def _to_odd_float(f: Function, number: Value) -> Value:
    """float64 to float32, truncated, with the last bit set if the result is inexact."""
    near = f.cast("fptrunc", number, "float")
    back = f.cast("fpext", near, "double")
    lost = f.compare_float("one", back, number)
    beyond = f.compare_float("ogt", f.intrinsic("fabs", back), f.intrinsic("fabs", number))
    bits = f.sub(f.cast("bitcast", near, "i32"), f.resize(beyond, 32))
    return f.cast("bitcast", f.or_(bits, f.resize(lost, 32)), "float")


def _to_odd_sum(f: Function, a: Value, b: Value) -> Value:
    """a + b in float64, rounded to odd (Knuth's TwoSum gives the error)."""
    total = f.binary("fadd", a, b)
    from_b = f.binary("fsub", total, a)
    rest_a = f.binary("fsub", a, f.binary("fsub", total, from_b))
    error = f.binary("fadd", rest_a, f.binary("fsub", b, from_b))
    bits, error_bits = (f.cast("bitcast", each, "i64") for each in (total, error))
    zero = f.cast("bitcast", literal(bits.type, 0), "double")
    lost = f.compare_float("one", error, zero)
    even = f.compare("eq", f.and_(bits, 1), 0)
    grows = f.compare("sge", f.xor(bits, error_bits), 0)
    odd = f.select(grows, f.add(bits, 1), f.sub(bits, 1))
    return f.cast("bitcast", f.select(f.and_(lost, even), odd, bits), "double")


Scalar = Callable[[Function, Form, Sequence[Value]], Value]


def _on_each_half(one: Scalar) -> Emit:
    """Code for one number, applied to both numbers of a packed register."""

    def emit(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
        if not form["T"].endswith("x2"):
            return (one(f, form, s),)
        low = one(f, form, [f.resize(each, 16) for each in s])
        high = one(f, form, [f.resize(f.lshr(each, 16), 16) for each in s])
        return (_joined(f, low, high),)

    return emit


def _joined(f: Function, low: Value, high: Value) -> Value:
    return f.or_(f.resize(low, 32), f.shl(f.resize(high, 32), 16))


def _arithmetic(f: Function, form: Form, s: Sequence[Value]) -> Value:
    kind = _kind(form)
    a, b = (widened(f, each, kind) for each in s)
    if form["O"] == "mul" and kind == "bf16":
        # A product below the normal range of float32 would be rounded twice.
        a, b = (f.cast("fpext", each, "double") for each in (a, b))
        return narrowed(f, _to_odd_float(f, f.binary("fmul", a, b)), kind)
    operation = {"add": "fadd", "sub": "fsub", "mul": "fmul"}[form["O"]]
    return narrowed(f, f.binary(operation, a, b), kind)


def _fused(f: Function, form: Form, s: Sequence[Value]) -> Value:
    kind = _kind(form)
    a, b, c = (f.cast("fpext", widened(f, each, kind), "double") for each in s)
    total = _to_odd_sum(f, f.binary("fmul", a, b), c)
    return narrowed(f, _to_odd_float(f, total), kind)


def _sign(f: Function, form: Form, s: Sequence[Value]) -> Value:
    return f.and_(s[0], 0x7FFF) if form["O"] == "abs" else f.xor(s[0], 0x8000)


def _extreme(f: Function, form: Form, s: Sequence[Value]) -> Value:
    """The number wins over a NaN unless `.NaN` is set; -0 is less than +0."""
    x, y = (widened(f, each, _kind(form)) for each in s)
    equal = f.compare_float("oeq", x, y)
    less = f.or_(f.compare_float("olt", x, y), f.and_(equal, f.compare("slt", s[0], 0)))
    first, second = s if form["O"] == "min" else (s[1], s[0])
    chosen = f.select(less, first, second)
    x_nan, y_nan = (f.compare_float("uno", each, each) for each in (x, y))
    none = f.or_(x_nan, y_nan) if form["N"] else f.and_(x_nan, y_nan)
    chosen = f.select(x_nan, s[1], f.select(y_nan, s[0], chosen))
    return f.select(none, literal(chosen.type, _CANONICAL_NAN), chosen)


def _compare(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    a, b = (widened(f, each, _kind(form)) for each in s[:2])
    holds = relation_holds(f, form["C"], a, b)
    return (holds, f.not_(holds))


def _convert_narrow(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (narrowed(f, f.cast("bitcast", s[0], "float"), _kind(form, "D")),)


def _convert_widen(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    number = widened(f, s[0], _kind(form))
    if form["D"] == "f64":
        return (f.cast("bitcast", f.cast("fpext", number, "double"), "i64"),)
    return (f.cast("bitcast", number, "i32"),)


def _convert_pack(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    kind = _kind(form, "D")
    high, low = (narrowed(f, f.cast("bitcast", each, "float"), kind) for each in s)
    return (_joined(f, low, high),)


def _widened_byte(f: Function, byte: Value, kind: str) -> Value:
    """8 bits (e4m3 or e5m2) to binary16, exactly; a NaN loses its sign."""
    magnitude = f.and_(byte, 0x7F)
    if kind == "e5m2":
        bits = f.shl(magnitude, 8)
        is_nan = f.compare("ugt", magnitude, 0x7C)
    else:
        # Read as float32, the exponent is 120 too small. The product is exact, for subnormals too.
        word = f.shl(f.resize(magnitude, 32), 20)
        scale = _constant(f, word, _TWO_TO_120)
        bits = narrowed(f, f.binary("fmul", f.cast("bitcast", word, "float"), scale), "f16")
        is_nan = f.compare("eq", magnitude, 0x7F)
    signed = f.or_(bits, f.shl(f.and_(byte, 0x80), 8))
    return f.select(is_nan, literal(signed.type, _CANONICAL_NAN), signed)


def _convert_bytes(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    kind = _kind(form, "E")
    return (_joined(f, *(_widened_byte(f, each, kind) for each in (s[0], f.lshr(s[0], 8)))),)


EMITTERS: Mapping[str, Emit] = {
    "half": _on_each_half(_arithmetic),
    "half_fma": _on_each_half(_fused),
    "half_sign": _on_each_half(_sign),
    "half_extreme": _on_each_half(_extreme),
    "compare": _compare,
    "convert_narrow": _convert_narrow,
    "convert_widen": _convert_widen,
    "convert_pack": _convert_pack,
    "convert_fp8_widen": _convert_bytes,
}
_NARROW = frozenset(["f16", "bf16"])


def native(form: Form) -> bool:
    """Whether there is an emitter for this form."""
    modifiers = form.modifiers
    if form.operation not in EMITTERS or modifiers.get("A") or modifiers.get("F"):
        return False
    if form.operation == "convert_narrow":
        return form["D"] in _NARROW and form["T"] == "f32" and form["R"] == "rn"
    if form.operation == "convert_pack":
        return form["R"] == "rn"
    if form.operation in ("compare", "convert_widen"):
        return form["T"] in _NARROW
    return True
