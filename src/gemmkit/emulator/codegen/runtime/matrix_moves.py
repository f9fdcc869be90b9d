"""`ldmatrix`, `stmatrix` and `movmatrix`: rows of 8×8 matrices to registers of lanes, and back.

The definition is that of `isa.matrix_moves`. A vector is four strips of eight lanes: strip j holds
the rows of matrix j, one to a lane, and lanes 8 s to 8 s + 7 of a register rows 2 s and 2 s + 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemmkit.emulator.codegen.ir import Function, Module, Value
from gemmkit.emulator.codegen.layout import STRIP_LANES, STRIPS
from gemmkit.emulator.codegen.runtime.patterns import strip_of

TRANSPOSE = "transpose_matrix"
_LOW, _HIGH = 0xFFFF, 0xFFFF0000
_NAME = re.compile(r"(distribute|collect)_rows_(\d)(t?)")


def distribute(matrices: int, *, transposed: bool) -> str:
    """The function for a load: (registers…, words of the rows…)."""
    return f"distribute_rows_{matrices}{'t' if transposed else ''}"


def collect(matrices: int, *, transposed: bool) -> str:
    """The function for a store: (words of the rows…, registers…)."""
    return f"collect_rows_{matrices}{'t' if transposed else ''}"


def is_move(function: str) -> bool:
    """Whether this file defines a function; each is a module of its own."""
    return function == TRANSPOSE or _NAME.fullmatch(function) is not None


def define(module: Module, name: str) -> None:
    """Add one function."""
    if name == TRANSPOSE:
        _define_transpose(module)
        return
    match = _NAME.fullmatch(name)
    assert match is not None
    way, count, turned = match.groups()
    matrices = range(int(count))
    registers = [Value("ptr", f"%r{number}") for number in matrices]
    words = [Value("ptr", f"%w{number}") for number in range(STRIPS)]
    loads = way == "distribute"
    parameters = (*registers, *words) if loads else (*words, *registers)
    with module.function(f"gemmkit.{name}", "void", parameters) as f:
        for number in matrices:
            if loads:
                rows = [_strip(f, word, number) for word in words]
                found = _turned(f, rows) if turned else _spread(f, rows)
                for strip, value in enumerate(found):
                    _keep(f, value, registers[number], strip)
            else:
                held = [_strip(f, registers[number], strip) for strip in range(STRIPS)]
                found = _turned_back(f, held) if turned else _gathered(f, held)
                for word, value in zip(words, found, strict=True):
                    _keep(f, value, word, number)
        f.ret()


def _define_transpose(module: Module) -> None:
    """transpose_matrix(result, register)."""
    result, register = Value("ptr", "%d"), Value("ptr", "%r")
    with module.function(f"gemmkit.{TRANSPOSE}", "void", (result, register)) as f:
        held = [_strip(f, register, strip) for strip in range(STRIPS)]
        for strip, value in enumerate(_turned(f, _gathered(f, held))):
            _keep(f, value, result, strip)
        f.ret()


def _strip(f: Function, pointer: Value, number: int) -> Value:
    return strip_of(f, pointer, number, 32)


def _keep(f: Function, value: Value, pointer: Value, number: int) -> None:
    f.store(value, pointer, number * STRIP_LANES * 4)


def _spread(f: Function, rows: Sequence[Value]) -> list[Value]:
    """The strips of a register from the four words of eight rows."""
    found = []
    for strip in range(STRIPS):
        first, second = 2 * strip, 2 * strip + 1
        pairs = [
            f.permute(a, [first, STRIP_LANES + first, second, STRIP_LANES + second] * 2, b)
            for a, b in (rows[:2], rows[2:])
        ]
        found.append(f.permute(pairs[0], [0, 1, 8, 9, 2, 3, 10, 11], pairs[1]))
    return found


def _gathered(f: Function, held: Sequence[Value]) -> list[Value]:
    """The four words of eight rows from the strips of a register."""
    found = []
    for word in range(STRIPS):
        halves = [
            f.permute(a, [word, 4 + word, 8 + word, 12 + word] * 2, b)
            for a, b in (held[:2], held[2:])
        ]
        found.append(f.permute(halves[0], [0, 1, 2, 3, 8, 9, 10, 11], halves[1]))
    return found


def _turned(f: Function, rows: Sequence[Value]) -> list[Value]:
    """The strips of a register of the transposed matrix: lanes 4 g + t hold elements g of rows 2 t
    and 2 t + 1."""
    found = []
    for word in rows:
        even = f.permute(word, [0, 2, 4, 6] * 2)
        odd = f.permute(word, [1, 3, 5, 7] * 2)
        low = f.or_(f.and_(even, _LOW), f.shl(odd, 16))
        high = f.or_(f.lshr(even, 16), f.and_(odd, _HIGH))
        found.append(f.permute(low, [0, 1, 2, 3, 12, 13, 14, 15], high))
    return found


def _turned_back(f: Function, held: Sequence[Value]) -> list[Value]:
    """The four words of eight rows from the strips of a register that holds the transpose."""
    found = []
    for strip in held:
        even = f.permute(strip, [0, 0, 1, 1, 2, 2, 3, 3])
        odd = f.permute(strip, [4, 4, 5, 5, 6, 6, 7, 7])
        low = f.or_(f.and_(even, _LOW), f.shl(odd, 16))
        high = f.or_(f.lshr(even, 16), f.and_(odd, _HIGH))
        found.append(f.permute(low, [0, 9, 2, 11, 4, 13, 6, 15], high))
    return found
