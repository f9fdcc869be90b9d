"""Native code for integer arithmetic, bits, moves and selections, on one value or a strip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmkit.emulator.codegen.ir import Function, Value, element_type, literal
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.types import TYPES

Emit = Callable[[Function, Form, Sequence[Value]], Sequence[Value]]

_BINARY = {"add": "add", "sub": "sub", "and": "and", "or": "or", "xor": "xor"}
_DIGIT = 32


def _bits(a: Value) -> int:
    return int(element_type(a.type)[1:])


def _extreme(form: Form, operation: str) -> str:
    return f"{'s' if form.type.is_signed else 'u'}{operation}"


def _integer(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    operation = form["O"]
    if operation in ("min", "max"):
        return (f.intrinsic(_extreme(form, operation), s[0], s[1]),)
    return (f.binary(_BINARY[operation], s[0], s[1]),)


def _saturating(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.intrinsic(f"s{form['O']}.sat", s[0], s[1]),)


def _carry(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """Sum or difference and its carry (of a difference: borrow)."""
    a, b = s[0], s[1]
    taken = f.resize(s[2], _bits(a)) if len(s) > 2 else literal(a.type, 0)
    if form["O"] == "add":
        partial = f.add(a, b)
        total = f.add(partial, taken)
        carry = f.or_(f.compare("ult", partial, a), f.compare("ult", total, partial))
    else:
        partial = f.sub(a, b)
        total = f.sub(partial, taken)
        carry = f.or_(f.compare("ult", a, b), f.compare("ult", partial, taken))
    return (total, carry)


def _carry_in(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return _carry(f, form, s)[:1]


def _product(f: Function, form: Form, a: Value, b: Value) -> Value:
    if form["P"] == "lo":
        return f.binary("mul", a, b)
    bits, signed = _bits(a), form.type.is_signed
    wide = f.binary("mul", *(f.resize(each, 2 * bits, signed=signed) for each in (a, b)))
    return f.resize(f.lshr(wide, bits), bits)


def _multiply(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (_product(f, form, s[0], s[1]),)


def _multiply_add(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.add(_product(f, form, s[0], s[1]), s[2]),)


def _wide_product(f: Function, form: Form, a: Value, b: Value) -> Value:
    wide = 2 * form.type.bits
    x, y = (f.resize(each, wide, signed=form.type.is_signed) for each in (a, b))
    return f.binary("mul", x, y)


def _multiply_wide(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (_wide_product(f, form, s[0], s[1]),)


def _multiply_add_wide(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.add(_wide_product(f, form, s[0], s[1]), s[2]),)


def _low24(f: Function, form: Form, a: Value) -> Value:
    return f.binary("ashr", f.shl(a, 8), 8) if form.type.is_signed else f.and_(a, 0xFFFFFF)


def _multiply24(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.binary("mul", _low24(f, form, s[0]), _low24(f, form, s[1])),)


def _multiply24_add(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.add(_multiply24(f, form, s)[0], s[2]),)


def _divide(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """Division of magnitudes, since the processor's division traps on overflow; by zero gives all
    ones."""
    a, b = s[0], s[1]
    zero = f.compare("eq", b, 0)
    operation = "udiv" if form["O"] == "div" else "urem"
    if not form.type.is_signed:
        result = f.binary(operation, a, f.select(zero, literal(b.type, 1), b))
    else:
        numerator, denominator = (_magnitude(f, each) for each in (a, b))
        divisor = f.select(zero, literal(b.type, 1), denominator)
        result = f.binary(operation, numerator, divisor)
        sign = f.xor(a, b) if form["O"] == "div" else a
        negated = f.sub(literal(a.type, 0), result)
        result = f.select(f.compare("slt", sign, 0), negated, result)
    return (f.select(zero, literal(a.type, -1), result),)


def _magnitude(f: Function, a: Value) -> Value:
    kept = Value("i1", "false")
    return f.intrinsic("abs", a, kept, result=a.type)


def _unary(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    if form["O"] == "abs":
        return (_magnitude(f, s[0]),)
    return (f.sub(literal(s[0].type, 0), s[0]),)


def _absolute_difference_add(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    greater, lesser = (f.intrinsic(_extreme(form, each), s[0], s[1]) for each in ("max", "min"))
    return (f.add(f.sub(greater, lesser), s[2]),)


def _dot4(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    total = s[2]
    for index in range(4):
        factors = []
        for operand, name in zip(s[:2], ("T", "U"), strict=True):
            top = f.shl(operand, 24 - 8 * index)
            factors.append(f.binary("ashr" if TYPES[form[name]].is_signed else "lshr", top, 24))
        total = f.add(total, f.binary("mul", *factors))
    return (total,)


def _logic(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.binary(_BINARY[form["O"]], s[0], s[1]),)


def _not(f: Function, _: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.not_(s[0]),)


def _logical_not(f: Function, _: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.resize(f.compare("eq", s[0], 0), _bits(s[0])),)


def _logic3(f: Function, _: Form, s: Sequence[Value]) -> Sequence[Value]:
    """Select among the table's eight bits by c, then by b, then by a."""
    a, b, c, table = s
    truth = table.number or 0
    by_c = []
    for row in range(0, 8, 2):
        pair = truth >> row & 3
        by_c.append((literal(c.type, 0), f.not_(c), c, literal(c.type, -1))[pair])
    low, high = (_merge(f, b, by_c[index + 1], by_c[index]) for index in (0, 2))
    return (_merge(f, a, high, low),)


