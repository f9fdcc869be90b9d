"""`mma.sync`: the product of small matrices that the lanes of a warp hold.

The registers of A, B and C are unpacked into a tile of `fused_sums`, or of plain numbers for
integers, and D is packed from its result; `chains` has the forms in fp64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gemmkit.emulator.codegen.halves import narrowed, widened
from gemmkit.emulator.codegen.ir import RUNTIME_PREFIX, Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.runtime import chains
from gemmkit.emulator.codegen.runtime.fused_sums import (
    CANONICAL_NAN,
    COLUMN_BYTES,
    ROWS,
    STRIP,
    FusedSum,
    exponents,
    rounded_to_half,
)
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrices import LANES, MatrixProduct
from gemmkit.emulator.numerics.formats import FORMATS
from gemmkit.emulator.numerics.rules import Capability, Rules, generation_of, rules_of

PREFIX = "multiply_"
_COLUMNS = 8
_ALL, _WORDS, _FLOATS = f"<{LANES} x i32>", vector("i32"), vector("float")
# Consecutive lanes of one row of A and of C, and of one column of B.
_ALONG = 4


def function_of(form: Form, capability: Capability) -> str:
    """The name of the function for a form on an architecture, such as
    `multiply_16_8_f16_f16_f32_wrap_90`.

    Raises:
        UnsupportedInstruction: the architecture has no such instruction.
    """
    product = MatrixProduct.of(form)
    rules_of(product.kind, capability)
    major, minor = generation_of(capability).first
    return f"{PREFIX}{product.name}_{major}{minor}"


def modules_of(function: str) -> list[str]:
    """The modules that a function needs, the last one its own."""
    product, rules = _read(function)
    if rules.method not in ("fused", "widened"):
        return [function]
    return [FusedSum.of(rules, product.kind.result).name, function]


def _read(function: str) -> tuple[MatrixProduct, Rules]:
    name, _, generation = function.removeprefix(PREFIX).rpartition("_")
    product = MatrixProduct.named(name)
    return product, rules_of(product.kind, (int(generation[:-1]), int(generation[-1])))


def define(module: Module, function: str) -> None:
    """Add one function; it takes the addresses of D's registers and of those of A, B and C."""
    product, rules = _read(function)
    registers = [Value("ptr", f"%r{number}") for number in range(sum(product.counts))]
    starts = [sum(product.counts[:index]) for index in range(len(product.counts) + 1)]
    parts = [registers[start:end] for start, end in pairwise(starts)]
    with module.function(RUNTIME_PREFIX + function, "void", registers) as f:
        if rules.method == "chain":
            chains.multiply(f, product, *parts)
        else:
            _multiply(f, product, rules, *parts)
        f.ret()


@dataclass(frozen=True, slots=True)
class Tile:
    """The memory of a tile; see `fused_sums`."""

    c: Value
    a: Value
    ea: Value
    b: Value
    eb: Value

    @classmethod
    def allocated(cls, f: Function, depth: int) -> Tile:
        """A tile on the stack, for eight columns."""
        sizes = (COLUMN_BYTES * _COLUMNS, 4 * ROWS * depth, 2 * ROWS * depth)
        wide = 4 * depth * _COLUMNS
        return cls(*(f.area(size) for size in (*sizes, wide, wide)))


def _multiply(
    f: Function,
    product: MatrixProduct,
    rules: Rules,
    to: Sequence[Value],
    from_a: Sequence[Value],
    from_b: Sequence[Value],
    from_c: Sequence[Value],
) -> None:
    tile = Tile.allocated(f, product.kind.depth)
    unpack_left(f, product, rules, from_a, tile)
    multiply_columns(f, product, rules, tile, to, from_b, from_c)


def unpack_left(
    f: Function, product: MatrixProduct, rules: Rules, from_a: Sequence[Value], tile: Tile
) -> None:
    """Unpack the registers of A into a tile."""
    order = _Order(product, alternate=rules.method == "widened")
    _unpack_a(f, product, order, from_a, tile, _lowest(product.kind.a, rules))


