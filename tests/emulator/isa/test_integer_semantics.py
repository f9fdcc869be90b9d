"""Integer, bit and comparison forms against Python's unbounded integers."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from gemmkit.emulator.isa.semantics import evaluate, reads_carry
from gemmkit.emulator.isa.table import table
from gemmkit.emulator.isa.types import TYPES

COUNT = 300


def width_of(name: str) -> int:
    return TYPES[name].bits


def signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) else bits


def number(bits: int, name: str) -> int:
    return signed(bits, width_of(name)) if name.startswith("s") else bits


def sampled(opcode: str) -> list[np.ndarray]:
    """Operands of a form: random bits, ends of the range and small numbers."""
    rng = np.random.default_rng(zlib.crc32(opcode.encode()))
    form, sources = table()[opcode], []
    for spec in form.operands:
        if spec.role != "source":
            continue
        width = spec.type.bits
        if width == 1:
            sources.append(rng.integers(0, 2, COUNT).astype(bool))
            continue
        ends = [0, 1, 2, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1]
        bits = rng.integers(0, 2**width, COUNT, np.uint64, endpoint=False)
        small = rng.integers(0, 70, COUNT).astype(np.uint64)
        kind = rng.integers(0, 3, COUNT)
        end = rng.choice(np.array(ends, np.uint64), COUNT)
        sources.append(
            np.select([kind == 0, kind == 1], [bits, small], end).astype(f"u{width // 8}")
        )
    if reads_carry(form):
        sources.append(rng.integers(0, 2, COUNT).astype(bool))
    return sources


def check(opcode: str, wanted: Callable[..., int], *immediates: int) -> None:
    """`wanted` takes the raw bits; the low bits of its value must be the result."""
    sources = sampled(opcode)
    (result,) = evaluate(table()[opcode], [*sources, *immediates])
    mask = (1 << result.dtype.itemsize * 8) - 1
    for *bits, got in zip(*(each.tolist() for each in (*sources, result)), strict=True):
        assert wanted(*bits) & mask == got, (opcode, [hex(each) for each in bits], hex(got))


INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


@pytest.mark.parametrize("name", INTEGERS)
def test_arithmetic(name: str) -> None:
    def on_numbers(function: Callable[..., int]) -> Callable[..., int]:
        return lambda *bits: function(*(number(each, name) for each in bits))

    check(f"add.{name}", on_numbers(operator.add))
    check(f"sub.{name}", on_numbers(operator.sub))
    check(f"min.{name}", on_numbers(min))
    check(f"max.{name}", on_numbers(max))
    check(f"mul.lo.{name}", on_numbers(operator.mul))
    check(f"mul.hi.{name}", on_numbers(lambda a, b: a * b >> width_of(name)))
    check(f"mad.lo.{name}", on_numbers(lambda a, b, c: a * b + c))
    check(f"mad.hi.{name}", on_numbers(lambda a, b, c: (a * b >> width_of(name)) + c))
    check(f"sad.{name}", on_numbers(lambda a, b, c: abs(a - b) + c))
    check(f"div.{name}", on_numbers(lambda a, b: truncated(a, b) if b else -1))
    check(f"rem.{name}", on_numbers(lambda a, b: a - b * truncated(a, b) if b else -1))


@pytest.mark.parametrize("name", ["u16", "s16", "u32", "s32"])
def test_wide_products(name: str) -> None:
    check(f"mul.wide.{name}", lambda a, b: number(a, name) * number(b, name))
    check(f"mad.wide.{name}", lambda a, b, c: number(a, name) * number(b, name) + c)


@pytest.mark.parametrize("name", ["s16", "s32", "s64"])
def test_signs(name: str) -> None:
    check(f"abs.{name}", lambda a: abs(number(a, name)))
    check(f"neg.{name}", lambda a: -a)


def test_saturating_sums() -> None:
    def clamp(value: int) -> int:
        return max(-(2**31), min(2**31 - 1, value))

    check("add.sat.s32", lambda a, b: clamp(signed(a, 32) + signed(b, 32)))
    check("sub.sat.s32", lambda a, b: clamp(signed(a, 32) - signed(b, 32)))


@pytest.mark.parametrize("name", ["u32", "u64", "s32", "s64"])
@pytest.mark.parametrize("operation", ["add", "sub"])
def test_carry_chains(name: str, operation: str) -> None:
    width, sign = width_of(name), 1 if operation == "add" else -1
    for opcode in (f"{operation}.cc.{name}", f"{operation}c.cc.{name}", f"{operation}c.{name}"):
        sources = sampled(opcode)
        results = evaluate(table()[opcode], sources)
        for number_, (a, b, *carry) in enumerate(
            zip(*(each.tolist() for each in sources), strict=True)
        ):
            total = a + sign * (b + int(any(carry)))
            assert int(results[0][number_]) == total % (1 << width)
            if ".cc" in opcode:
                assert bool(results[1][number_]) == (total < 0 or total >> width > 0)


@pytest.mark.parametrize("name", ["u32", "s32"])
def test_24_bit_products(name: str) -> None:
    def low24(bits: int) -> int:
        return signed(bits & 0xFFFFFF, 24) if name == "s32" else bits & 0xFFFFFF

    check(f"mul24.lo.{name}", lambda a, b: low24(a) * low24(b))
    check(f"mad24.lo.{name}", lambda a, b, c: low24(a) * low24(b) + c)


@pytest.mark.parametrize("left", ["u32", "s32"])
@pytest.mark.parametrize("right", ["u32", "s32"])
def test_dot_products_of_bytes(left: str, right: str) -> None:
    def byte(bits: int, place: int, name: str) -> int:
        value = bits >> 8 * place & 0xFF
        return signed(value, 8) if name == "s32" else value

    def dot(a: int, b: int, c: int) -> int:
        return c + sum(byte(a, place, left) * byte(b, place, right) for place in range(4))

    check(f"dp4a.{left}.{right}", dot)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_logic_and_shifts(width: int) -> None:
    check(f"and.b{width}", operator.and_)
    check(f"or.b{width}", operator.or_)
    check(f"xor.b{width}", operator.xor)
    check(f"not.b{width}", operator.invert)
    check(f"cnot.b{width}", lambda a: int(a == 0))
    check(f"shl.b{width}", lambda a, n: a << min(n, width))
    for kind in "bu":
        check(f"shr.{kind}{width}", lambda a, n: a >> min(n, width))
    check(f"shr.s{width}", lambda a, n: signed(a, width) >> min(n, width))


def test_logic_on_predicates() -> None:
    truth = [np.array([False, False, True, True]), np.array([False, True, False, True])]
    for name, wanted in (("and", [0, 0, 0, 1]), ("or", [0, 1, 1, 1]), ("xor", [0, 1, 1, 0])):
        assert evaluate(table()[f"{name}.pred"], truth)[0].tolist() == [bool(x) for x in wanted]
    assert evaluate(table()["not.pred"], truth[:1])[0].tolist() == [True, True, False, False]


@pytest.mark.parametrize("truth", [0x00, 0x96, 0xE8, 0xCA, 0x7F, 0xFF])
def test_three_way_logic(truth: int) -> None:
    def wanted(a: int, b: int, c: int) -> int:
        rows = (4 * (a >> n & 1) + 2 * (b >> n & 1) + (c >> n & 1) for n in range(32))
        return sum((truth >> row & 1) << n for n, row in enumerate(rows))

    check("lop3.b32", wanted, truth)


def test_funnel_shifts() -> None:
    def both(a: int, b: int) -> int:
        return b << 32 | a

    check("shf.l.wrap.b32", lambda a, b, n: both(a, b) << (n & 31) >> 32)
    check("shf.l.clamp.b32", lambda a, b, n: both(a, b) << min(n, 32) >> 32)
    check("shf.r.wrap.b32", lambda a, b, n: both(a, b) >> (n & 31))
    check("shf.r.clamp.b32", lambda a, b, n: both(a, b) >> min(n, 32))


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(name: str) -> None:
    """Bit by bit, as in the PTX manual."""
    top = width_of(name) - 1

    def wanted(a: int, position: int, length: int) -> int:
        position, length = position & 0xFF, length & 0xFF
        fill = 0
        if name.startswith("s") and length:
            fill = a >> min(position + length - 1, top) & 1
        bits = (
            a >> (position + n) & 1 if n < length and position + n <= top else fill
            for n in range(top + 1)
        )
        return sum(bit << n for n, bit in enumerate(bits))

    check(f"bfe.{name}", wanted)


@pytest.mark.parametrize("width", [32, 64])
def test_bit_field_insert(width: int) -> None:
    def wanted(a: int, b: int, position: int, length: int) -> int:
        position, length = position & 0xFF, length & 0xFF
        for n in range(min(length, max(0, width - position))):
            b = b & ~(1 << position + n) | (a >> n & 1) << position + n
        return b

    check(f"bfi.b{width}", wanted)


@pytest.mark.parametrize("width", [32, 64])
def test_counting_and_finding_bits(width: int) -> None:
    check(f"popc.b{width}", int.bit_count)
    check(f"clz.b{width}", lambda a: width - a.bit_length())
    check(f"brev.b{width}", lambda a: int(f"{a:0{width}b}"[::-1], 2))
    for kind in "us":

        def highest(a: int, name: str = f"{kind}{width}") -> int:
            value = number(a, name)
            return (~value if value < 0 else value).bit_length() - 1

        def shift(a: int, find: Callable[[int], int] = highest) -> int:
            return width - 1 - find(a) if find(a) >= 0 else -1

        check(f"bfind.{kind}{width}", highest)
        check(f"bfind.shiftamt.{kind}{width}", shift)


def test_the_nth_bit_that_is_set() -> None:
    """As in the PTX manual's C code."""

    def wanted(mask: int, base: int, offset: int) -> int:
        offset = number(offset, "s32")
        if offset == 0:
            return base if base < 32 and mask >> base & 1 else -1
        place, count = base, abs(offset) - 1
        while 0 <= place < 32:
            if mask >> place & 1:
                if count == 0:
                    return place
                count -= 1
            place += 1 if offset > 0 else -1
        return -1

    check("fns.b32", wanted)
    masks, bases, offsets = (
        each.ravel().astype(np.uint32)
        for each in np.meshgrid(
            [0, 1, 0xF0, 0x80000001, 0x12345678, 0xFFFFFFFF], range(34), range(-34, 35)
        )
    )
    (found,) = evaluate(table()["fns.b32"], [masks, bases, offsets])
    for *given, got in zip(masks.tolist(), bases.tolist(), offsets.tolist(), found, strict=True):
        assert wanted(*given) & 0xFFFFFFFF == got, given


