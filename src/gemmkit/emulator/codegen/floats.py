"""Native code for floating-point arithmetic, comparisons and conversions.

Numbers are kept in integer registers between instructions and read as LLVM's floating-point types
here. `halves` has the 16-bit formats. Everything else (rounding other than to nearest,
transcendental functions) is executed through the definitions of `isa.semantics`. Where those give
the canonical NaN, this code gives the processor's NaN, of any sign and payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmkit.emulator.codegen.integers import Emit
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.floating import UPPER_HALF
from gemmkit.emulator.isa.types import TYPES, PtxType

_LLVM = {"f16": "half", "f32": "float", "f64": "double"}
_NEAREST = ("", "rn")
_LEAST_NORMAL = {"f32": 0x0080_0000, "f64": 0x0010_0000_0000_0000}
_RELATIONS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _float(f: Function, bits: Value, name: str) -> Value:
    return f.cast("bitcast", bits, _LLVM[name])


def _bits(f: Function, number: Value, name: str) -> Value:
    return f.cast("bitcast", number, f"i{TYPES[name].bits}")


def _flushed(f: Function, bits: Value, name: str) -> Value:
    """Subnormal numbers become zeros of the same sign."""
    sign = literal(bits.type, 1 << (TYPES[name].bits - 1))
    magnitude = f.and_(bits, f.not_(sign))
    normal = f.compare("uge", magnitude, _LEAST_NORMAL[name])
    return f.select(normal, bits, f.and_(bits, sign))


def _source(f: Function, form: Form, bits: Value) -> Value:
    name = form["T"]
    return _float(f, _flushed(f, bits, name) if form.modifiers.get("F") else bits, name)


def _result(f: Function, form: Form, number: Value) -> Sequence[Value]:
    bits = _bits(f, number, form["T"])
    return (_flushed(f, bits, form["T"]) if form.modifiers.get("F") else bits,)


_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


def _arithmetic(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    a, b = (_source(f, form, each) for each in s)
    return _result(f, form, f.binary(_ARITHMETIC[form["O"]], a, b))


def _fused(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return _result(f, form, f.intrinsic("fma", *(_source(f, form, each) for each in s)))


def _divide(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    a, b = (_source(f, form, each) for each in s)
    return _result(f, form, f.binary("fdiv", a, b))


def _one(f: Function, like: Value) -> Value:
    one = {"float": 0x3F80_0000, "double": 0x3FF0_0000_0000_0000}
    element = "double" if "double" in like.type else "float"
    bits = like.type.replace(element, "i64" if element == "double" else "i32")
    return f.cast("bitcast", literal(bits, one[element]), element)


def _root(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    a = _source(f, form, s[0])
    if form["O"] == "sqrt":
        return _result(f, form, f.intrinsic("sqrt", a))
    return _result(f, form, f.binary("fdiv", _one(f, a), a))


def _approximate(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """As defined: computed in float64, then rounded."""
    halved = form["T"] == "f64" and bool(form.modifiers.get("F"))
    a = _source(f, form, _upper_half(f, s[0]) if halved else s[0])
    wide = f.cast("fpext", a, "double") if form["T"] == "f32" else a
    if form["O"] in ("sqrt", "rsqrt"):
        wide = f.intrinsic("sqrt", wide)
    if form["O"] in ("rcp", "rsqrt"):
        wide = f.binary("fdiv", _one(f, wide), wide)
    found = _result(f, form, f.cast("fptrunc", wide, "float") if form["T"] == "f32" else wide)
    return [_upper_half(f, each) for each in found] if halved else found


def _upper_half(f: Function, bits: Value) -> Value:
    """An fp64 number without the lower 32 bits; a NaN stays a NaN."""
    number = _float(f, bits, "f64")
    return f.select(f.compare_float("uno", number, number), bits, f.and_(bits, UPPER_HALF))


def _extreme(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """The number wins over a NaN unless `.NaN` is set; -0 is less than +0."""
    x, y = (_source(f, form, each) for each in s)
    negative = f.compare("slt", s[0], 0)
    lesser = f.or_(f.compare_float("olt", x, y), f.and_(f.compare_float("oeq", x, y), negative))
    first, second = (x, y) if form["O"] == "min" else (y, x)
    chosen = f.select(lesser, first, second)
    x_nan, y_nan = (f.compare_float("uno", each, each) for each in (x, y))
    if form.modifiers.get("N"):
        chosen = f.select(y_nan, y, f.select(x_nan, x, chosen))
    else:
        chosen = f.select(x_nan, y, f.select(y_nan, x, chosen))
    return _result(f, form, chosen)


def _sign(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    bits = _flushed(f, s[0], form["T"]) if form.modifiers.get("F") else s[0]
    sign = 1 << (form.type.bits - 1)
    return (f.and_(bits, sign - 1) if form["O"] == "abs" else f.xor(bits, sign),)


def _copy_sign(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    sign = 1 << (form.type.bits - 1)
    return (f.or_(f.and_(s[0], sign), f.and_(s[1], sign - 1)),)


def _holds(f: Function, form: Form, a: Value, b: Value) -> Value:
    relation = _RELATIONS.get(form["C"], form["C"])
    if not form.type.is_float:
        if relation in ("eq", "ne"):
            return f.compare(relation, a, b)
        return f.compare(f"{'s' if form.type.is_signed else 'u'}{relation}", a, b)
    x, y = (_source(f, form, each) for each in (a, b))
    return relation_holds(f, relation, x, y)


def relation_holds(f: Function, relation: str, x: Value, y: Value) -> Value:
    """A relation of PTX between floating-point numbers, such as `lt`, `neu` or `nan`."""
    if relation in ("num", "nan"):
        return f.compare_float("ord" if relation == "num" else "uno", x, y)
    unordered = relation.endswith("u")
    return f.compare_float(("u" if unordered else "o") + relation[:2], x, y)


def _compare(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    holds = _holds(f, form, s[0], s[1])
    return (holds, f.not_(holds))


def _compare_combine(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    holds = _holds(f, form, s[0], s[1])
    return tuple(f.binary(form["B"], each, s[2]) for each in (holds, f.not_(holds)))


def _compare_value(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    holds = _holds(f, form, s[0], s[1])
    ones = f.resize(holds, 32, signed=True)
    return (f.and_(ones, 0x3F80_0000) if form["D"] == "f32" else ones,)


def _select_by_sign(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    if form["U"] == "s32":
        return (f.select(f.compare("sge", s[2], 0), s[0], s[1]),)
    number = _float(f, s[2], "f32")
    zero = _float(f, literal(s[2].type, 0), "f32")
    return (f.select(f.compare_float("oge", number, zero), s[0], s[1]),)


def _convert_to_float(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    to = form["D"]
    operation = "sitofp" if form.type.is_signed else "uitofp"
    return (_bits(f, f.cast(operation, s[0], _LLVM[to]), to),)


_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _convert_to_integer(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """Clamped to the range; a NaN gives 0, or the top bit if one of the types has 64 bits."""
    to: PtxType = TYPES[form["D"]]
    number = f.intrinsic(_INTEGRAL[form["R"]], _source(f, form, s[0]))
    name = f"fpto{'s' if to.is_signed else 'u'}i.sat"
    result = s[0].type.replace(f"i{form.type.bits}", f"i{to.bits}")
    whole = _saturating_conversion(f, name, number, result)
    if 64 in (to.bits, form.type.bits):
        is_nan = f.compare_float("uno", number, number)
        whole = f.select(is_nan, literal(result, 1 << (to.bits - 1)), whole)
    return (whole,)


def _saturating_conversion(f: Function, name: str, number: Value, result: str) -> Value:
    """Call an intrinsic whose name includes the types of both its result and its operand."""
    lanes = result.startswith("<")
    element = {"float": "f32", "double": "f64"}[
        number.type[number.type.index("x ") + 2 : -1] if lanes else number.type
    ]
    to = result[result.index("i") : -1] if lanes else result
    prefix = f"v{result[1 : result.index(' ')]}" if lanes else ""
    return f.call(f"llvm.{name}.{prefix}{to}.{prefix}{element}", result, number)


def _convert_float(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """Conversion between floating-point formats, to nearest."""
    of, to = form["T"], form["D"]
    bits = _flushed(f, s[0], of) if form.modifiers.get("F") and of == "f32" else s[0]
    narrow = TYPES[to].bits < TYPES[of].bits
    number = f.cast("fptrunc" if narrow else "fpext", _float(f, bits, of), _LLVM[to])
    result = _bits(f, number, to)
    return (_flushed(f, result, to) if form.modifiers.get("F") and to == "f32" else result,)


def _convert_tf32(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """Rounding of the fraction to 10 bits by an integer addition; the low 13 bits become zero."""
    (bits,) = s
    even = f.add(f.and_(f.lshr(bits, 13), 1), 0xFFF)
    rounded = f.add(bits, 0x1000 if form["R"] == "rna" else even)
    number = _float(f, bits, "f32")
    is_nan = f.compare_float("uno", number, number)
    return (f.and_(f.select(is_nan, literal(bits.type, 0x7FFF_FFFF), rounded), 0xFFFF_E000),)


def _round_to_integral(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return _result(f, form, f.intrinsic(_INTEGRAL[form["R"]], _source(f, form, s[0])))


EMITTERS: Mapping[str, Emit] = {
    "float": _arithmetic,
    "fused_multiply_add": _fused,
    "float_divide": _divide,
    "float_divide_approximate": _divide,
    "float_root": _root,
    "approximate": _approximate,
    "float_extreme": _extreme,
    "float_sign": _sign,
    "copy_sign": _copy_sign,
    "compare": _compare,
    "compare_combine": _compare_combine,
    "compare_value": _compare_value,
    "select_by_sign": _select_by_sign,
    "convert_to_float": _convert_to_float,
    "convert_to_integer": _convert_to_integer,
    "convert_narrow": _convert_float,
    "convert_widen": _convert_float,
    "round_to_integral": _round_to_integral,
    "convert_tf32": _convert_tf32,
}
_OWN_ROUNDING = frozenset(["convert_to_integer", "round_to_integral", "float_divide_approximate"])


def native(form: Form) -> bool:
    """Whether there is an emitter for this form."""
    operation, modifiers = form.operation, form.modifiers
    if operation not in EMITTERS or modifiers.get("A"):
        return False
    if operation == "convert_tf32":
        return form["R"] in ("rna", "rn")
    if operation not in _OWN_ROUNDING and modifiers.get("R", "") not in _NEAREST:
        return False
    if operation == "approximate":
        return form["O"] in ("sqrt", "rcp", "rsqrt")
    if operation.startswith("compare"):
        return form["T"] not in ("f16", "bf16")
    if operation.startswith("convert"):
        return "f16" not in (form["T"], form["D"]) and "bf16" not in (form["T"], form["D"])
    return True
