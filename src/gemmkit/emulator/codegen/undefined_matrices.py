"""Emits code that tracks undefined bits through loads and stores of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, W
from gemmkit.emulator.codegen.ir import Value, literal
from gemmkit.emulator.codegen.operands import Action, register_of
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.shadow_layout import USED_SHIFT, USED_SOURCE
from gemmkit.emulator.codegen.undefined import located, widened
from gemmkit.emulator.codegen.values import Location, Scalar, Slot
from gemmkit.emulator.isa.matrix_access import Piece
from gemmkit.emulator.isa.types import TYPES


def words_loaded(
    b: BlockWriter, space: str, arguments: Sequence[Value], piece: Piece
) -> list[Slot]:
    """Look up which bits are defined of the numbers that a part of a matrix load reads."""
    size, found = piece.bits // 8, []
    for number in range(piece.count):
        slot = b.scratch.take(max(piece.bits, 32))
        here = [*located(b, arguments, number * size), literal("i64", size)]
        b.f.runtime(f"{PREFIX}defined_{space}", "void", C, W, *here, b.pointer(slot))
        found.append(slot)
    return found


def words_stored(
    b: BlockWriter,
    action: Action,
    space: str,
    arguments: Sequence[Value],
    piece: Piece,
    defined: Sequence[Slot],
) -> None:
    """Record which bits are defined of the numbers that a part of a matrix store writes."""
    size = piece.bits // 8
    number = literal("i64", action.number | USED_SOURCE + piece.registers[0] << USED_SHIFT)
    for place, slot in enumerate(defined):
        here = [*located(b, arguments, place * size), literal("i64", size), b.pointer(slot)]
        b.f.runtime(f"{PREFIX}keep_{space}", "void", C, W, *here, number)


def held(b: BlockWriter, action: Action, bits: int, count: int) -> list[Slot] | None:
    """The defined bits of the first sources, of that width; None if all are defined."""
    shadows = b.context.shadows
    registers = [register_of(source) for source in action.sources[:count]]
    if not any(register in shadows for register in registers):
        return None
    found = []
    for register in registers:
        location: Location = Scalar(literal(f"i{bits}", -1))
        if register is not None and register in shadows:
            location = widened(b, b.location(shadows[register]), bits)
        found.append(b.in_memory(location, bits))
    return found


def assign(b: BlockWriter, action: Action, defined: Sequence[Location]) -> None:
    """Record which bits of an instruction's results are defined."""
    for register, location in zip(action.dests, defined, strict=True):
        if register is not None and register in b.context.shadows:
            b.results[register] = widened(b, location, TYPES[register.type].bits)
