"""Emits the calls of instructions that Python executes."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen import asynchronous_calls, sanitizer_calls, undefined
from gemmkit.emulator.codegen.addresses import base_of
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, T, W
from gemmkit.emulator.codegen.counting import active_lanes
from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.operands import (
    Action,
    extends_sign,
    result_widths,
    source_widths,
)
from gemmkit.emulator.codegen.ordering import is_asynchronous
from gemmkit.emulator.codegen.values import Lanes, Location, Slot
from gemmkit.emulator.ptx.module import Address


def through_python(b: BlockWriter, action: Action) -> None:
    """Have Python execute an instruction."""
    lanes = active_lanes(b, action)
    if action.form.opcode_class == "warp":
        sanitizer_calls.members(b, action, lanes)
        undefined.gathered(b, action)
    values = executed_by_python(b, action, lanes)
    b.put(action, values, signed=extends_sign(action))


def arrive_after_copies(b: BlockWriter, action: Action) -> None:
    """`cp.async.mbarrier.arrive`: the thread's earlier cp.async copies arrive first."""
    sanitizer_calls.copies_arrive(b, b.active(action.guard))
    through_python(b, action)


def executed_by_python(
    b: BlockWriter, action: Action, lanes: Value, block: int = -1
) -> list[Location]:
    """Operands to scratch, a call, results from scratch; `block` is that of a `try_wait`."""
    b.make_room()
    f = b.f
    operands: list[tuple[int, int]] = []
    for source, bits in zip(action.sources, source_widths(action), strict=True):
        operands.append(to_scratch(b, b.source(source, bits), bits))
    operands += [_address_to_scratch(b, address) for address in action.addresses]
    results = [(b.scratch.take(max(bits, 32)).offset, bits) for bits in result_widths(action)]
    b.context.outside[action.number] = (tuple(operands), tuple(results))
    if is_asynchronous([action]):
        asynchronous_calls.call(b, action, lanes, operands, results, block)
    else:
        f.runtime("operate", "void", C, W, literal("i32", action.number), lanes)
    return [
        Lanes(f.load("i32", T, offset)) if bits == 1 else Slot("t", offset, bits)
        for offset, bits in results
    ]


def to_scratch(b: BlockWriter, location: Location, bits: int) -> tuple[int, int]:
    """Copy an operand to where Python reads it; returns the offset, and its bits."""
    if bits == 1:
        slot = b.scratch.take(32)
        b.f.store(b.lanes(location), T, slot.offset)
        return slot.offset, 1
    slot = b.in_memory(location, bits)
    if slot.area == "w":
        copy = b.node(lambda _, s: s[:1], [(slot, bits)], [bits])[0]
        slot = b.in_memory(copy, bits)
    return slot.offset, bits


def _address_to_scratch(b: BlockWriter, address: Address) -> tuple[int, int]:
    # Any operand may be in shared memory; other addresses are left as they are.
    base, offset = base_of(b, address, 64, peers=True), address.offset

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        return (f.add(s[0], offset),)

    moved = b.node(emit, [(base, 64)], [64])[0]
    return to_scratch(b, moved, 64)