def test_generic_byte_permutation() -> None:
    def wanted(a: int, b: int, selector: int) -> int:
        source, result = b << 32 | a, 0
        for place in range(4):
            nibble = selector >> 4 * place & 15
            byte = source >> 8 * (nibble & 7) & 0xFF
            result |= ((0xFF if byte & 0x80 else 0) if nibble & 8 else byte) << 8 * place
        return result

    check("prmt.b32", wanted)


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("f4e", (0x3210, 0x4321, 0x5432, 0x6543)),
        ("b4e", (0x5670, 0x6701, 0x7012, 0x0123)),
        ("rc8", (0x0000, 0x1111, 0x2222, 0x3333)),
        ("ecl", (0x3210, 0x3211, 0x3222, 0x3333)),
        ("ecr", (0x0000, 0x1110, 0x2210, 0x3210)),
        ("rc16", (0x1010, 0x3232, 0x1010, 0x3232)),
    ],
)
def test_named_byte_permutations_are_generic_ones(mode: str, rows: tuple[int, ...]) -> None:
    a, b = np.array([0x33221100], np.uint32), np.array([0x77665544], np.uint32)
    for selector, order in enumerate(rows):
        (named,) = evaluate(table()[f"prmt.b32.{mode}"], [a, b, np.uint32([selector])])
        (generic,) = evaluate(table()["prmt.b32"], [a, b, np.uint32([order])])
        assert named == generic


