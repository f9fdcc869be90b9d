"""Reads A and B of `wgmma.mma_async` from shared memory, where their descriptors say.

`isa.matrix_descriptors` defines the addresses. What is read has the layout of the registers of
`mma.sync`: for eight rows of A, or columns of B, the first 16 bytes along k of each, then the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import WORKER
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.isa.matrix_descriptors import (
    BASE,
    CHUNK_BYTES,
    CHUNKS_LOG2,
    FIELD_BITS,
    LEADING,
    RESERVED,
    ROWS,
    START,
    STRIDE,
    SWIZZLE,
)

GATHER = {False: "gather_rows", True: "gather_columns"}
SAME = "same_in_warp"
MODULE = "descriptors"
# Eight rows of 32 bytes.
GROUP_BYTES = 256
_WORDS = vector("i32")
_LINE = 7


def define(module: Module) -> None:
    """Add the functions:

    gather_rows(worker, to, descriptor, first, count) -> whether all is in shared memory: read
    `count` groups of eight rows from the group `first` on; gather_columns is the same for elements
    of 16 bits that are adjacent along these rows, not along k. same_in_warp(register) -> whether
    all lanes have the same 64 bits.
    """
    for transposed, name in GATHER.items():
        _define_gather(module, name, transposed=transposed)
    register = Value("ptr", "%r")
    with module.function(f"gemmkit.{SAME}", "i1", (register,)) as f:
        first = f.splat(f.load("i64", register))
        same = literal(vector("i1"), 1)
        for strip in range(4):
            same = f.and_(same, f.compare("eq", f.load(vector("i64"), register, 64 * strip), first))
        f.ret(f.compare("eq", f.packed(same), -1))


def _define_gather(module: Module, name: str, *, transposed: bool) -> None:
    to, word = Value("ptr", "%to"), Value("i64", "%descriptor")
    first, count = Value("i64", "%first"), Value("i64", "%count")
    with module.function(f"gemmkit.{name}", "i1", (C, to, word, first, count)) as f:
        with f.when(f.compare("ne", f.and_(word, RESERVED - (1 << 64)), 0)):
            f.ret(literal("i1", 0))
        start, leading, stride = (_field(f, word, at) for at in (START, LEADING, STRIDE))
        base = f.and_(f.resize(f.lshr(word, BASE), 32), 7)
        swizzle = f.resize(f.lshr(word, SWIZZLE), 32)
        power = literal("i32", 0)
        for mode, log2 in enumerate(CHUNKS_LOG2):
            power = f.select(f.compare("eq", swizzle, mode), literal("i32", log2), power)
        lines = _Lines(f, base, f.sub(f.shl(literal("i32", 1), power), 1))
        wide = f.shl(literal("i32", CHUNK_BYTES), power)
        within = f.binary("mul", _eight(), f.splat(wide))
        plain = f.compare("eq", power, 0)
        if transposed:
            leading, stride = (
                f.select(plain, stride, leading),
                f.select(plain, leading, stride),
            )
        with f.loop(count) as each:
            group = f.resize(f.add(each, first), 32)
            target = f.offset(to, f.binary("mul", each, GROUP_BYTES))
            if transposed:
                across = f.shl(f.and_(group, lines.mask), 4)
                begin = f.add(f.add(start, across), f.binary("mul", f.lshr(group, power), leading))
                step = stride
            else:
                begin = f.add(start, f.binary("mul", group, stride))
                step = f.select(plain, leading, literal("i32", CHUNK_BYTES))
            for half in range(2):
                if half:
                    begin = f.add(begin, step)
                pointers = _pointers(f, lines.swizzled(f.add(f.splat(begin), within)))
                (_turn if transposed else _copy)(f, pointers, f.offset(target, 128 * half))
        f.ret(literal("i1", 1))


def _field(f: Function, word: Value, at: int) -> Value:
    """An address or a distance in bytes."""
    units = f.and_(f.resize(f.lshr(word, at) if at else word, 32), (1 << FIELD_BITS) - 1)
    return f.shl(units, 4)


def _eight() -> Value:
    return Value(_WORDS, f"<{', '.join(f'i32 {row}' for row in range(ROWS))}>")


class _Lines:
    """The lines of a swizzling pattern; `mask` is their number less one."""

    def __init__(self, f: Function, base: Value, mask: Value) -> None:
        self._f, self._base, self.mask = f, base, mask

    def swizzled(self, addresses: Value) -> Value:
        """Where the chunks at eight addresses are."""
        f = self._f
        line = f.sub(f.lshr(addresses, _LINE), f.splat(self._base))
        return f.xor(addresses, f.shl(f.and_(line, f.splat(self.mask)), 4))


def _pointers(f: Function, addresses: Value) -> list[Value]:
    """The host addresses of chunks; returns false from the function if one is out of bounds."""
    start, size = (f.load("i64", C, WORKER[each]) for each in ("shared_base", "shared_bytes"))
    most = f.sub(f.resize(size, 32), CHUNK_BYTES)
    inside = f.compare("sle", f.sub(addresses, f.splat(f.resize(start, 32))), f.splat(most))
    above = f.compare("sge", addresses, f.splat(f.resize(start, 32)))
    with f.when(f.compare("ne", f.packed(f.and_(inside, above)), -1)):
        f.ret(literal("i1", 0))
    memory = f.load("ptr", C, WORKER["shared"])
    return [f.offset(memory, f.resize(f.extract(addresses, row), 64)) for row in range(ROWS)]


def _copy(f: Function, pointers: Sequence[Value], to: Value) -> None:
    for row, pointer in enumerate(pointers):
        f.store(f.load("<4 x i32>", pointer, align=16), to, CHUNK_BYTES * row, align=16)


def _turn(f: Function, pointers: Sequence[Value], to: Value) -> None:
    """Transpose 8×8 elements of 16 bits, in three steps that interleave rows."""
    rows = [f.load("<8 x i16>", pointer, align=16) for pointer in pointers]
    low = [each for index in range(4) for each in (index, index + ROWS)]
    high = [each + 4 for each in low]
    for _ in range(3):
        pairs = list(zip(rows[:4], rows[4:], strict=True))
        rows = [f.permute(a, order, b) for a, b in pairs for order in (low, high)]
    for row, each in enumerate(rows):
        f.store(each, to, CHUNK_BYTES * row, align=16)
