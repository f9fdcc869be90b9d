"""Fused sums of tensor cores, for a tile of 16 rows and any number of columns.

What `numerics.model` defines, bit for bit. A tile's operands are unpacked once: each element is a
float32 number with its exponent beside it. Most columns then need four instructions for eight
products: a product of float32 numbers is exact, so is its multiple by the power of two that makes
the place where terms are truncated the ones' place, the conversion to an integer truncates, and
integers are added. A column whose exponents are outside the range in which all that is exact (an
infinity or NaN among them) is computed in float64, which is always exact, with half of the speed.

Memory of a tile, where `depth` is the number of products: A as float32 [depth][16 rows], its
exponents as int16 [depth][16 rows]; B as float32 [columns][depth], its exponents as pairs of equal
int16 [columns][depth], both with a stride in bytes from column to column; C and D as float32
[columns][16 rows], for sums in binary16 too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gemmkit.emulator.codegen.ir import RUNTIME_PREFIX, Function, Module, Value, literal, vector
from gemmkit.emulator.numerics.formats import FORMATS
from gemmkit.emulator.numerics.rules import FLOOR, Rules

PREFIX = "fused_"
ROWS = 16
STRIP = 8
COLUMN_BYTES = 4 * ROWS

# Stand-ins for the exponents of zero, and of infinities and NaN: a sum of two of them is still out
# of the range of exponents.
_ZERO, _SPECIAL = -4000, 8000
_REAL = -2000
_HALVES, _WORDS, _LONGS = f"<{ROWS} x i16>", vector("i32"), vector("i64")
_FLOATS, _DOUBLES = vector("float"), vector("double")
CANONICAL_NAN = 0x7FFF_FFFF
_BIAS, _BIAS64, _FRACTION64 = 127, 1023, 52
_HIGHEST64 = 254
# Products of float32 numbers neither overflow nor lose bits if the sum's exponent is at most this.
_HIGHEST = 125

POINTERS = tuple(Value("ptr", f"%{name}") for name in ("d", "c", "a", "ea", "b", "eb"))
COLUMNS, STRIDE = Value("i64", "%columns"), Value("i64", "%stride")


@dataclass(frozen=True, slots=True)
class FusedSum:
    """A fused sum: its products, and as in `Rules`; `half`: its result is binary16."""

    products: int
    fraction_bits: int
    kept_bits: int
    half: bool

    @classmethod
    def of(cls, rules: Rules, result: str) -> FusedSum:
        """The fused sum of an instruction with these rules, and results of this type."""
        return cls(rules.products, rules.fraction_bits, rules.kept_bits, result == "f16")

    @classmethod
    def named(cls, name: str) -> FusedSum:
        """The fused sum that a function computes."""
        products, fraction, kept, result = name.removeprefix(PREFIX).split("_")
        return cls(int(products), int(fraction), int(kept), result == "f16")

    @property
    def name(self) -> str:
        """The name of its function: `fused_16_25_23_f32`."""
        result = "f16" if self.half else "f32"
        return f"{PREFIX}{self.products}_{self.fraction_bits}_{self.kept_bits}_{result}"

    @property
    def lowest(self) -> int:
        """The least exponent at which products of float32 numbers are exact as far as they count:
        then a number below the smallest normal one is less than one unit."""
        return self.fraction_bits + FORMATS["f32"].lowest

    @property
    def at_once(self) -> int:
        """How many truncated products, each below 4 units of the top, an int32 holds."""
        return int(1 << (29 - self.fraction_bits))


def define(module: Module, name: str) -> None:
    """Add the function of a fused sum:

    fused_…(d, c, a, exponents of a, b, exponents of b, columns, stride). D may be C.
    """
    of = FusedSum.named(name)
    _define_exact(module, of)
    with module.function(RUNTIME_PREFIX + name, "void", (*POINTERS, COLUMNS, STRIDE)) as f:
        with f.loop(COLUMNS) as column:
            column_at, b_at = f.shl(column, 6), f.binary("mul", column, STRIDE)
            d, c = (f.offset(each, column_at) for each in POINTERS[:2])
            b, eb = (f.offset(each, b_at) for each in POINTERS[4:])
            _column(f, of, (d, c, *POINTERS[2:4], b, eb))
        f.ret()


def exponents(f: Function, numbers: Value, lowest: int) -> Value:
    """The exponents of float32 numbers, given by their bits; at least `lowest`, that of the
    smallest normal number of their own format."""
    magnitude = f.and_(numbers, 0x7FFF_FFFF)
    field = f.lshr(magnitude, 23)
    found = f.sub(f.intrinsic("umax", field, literal(numbers.type, lowest + _BIAS)), _BIAS)
    special = literal(numbers.type, _SPECIAL)
    found = f.select(f.compare("eq", field, 255), special, found)
    return f.select(f.compare("eq", magnitude, 0), literal(numbers.type, _ZERO), found)


def _column(f: Function, of: FusedSum, pointers: tuple[Value, ...]) -> None:
    """One column: in float32 and integers if that is exact, else in float64."""
    d, c, a, ea, b, eb = pointers
    products = _top_of_products(f, of, ea, eb)
    tops = [_top(f, of, products, c, strip) for strip in range(ROWS // STRIP)]
    outside = f.or_(*(_is_outside(f, of, top) for top in tops))
    exact, fast, after = (f.name(each) for each in ("exact", "fast", "next"))
    f.branch_if(f.compare("ne", f.packed(outside), 0), exact, fast)
    f.label(exact)
    f.call(of.name, "void", *pointers)
    f.branch(after)
    f.label(fast)
    for strip, top in enumerate(tops):
        at = 4 * STRIP * strip
        # A sum of zeros has no exponent.
        top = f.intrinsic("smax", top, literal(_WORDS, of.lowest))
        field = f.sub(literal(_WORDS, of.fraction_bits + _BIAS), top)
        scale = f.cast("bitcast", f.shl(field, 23), "float")
        whole = _truncated(f, f.load(_FLOATS, c, at), scale)
        total = f.cast("sitofp", whole, "double")
        for start in range(0, of.products, of.at_once):
            part = literal(_WORDS, 0)
            for k in range(start, min(of.products, start + of.at_once)):
                right = f.splat(f.load("float", b, 4 * k))
                product = f.binary("fmul", f.load(_FLOATS, a, COLUMN_BYTES * k + at), right)
                part = f.add(part, _truncated(f, product, scale))
            total = f.binary("fadd", total, f.cast("sitofp", part, "double"))
        number = f.binary("fmul", total, _power(f, f.sub(top, of.fraction_bits)))
        rounded = rounded_to_half(f, number) if of.half else _cut(f, number, of.kept_bits)
        f.store(f.cast("fptrunc", rounded, "float"), d, at)
    f.branch(after)
    f.label(after)


def _top_of_products(f: Function, of: FusedSum, ea: Value, eb: Value) -> Value:
    """The largest exponent of a product, for each of 16 rows."""
    best = literal(_HALVES, 2 * _ZERO)
    for k in range(of.products):
        pairs = f.splat(f.load("i32", eb, 4 * k))
        right = f.value(_HALVES, f"bitcast {pairs} to {_HALVES}")
        left = f.load(_HALVES, ea, 2 * ROWS * k, align=32)
        best = f.intrinsic("smax", best, f.add(left, right))
    return best


def _top(f: Function, of: FusedSum, products: Value, c: Value, strip: int) -> Value:
    """The largest exponent of a term, for a strip of rows."""
    rows = f.permute(products, range(STRIP * strip, STRIP * (strip + 1)))
    addend = f.load(_WORDS, c, 4 * STRIP * strip)
    lowest = FORMATS["f16" if of.half else "f32"].lowest
    return f.intrinsic("smax", f.cast("sext", rows, "i32"), exponents(f, addend, lowest))


def _is_outside(f: Function, of: FusedSum, top: Value) -> Value:
    """Where a sum has to be computed in float64."""
    low = f.and_(f.compare("slt", top, of.lowest), f.compare("sgt", top, _REAL))
    return f.or_(low, f.compare("sgt", top, _HIGHEST))


def _truncated(f: Function, numbers: Value, scale: Value) -> Value:
    """float32 numbers times a power of two, as integers."""
    return f.cast("fptosi", f.binary("fmul", numbers, scale), "i32")


def _define_exact(module: Module, of: FusedSum) -> None:
    """One column in float64, with infinities and NaN; named as the fused sum."""
    d, c, a, ea, b, eb = POINTERS
    with module.function(of.name, "void", POINTERS, inline=False) as f:
        products = _top_of_products(f, of, ea, eb)
        for strip in range(ROWS // STRIP):
            at = 4 * STRIP * strip
            top = f.intrinsic("smax", _top(f, of, products, c, strip), literal(_WORDS, FLOOR))
            top = f.intrinsic("smin", top, literal(_WORDS, _HIGHEST64))
            scale = _power(f, f.sub(literal(_WORDS, of.fraction_bits), top))
            addend = f.cast("fpext", f.load(_FLOATS, c, at), "double")
            plain = f.variable(addend)
            total = f.variable(f.intrinsic("trunc", f.binary("fmul", addend, scale)))
            with f.loop(literal("i64", of.products)) as k:
                left = f.load(_FLOATS, f.offset(a, f.shl(k, 6)), at)
                right = f.splat(f.load("float", f.offset(b, f.shl(k, 2))))
                product = f.binary(
                    "fmul", f.cast("fpext", left, "double"), f.cast("fpext", right, "double")
                )
                whole = f.intrinsic("trunc", f.binary("fmul", product, scale))
                for variable, term in ((plain, product), (total, whole)):
                    f.set(variable, f.binary("fadd", f.get(_DOUBLES, variable), term))
            unit = _power(f, f.sub(top, of.fraction_bits))
            number = f.binary("fmul", f.get(_DOUBLES, total), unit)
            found = _finished(f, of, number, f.get(_DOUBLES, plain))
            f.store(found, d, at)
        f.ret()


def _finished(f: Function, of: FusedSum, number: Value, plain: Value) -> Value:
    """The bits of results; `plain` is the sum by IEEE 754, from which infinities and NaN come."""
    if of.half:
        rounded = rounded_to_half(f, number)
    else:
        # Below the smallest normal number fewer bits are left.
        places = of.kept_bits - FORMATS["f32"].lowest
        scaled = f.binary("fmul", _cut(f, number, of.kept_bits), _number(2.0**places))
        rounded = f.binary("fmul", f.intrinsic("trunc", scaled), _number(2.0**-places))
    # A zero is +0.
    single = f.cast("fptrunc", f.binary("fadd", rounded, _number(0.0)), "float")
    bits = f.cast("bitcast", single, "i32")
    is_infinite = f.compare_float("oeq", f.intrinsic("fabs", plain), _number(float("inf")))
    infinite = f.cast("bitcast", f.cast("fptrunc", plain, "float"), "i32")
    bits = f.select(is_infinite, infinite, bits)
    return f.select(f.compare_float("uno", plain, plain), literal(_WORDS, CANONICAL_NAN), bits)


def _power(f: Function, exponent: Value) -> Value:
    """2 to the power of normal exponents, as float64."""
    field = f.add(f.cast("sext", exponent, "i64"), _BIAS64)
    return f.cast("bitcast", f.shl(field, _FRACTION64), "double")


def _number(number: float) -> Value:
    """A strip of one float64 number."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", number))
    return Value(_DOUBLES, f"splat (double 0x{bits:016X})")


