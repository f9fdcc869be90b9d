"""A kernel's instructions with their operands sorted by role."""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.counters.merging import Merging
from gemmkit.emulator.isa.form import Form, OperandSpec
from gemmkit.emulator.isa.types import TYPES, PtxType
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Source,
    Vector,
)

PREDICATE = TYPES["pred"]


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction. Brace lists are flattened; a destination that is None is discarded.

    `width` is the bytes per lane with which an access counts if ptxas merges it into a wider one;
    it does not count if it is `silent`.
    """

    number: int
    instruction: Instruction
    form: Form
    dests: tuple[tuple[Register | None, PtxType], ...]
    sources: tuple[tuple[Source, PtxType], ...]
    addresses: tuple[Address, ...]
    immediates: tuple[int, ...]
    width: int | None
    silent: bool


def steps_of(flow: ControlFlow) -> tuple[Step, ...]:
    """The steps of a kernel, in order."""
    pairs, merging = zip(flow.kernel.body, flow.forms, strict=True), Merging.of(flow)
    return tuple(_step(number, *pair, merging) for number, pair in enumerate(pairs))


def _step(number: int, instruction: Instruction, form: Form, merging: Merging) -> Step:
    dests: list[tuple[Register | None, PtxType]] = []
    sources: list[tuple[Source, PtxType]] = []
    addresses: list[Address] = []
    immediates: list[int] = []
    for operand, spec in zip(instruction.operands, form.operands, strict=False):
        if spec.role == "dest":
            dests += _destinations(operand, spec)
        elif spec.role == "source":
            sources += _sources(operand, spec)
        elif isinstance(operand, Address):
            addresses.append(operand)
        elif spec.role == "immediate" and isinstance(operand, Immediate):
            immediates.append(operand.value)
    return Step(
        number,
        instruction,
        form,
        tuple(dests),
        tuple(sources),
        tuple(addresses),
        tuple(immediates),
        merging.width.get(number),
        number in merging.silent,
    )


def _element_type(spec: OperandSpec, elements: int) -> PtxType:
    """A brace list where the form has one operand splits its bits, as in `mov.b64 d, {lo, hi}`."""
    assert spec.type is not None
    if spec.count == elements or elements == 1:
        return spec.type
    return TYPES[f"b{spec.type.bits // elements}"]


def _destinations(
    operand: Operand | None, spec: OperandSpec
) -> list[tuple[Register | None, PtxType]]:
    assert spec.type is not None
    if isinstance(operand, Pair):
        first, second = (
            each if isinstance(each, Register) else None for each in (operand.first, operand.second)
        )
        return [(first, spec.type), (second, PREDICATE)]
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    each_type = _element_type(spec, len(elements))
    return [(each if isinstance(each, Register) else None, each_type) for each in elements]


def _sources(operand: Operand | None, spec: OperandSpec) -> list[tuple[Source, PtxType]]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    each_type = _element_type(spec, len(elements))
    return [(each, each_type) for each in elements if isinstance(each, Source)]
