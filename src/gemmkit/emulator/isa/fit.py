"""Checks that operands have the kinds, counts and widths of a form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmkit.emulator.isa.form import Form, OperandSpec
from gemmkit.emulator.isa.matrix_access import is_matrix
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.ptx.module import (
    Address,
    Group,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from gemmkit.tensor_maps import MAP_BYTES

_SOURCES = (Register, Immediate, Special, Symbol, Negated)
_KINDS: dict[str, type[Operand] | type[None]] = {
    "address": Address,
    "immediate": Immediate,
    "label": Symbol,
    "symbol": Symbol,
    "group": Group,
    "sink": type(None),
}
# The size that `applypriority` takes: one line of the L2.
_LINE_BYTES = 128
# What `setmaxnreg` takes (PTX ISA).
_FEWEST_REGISTERS, _MOST_REGISTERS, _REGISTER_STEP = 24, 256, 8
# Operations whose registers may be wider than their types.
_RELAXED = ("load", "store", "convert_")


def operands_fit(instruction: Instruction, form: Form) -> bool:
    """Whether the form accepts the instruction's operands and guard."""
    guard = instruction.guard
    if guard is not None and guard.register.type != "pred":
        return False
    given = instruction.operands
    if form.operation == "call":  # without results or arguments, it leaves out a group
        groups = [each for each in given if isinstance(each, Group)]
        callee = [each for each in given if isinstance(each, Symbol)]
        return len(callee) == 1 and len(groups) == len(given) - 1 <= 2
    if form.opcode.startswith("applypriority") and given[1:] != (Immediate(_LINE_BYTES),):
        return False
    if form.operation == "bulk_acquire_map" and given[1:] != (Immediate(MAP_BYTES),):
        return False
    if form.operation == "set_registers" and not _is_register_count(given):
        return False
    if is_matrix(form) or form.operation == "multiply_fragments":
        pairs = zip(given, form.operands, strict=False)
        lists = [operand for operand, spec in pairs if spec.type is not None and not spec.optional]
        if not all(isinstance(each, Vector) for each in lists):
            return False
    required = sum(not spec.optional for spec in form.operands)
    relaxed = form.operation.startswith(_RELAXED) and form.operation != "convert_address"
    relaxed = relaxed and not is_matrix(form)
    return required <= len(given) <= len(form.operands) and all(
        _fits(operand, spec, relaxed) for operand, spec in zip(given, form.operands, strict=False)
    )


def _is_register_count(given: Sequence[Operand | None]) -> bool:
    """Whether these are the operand of `setmaxnreg`."""
    return (
        len(given) == 1
        and isinstance(given[0], Immediate)
        and given[0].value in range(_FEWEST_REGISTERS, _MOST_REGISTERS + 1, _REGISTER_STEP)
    )


def _fits(operand: Operand | None, spec: OperandSpec, relaxed: bool) -> bool:
    if isinstance(operand, Address):
        base = operand.base
        wide = not isinstance(base, Register) or TYPES[base.type].bits in (32, 64)
        return spec.role == "address" and operand.coordinates == spec.coordinates and wide
    if spec.role == "policy":
        return isinstance(operand, Register) and _holds(operand, 64, False)
    if spec.role not in ("dest", "source"):
        return isinstance(operand, _KINDS[spec.role])
    assert spec.type is not None
    if isinstance(operand, Pair):
        predicate = operand.second is None or is_predicate(operand.second)
        return spec.pair and predicate and _fits(operand.first, spec, relaxed)
    elements: Iterable[Operand | None] = (operand,)
    bits = spec.type.bits
    if isinstance(operand, Vector):
        elements = operand.elements
        if spec.count == 1:  # joined or split, as in `mov.b64 d, {lo, hi}`
            bits //= len(operand.elements)
        elif spec.count != len(operand.elements):
            return False
    elif spec.count != 1:
        return False
    if spec.role == "dest":
        return all(
            each is None or (isinstance(each, Register) and _holds(each, bits, relaxed))
            for each in elements
        )
    return all(isinstance(each, _SOURCES) and _gives(each, bits, relaxed) for each in elements)


def _holds(register: Register, bits: int, relaxed: bool) -> bool:
    width = TYPES[register.type].bits
    return width == bits or (relaxed and 1 < bits < width)


def _gives(source: Operand, bits: int, relaxed: bool) -> bool:
    if isinstance(source, Negated):
        return bits == 1 and is_predicate(source.register)
    return not isinstance(source, Register) or _holds(source, bits, relaxed)


def is_predicate(operand: Operand | None) -> bool:
    """Whether an operand is a predicate register, plain or negated."""
    if isinstance(operand, Negated):
        operand = operand.register
    return isinstance(operand, Register) and operand.type == "pred"