def multiply_columns(
    f: Function,
    product: MatrixProduct,
    rules: Rules,
    tile: Tile,
    to: Sequence[Value],
    from_b: Sequence[Value],
    from_c: Sequence[Value],
) -> None:
    """Eight columns of D, whose registers may be those of C, with A in a tile."""
    kind = product.kind
    widens = rules.method == "widened"
    order = _Order(product, alternate=widens)
    _unpack_b(f, product, order, from_b, tile, _lowest(kind.b, rules))
    if rules.method == "integer":
        _add_integers(f, product, tile, to, from_c)
        return
    addends = {}
    for column, at, bits in _columns_of_c(f, product, from_c):
        if widens:
            addends[column, at] = bits
            bits = literal(_WORDS, 0)
        f.store(bits, tile.c, COLUMN_BYTES * column + at)
    _sum(f, FusedSum.of(rules, kind.result), kind.depth, tile)

    def result(column: int, at: int) -> Value:
        number = f.load(_WORDS, tile.c, COLUMN_BYTES * column + at)
        if widens:
            return _added(f, number, addends[column, at], half=kind.result == "f16")
        return number

    _pack(f, product, to, result)


def _lowest(of: str, rules: Rules) -> int | None:
    """The exponent of the smallest normal number of an operand; integers have no exponents."""
    if rules.method == "integer":
        return None
    # A chip that widens fp8 has the exponents of the wider type.
    return FORMATS["f16" if rules.method == "widened" else of].lowest