@pytest.mark.parametrize("name", INTEGERS)
def test_comparisons(name: str) -> None:
    relations = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le}
    relations |= {"gt": operator.gt, "ge": operator.ge}
    for relation, holds in relations.items():
        opcode = f"setp.{relation}.{name}"
        a, b = sampled(opcode)
        both = evaluate(table()[opcode], [a, b])
        wanted = [
            holds(number(x, name), number(y, name))
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        assert both[0].tolist() == wanted
        assert both[1].tolist() == [not each for each in wanted]
        other = np.arange(COUNT) % 2 == 0
        for combine, function in (("and", operator.and_), ("xor", operator.xor)):
            form = table()[f"setp.{relation}.{combine}.{name}"]
            first, second = evaluate(form, [a, b, other])
            assert first.tolist() == [
                function(x, bool(y)) for x, y in zip(wanted, other, strict=True)
            ]
            assert second.tolist() == [
                function(not x, bool(y)) for x, y in zip(wanted, other, strict=True)
            ]
        (value,) = evaluate(table()[f"set.{relation}.u32.{name}"], [a, b])
        assert value.tolist() == [0xFFFFFFFF if each else 0 for each in wanted]


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_comparisons_with_nan(name: str) -> None:
    one, nan = {
        "f32": (0x3F800000, 0x7FC00000),
        "f64": (0x3FF0 << 48, 0x7FF8 << 48),
        "f16": (0x3C00, 0x7E00),
        "bf16": (0x3F80, 0x7FC0),
    }[name]
    width = width_of(name)
    a = np.array([one, one, nan, 0], f"u{width // 8}")
    b = np.array([one, nan, nan, 1 << (width - 1)], f"u{width // 8}")  # the last: 0 and -0
    for relation, wanted in {
        "eq": [1, 0, 0, 1],
        "ne": [0, 0, 0, 0],
        "lt": [0, 0, 0, 0],
        "ge": [1, 0, 0, 1],
        "equ": [1, 1, 1, 1],
        "neu": [0, 1, 1, 0],
        "ltu": [0, 1, 1, 0],
        "geu": [1, 1, 1, 1],
        "num": [1, 0, 0, 1],
        "nan": [0, 1, 1, 0],
    }.items():
        holds, complement = evaluate(table()[f"setp.{relation}.{name}"], [a, b])
        assert holds.astype(int).tolist() == wanted
        assert (~complement).astype(int).tolist() == wanted


def test_flushed_comparison() -> None:
    tiny, zero = np.uint32([1]), np.uint32([0])
    assert evaluate(table()["setp.gt.f32"], [tiny, zero])[0][0]
    assert not evaluate(table()["setp.gt.ftz.f32"], [tiny, zero])[0][0]


def test_selection() -> None:
    a, b = np.uint32([1, 2, 3]), np.uint32([4, 5, 6])
    chosen = np.array([True, False, True])
    assert evaluate(table()["selp.b32"], [a, b, chosen])[0].tolist() == [1, 5, 3]
    signs = np.int32([0, -1, 7]).view(np.uint32)
    assert evaluate(table()["slct.u32.s32"], [a, b, signs])[0].tolist() == [1, 5, 3]
    floats = np.float32([-0.0, np.nan, -1.0]).view(np.uint32)
    assert evaluate(table()["slct.b32.f32"], [a, b, floats])[0].tolist() == [1, 5, 6]