def _cut(f: Function, numbers: Value, kept: int) -> Value:
    """float64 numbers with so many bits of their fraction."""
    mask = -1 << (_FRACTION64 - kept)
    return f.cast("bitcast", f.and_(f.cast("bitcast", numbers, "i64"), mask), "double")


def rounded_to_half(f: Function, numbers: Value) -> Value:
    """float64 numbers rounded to the nearest binary16 numbers, ties to even; a zero is +0.

    Adding a number whose last place is that of the result rounds to it.
    """
    half = FORMATS["f16"]
    magnitude = f.and_(f.cast("bitcast", numbers, "i64"), (1 << 63) - 1)
    least = literal(_LONGS, half.lowest + _BIAS64)
    field = f.intrinsic("umax", f.lshr(magnitude, _FRACTION64), least)
    # So that an infinity stays one.
    field = f.intrinsic("umin", field, literal(_LONGS, _BIAS64 + _HIGHEST64))
    field = f.add(field, _FRACTION64 - half.fraction_bits)
    large = f.or_(f.shl(field, _FRACTION64), 1 << (_FRACTION64 - 1))
    large = f.cast("bitcast", large, "double")
    rounded = f.binary("fsub", f.binary("fadd", numbers, large), large)
    beyond = f.compare_float("oge", f.intrinsic("fabs", rounded), _number(2.0 ** (half.bias + 1)))
    infinite = f.intrinsic("copysign", _number(float("inf")), rounded)
    return f.binary("fadd", f.select(beyond, infinite, rounded), _number(0.0))