def _merge(f: Function, chooser: Value, where_set: Value, where_clear: Value) -> Value:
    if where_set.name == where_clear.name:
        return where_set
    return f.xor(where_clear, f.and_(f.xor(where_set, where_clear), chooser))


def _shift(operation: str) -> Emit:
    """Shift amounts above the width count as the width."""

    def emit(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
        a, amount, bits = s[0], s[1], _bits(s[0])
        signed = operation == "lshr" and form.type.is_signed
        if amount.number is not None:
            if amount.number >= bits:
                return (f.binary("ashr", a, bits - 1) if signed else literal(a.type, 0),)
            return (f.binary("ashr" if signed else operation, a, amount.number),)
        limited = f.intrinsic("umin", amount, literal(amount.type, bits - 1))
        resized = f.resize(limited, bits)
        if signed:
            return (f.binary("ashr", a, resized),)
        inside = f.compare("ult", amount, bits)
        return (f.select(inside, f.binary(operation, a, resized), 0),)

    return emit


def _joined(f: Function, low: Value, high: Value) -> Value:
    return f.or_(f.shl(f.resize(high, 2 * _DIGIT), _DIGIT), f.resize(low, 2 * _DIGIT))


def _funnel_shift(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    both = _joined(f, s[0], s[1])
    if form["M"] == "wrap":
        amount = f.and_(s[2], _DIGIT - 1)
    else:
        amount = f.intrinsic("umin", s[2], literal(s[2].type, _DIGIT))
    wide = f.resize(amount, 2 * _DIGIT)
    if form["D"] == "l":
        return (f.resize(f.lshr(f.shl(both, wide), _DIGIT), _DIGIT),)
    return (f.resize(f.lshr(both, wide), _DIGIT),)


def _field(f: Function, amount: Value) -> Value:
    return f.resize(f.and_(amount, 0xFF), 64)


def _below(f: Function, count: Value) -> Value:
    """The lowest `count` of 64 bits; all bits if `count` is 64 or more."""
    short = f.intrinsic("umin", count, literal(count.type, 63))
    mask = f.sub(f.shl(literal(count.type, 1), short), 1)
    return f.select(f.compare("ult", count, 64), mask, -1)


def _extract_bits(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """Computed in 64 bits, where sign extension continues the operand's last bit."""
    signed, bits = form.type.is_signed, form.type.bits
    start, count = _field(f, s[1]), _field(f, s[2])
    a = f.resize(s[0], 64, signed=signed)
    short = f.intrinsic("umin", start, literal(start.type, 63))
    if not signed:
        inside = f.select(f.compare("ult", start, 64), f.lshr(a, short), 0)
        return (f.resize(f.and_(inside, _below(f, count)), bits),)
    shifted = f.binary("ashr", a, short)
    kept = f.intrinsic("umin", f.intrinsic("umax", count, literal(count.type, 1)),
                       literal(count.type, 64))  # fmt: skip
    rest = f.sub(literal(kept.type, 64), kept)
    field = f.binary("ashr", f.shl(shifted, rest), rest)
    return (f.resize(f.select(f.compare("eq", count, 0), literal(a.type, 0), field), bits),)


def _insert_bits(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    bits = form.type.bits
    a, b = (f.resize(each, 64) for each in s[:2])
    start, count = _field(f, s[2]), _field(f, s[3])
    short = f.intrinsic("umin", start, literal(start.type, 63))
    mask = f.shl(_below(f, count), short)
    field = f.select(f.compare("ult", start, 64), mask, 0)
    merged = f.or_(f.and_(b, f.not_(field)), f.and_(f.shl(a, short), field))
    return (f.resize(merged, bits),)


def _count_bits(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    if form["O"] == "popc":
        return (f.resize(f.intrinsic("ctpop", s[0]), 32),)
    counted = f.intrinsic("ctlz", s[0], Value("i1", "false"), result=s[0].type)
    return (f.resize(counted, 32),)


def _reverse_bits(f: Function, _: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.intrinsic("bitreverse", s[0]),)


def _find_bit(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    """The highest bit that differs from the sign; all ones if there is none."""
    (a,) = s
    if form.type.is_signed:
        a = f.select(f.compare("slt", a, 0), f.not_(a), a)
    above = f.intrinsic("ctlz", a, Value("i1", "false"), result=a.type)
    if form["M"] == "shiftamt":
        found = f.select(f.compare("eq", a, 0), literal(a.type, -1), above)
    else:
        found = f.sub(literal(a.type, form.type.bits - 1), above)
    return (f.resize(found, 32),)


def _find_nth_set(f: Function, _: Form, s: Sequence[Value]) -> Sequence[Value]:
    """Binary search: is the bit in the lower half of the remaining bits, or in the upper one?"""
    mask, base, offset = s
    last = literal(mask.type, 31)
    down, none = f.compare("slt", offset, 0), f.compare("eq", offset, 0)
    mask = f.select(down, f.intrinsic("bitreverse", mask), mask)
    inside = f.compare("ult", base, 32)
    start = f.and_(f.select(down, f.sub(last, base), base), 31)
    mask = f.and_(mask, f.shl(literal(mask.type, -1), start))
    left = f.select(down, f.sub(literal(offset.type, 0), offset), offset)
    left = f.select(none, literal(left.type, 0), f.sub(left, 1))
    found = f.and_(inside, f.compare("ult", left, f.intrinsic("ctpop", mask)))
    position = literal(mask.type, 0)
    for half in (16, 8, 4, 2, 1):
        within = f.intrinsic("ctpop", f.and_(f.lshr(mask, position), (1 << half) - 1))
        upper = f.compare("uge", left, within)
        left = f.select(upper, f.sub(left, within), left)
        position = f.select(upper, f.add(position, half), position)
    found = f.and_(found, f.or_(f.not_(none), f.compare("eq", position, base)))
    position = f.select(down, f.sub(last, position), position)
    return (f.select(found, position, -1),)


def _permute_bytes(f: Function, _: Form, s: Sequence[Value]) -> Sequence[Value]:
    both = _joined(f, s[0], s[1])
    result = literal(s[0].type, 0)
    for index in range(4):
        nibble = f.lshr(s[2], 4 * index) if index else s[2]
        distance = f.resize(f.shl(f.and_(nibble, 7), 3), 64)
        byte = f.and_(f.resize(f.lshr(both, distance), 32), 0xFF)
        sign = f.binary("ashr", f.shl(byte, 24), 31)
        spread = f.compare("ne", f.and_(nibble, 8), 0)
        byte = f.select(spread, f.and_(sign, 0xFF), byte)
        result = f.or_(result, f.shl(byte, 8 * index) if index else byte)
    return (result,)


def _select(f: Function, _: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.select(s[2], s[0], s[1]),)


def _convert_integer(f: Function, form: Form, s: Sequence[Value]) -> Sequence[Value]:
    return (f.resize(s[0], TYPES[form["D"]].bits, signed=form.type.is_signed),)


EMITTERS: Mapping[str, Emit] = {
    "integer": _integer,
    "integer_saturate": _saturating,
    "carry_out": _carry,
    "carry_in": _carry_in,
    "multiply": _multiply,
    "multiply_add": _multiply_add,
    "multiply_wide": _multiply_wide,
    "multiply_add_wide": _multiply_add_wide,
    "multiply24": _multiply24,
    "multiply24_add": _multiply24_add,
    "divide": _divide,
    "integer_unary": _unary,
    "absolute_difference_add": _absolute_difference_add,
    "dot4": _dot4,
    "logic": _logic,
    "not": _not,
    "logical_not": _logical_not,
    "logic3": _logic3,
    "shift_left": _shift("shl"),
    "shift_right": _shift("lshr"),
    "funnel_shift": _funnel_shift,
    "extract_bits": _extract_bits,
    "insert_bits": _insert_bits,
    "count_bits": _count_bits,
    "reverse_bits": _reverse_bits,
    "find_bit": _find_bit,
    "find_nth_set": _find_nth_set,
    "permute_bytes": _permute_bytes,
    "select": _select,
    "convert_integer": _convert_integer,
}


def native(form: Form) -> bool:
    """Whether there is an emitter for this form."""
    if form.operation == "permute_bytes":
        return form["M"] == ""
    if form.operation in ("multiply", "multiply_add"):
        return form["P"] == "lo" or form.type.bits < 64
    return form.operation in EMITTERS