def _sum(f: Function, of: FusedSum, depth: int, tile: Tile) -> None:
    for start in range(0, depth, of.products):
        operands = (
            f.offset(tile.a, COLUMN_BYTES * start),
            f.offset(tile.ea, COLUMN_BYTES * start // 2),
            f.offset(tile.b, 4 * start),
            f.offset(tile.eb, 4 * start),
        )
        sizes = (literal("i64", _COLUMNS), literal("i64", 4 * depth))
        f.runtime(of.name, "void", tile.c, tile.c, *operands, *sizes)


@dataclass(frozen=True, slots=True)
class _Order:
    """Where numbers are along the depth of a tile: a word's lanes are `_ALONG` places apart.

    Numbers of one fused sum may have any order; `alternate` puts those in the lower halves of all
    words first.
    """

    product: MatrixProduct
    alternate: bool

    def place(self, word: int, number: int) -> int:
        """The place of the first lane's `number`-th number of a word."""
        packed, words = self.product.packed, self.product.words
        return _ALONG * (number * words + word if self.alternate else word * packed + number)


def _unpack_a(
    f: Function,
    product: MatrixProduct,
    order: _Order,
    registers: Sequence[Value],
    tile: Tile,
    lowest: int | None,
) -> None:
    for index, register in enumerate(registers):
        word, lower = divmod(index, product.rows // STRIP)
        lanes = f.load(_ALL, register, align=32)
        for lane in range(_ALONG):
            column = f.permute(lanes, range(lane, LANES, _ALONG))
            for number in range(product.packed):
                bits = _number(f, column, number, product.kind.a)
                at = order.place(word, number) + lane
                f.store(bits, tile.a, COLUMN_BYTES * at + 4 * STRIP * lower, align=32)
                if lowest is not None:
                    found = f.cast("trunc", exponents(f, bits, lowest), "i16")
                    f.store(found, tile.ea, 2 * ROWS * at + 2 * STRIP * lower, align=16)


def _unpack_b(
    f: Function,
    product: MatrixProduct,
    order: _Order,
    registers: Sequence[Value],
    tile: Tile,
    lowest: int | None,
) -> None:
    depth = product.kind.depth
    for word, register in enumerate(registers):
        for strip in range(LANES // STRIP):
            words = f.load(_WORDS, register, 4 * STRIP * strip)
            for number in range(product.packed):
                bits = _number(f, words, number, product.kind.b)
                parts = [(bits, tile.b)]
                if lowest is not None:
                    found = exponents(f, bits, lowest)
                    pairs = f.or_(f.and_(found, 0xFFFF), f.shl(found, 16))
                    parts.append((pairs, tile.eb))
                for values, to in parts:
                    for half in range(STRIP // _ALONG):
                        four = f.permute(values, range(_ALONG * half, _ALONG * (half + 1)))
                        row = strip * (STRIP // _ALONG) + half
                        f.store(four, to, 4 * (depth * row + order.place(word, number)), align=16)


def _number(f: Function, words: Value, number: int, of: str) -> Value:
    """The `number`-th number in each word, as the bits of a float32 number."""
    if of == "tf32":
        return f.and_(words, -1 << FORMATS[of].unused)
    if of == "bf16":
        return f.and_(words, -1 << 16) if number else f.shl(words, 16)
    if of == "f16":
        half = f.lshr(words, 16) if number else f.and_(words, 0xFFFF)
        return f.cast("bitcast", widened(f, half, "f16"), "i32")
    if of == "s8":
        byte = f.binary("ashr", f.shl(words, 24 - 8 * number), 24)
        return f.cast("bitcast", f.cast("sitofp", byte, "float"), "i32")
    byte = f.and_(f.lshr(words, 8 * number), 0xFF)
    if of == "u8":
        return f.cast("bitcast", f.cast("sitofp", byte, "float"), "i32")
    if of == "e5m2":
        return f.cast("bitcast", widened(f, f.shl(byte, 8), "f16"), "i32")
    return _widened_e4m3(f, byte)


def _widened_e4m3(f: Function, byte: Value) -> Value:
    form = FORMATS["e4m3"]
    magnitude = f.and_(byte, form.nan)
    # Read as float32, the exponent is too small by the difference of the biases.
    scale = literal(byte.type, (FORMATS["f32"].bias + FORMATS["f32"].bias - form.bias) << 23)
    read = f.cast("bitcast", f.shl(magnitude, 23 - form.fraction_bits), "float")
    number = f.binary("fmul", read, f.cast("bitcast", scale, "float"))
    bits = f.cast("bitcast", number, "i32")
    is_nan = f.compare("eq", magnitude, form.nan)
    bits = f.select(is_nan, literal(byte.type, CANONICAL_NAN), bits)
    return f.or_(bits, f.shl(f.and_(byte, 0x80), 24))


def _columns_of_c(
    f: Function, product: MatrixProduct, registers: Sequence[Value]
) -> Iterator[tuple[int, int, Value]]:
    """Column, offset in it, and bits of each strip of C; binary16 widened to float32."""
    half = product.kind.result == "f16"
    for lower in range(product.rows // STRIP):
        for odd in range(2):
            register = registers[lower] if half else registers[2 * lower + odd]
            lanes = f.load(_ALL, register, align=32)
            for lane in range(_ALONG):
                bits = f.permute(lanes, range(lane, LANES, _ALONG))
                if half:
                    bits = _number(f, bits, odd, "f16")
                yield 2 * lane + odd, 4 * STRIP * lower, bits


def _pack(
    f: Function,
    product: MatrixProduct,
    to: Sequence[Value],
    result: Callable[[int, int], Value],
) -> None:
    """Store the registers of D; `result` gives a strip of a column at an offset."""
    half = product.kind.result == "f16"
    for lower in range(product.rows // STRIP):
        words = []
        for odd in range(2):
            columns = [result(2 * lane + odd, 4 * STRIP * lower) for lane in range(_ALONG)]
            if half:
                columns = [
                    f.resize(narrowed(f, f.cast("bitcast", each, "float"), "f16"), 32)
                    for each in columns
                ]
            low, high = (f.permute(a, range(2 * STRIP), b) for a, b in (columns[:2], columns[2:]))
            order = [STRIP * (lane % _ALONG) + lane // _ALONG for lane in range(LANES)]
            words.append(f.permute(low, order, high))
        if half:
            words = [f.or_(words[0], f.shl(words[1], 16))]
        for index, each in enumerate(words):
            f.store(each, to[lower * len(words) + index], align=32)


def _added(f: Function, number: Value, addend: Value, *, half: bool) -> Value:
    """A sum of float32 numbers, given by their bits, to nearest even; of binary16 numbers if
    `half`."""
    a, b = (f.cast("bitcast", each, "float") for each in (number, addend))
    if half:
        wide = f.binary("fadd", f.cast("fpext", a, "double"), f.cast("fpext", b, "double"))
        total = f.cast("fptrunc", rounded_to_half(f, wide), "float")
    else:
        total = f.binary("fadd", a, b)
    bits = f.cast("bitcast", total, "i32")
    return f.select(f.compare_float("uno", total, total), literal(_WORDS, CANONICAL_NAN), bits)


def _add_integers(
    f: Function, product: MatrixProduct, tile: Tile, to: Sequence[Value], from_c: Sequence[Value]
) -> None:
    """Sums of products of 8-bit integers are exact in float32."""
    depth, found = product.kind.depth, {}
    for column, at, addend in _columns_of_c(f, product, from_c):
        total = f.cast("sitofp", literal(_WORDS, 0), "float")
        for k in range(depth):
            left = f.load(_FLOATS, tile.a, COLUMN_BYTES * k + at)
            right = f.splat(f.load("float", tile.b, 4 * (depth * column + k)))
            total = f.intrinsic("fma", left, right, total)
        exact = f.cast("fptosi", total, "i32")
        add = (
            f.intrinsic("sadd.sat", exact, addend)
            if product.kind.saturates
            else f.add(exact, addend)
        )
        found[column, at] = add
    _pack(f, product, to, lambda column, at: found[column, at])
