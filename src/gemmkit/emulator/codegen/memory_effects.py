"""Emits memory accesses: loads, stores, cp.async and atomics."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen import matrix_effects, sanitizer_calls, undefined
from gemmkit.emulator.codegen.addresses import (
    address_of,
    base_of,
    guard_key,
    is_narrow,
    located,
    space_of,
)
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C
from gemmkit.emulator.codegen.counting import active_lanes, count_separately
from gemmkit.emulator.codegen.ir import RUNTIME_PREFIX, Function, Value, literal
from gemmkit.emulator.codegen.operands import Action, source_widths, unsupported
from gemmkit.emulator.codegen.python_calls import through_python
from gemmkit.emulator.codegen.runtime.atomics import is_native
from gemmkit.emulator.codegen.values import Location, Result, root_of
from gemmkit.emulator.isa.matrix_access import is_matrix
from gemmkit.emulator.ptx.module import Immediate

NULL = Value("ptr", "null")


def load(b: BlockWriter, action: Action) -> None:
    """Emit a load."""
    b.make_room()
    if is_matrix(action.form):
        matrix_effects.load(b, action, active_lanes(b, action))
        return
    group = b.context.areas.group_of.get(action.number)
    if group is not None and not b.context.shadows:
        _load_together(b, action, group)
        return
    bits, count = action.form.type.bits, len(action.dests)
    lanes = active_lanes(b, action)
    space, arguments = located(b, action, lanes)
    width = max(bits, 32)
    slots = [b.destination(action, register, width) for register in action.dests]
    results = [b.pointer(slot) for slot in slots]
    sanitizer_calls.before(b, action)
    b.f.runtime(b.context.access(f"load_{space}_{bits}x{count}"), "void", *arguments, *results)
    sanitizer_calls.after(b, action, *arguments[-2:])
    undefined.loaded(b, action, space, arguments)
    values = [b.resized(slot, bits) for slot in slots]
    b.put(action, values, signed=action.form.type.is_signed)


def _load_together(b: BlockWriter, action: Action, group: Sequence[int]) -> None:
    """The first load of a group performs all of them; each takes its result at its own position."""
    if action.number not in b.loaded:
        slots = b.scratch.take_row(len(group))
        first = b.context.analysis.actions[group[0]]
        space, arguments = located(b, first, b.mask)
        function = b.context.access(f"load_row_{space}")
        b.f.runtime(function, "void", *arguments, b.pointer(slots[0]))
        b.loaded |= zip(group, slots, strict=True)
    slot = b.loaded.pop(action.number)
    b.put(action, [slot], signed=action.form.type.is_signed)


def store(b: BlockWriter, action: Action) -> None:
    """Emit a store."""
    b.make_room()
    if is_matrix(action.form):
        matrix_effects.store(b, action, active_lanes(b, action))
        return
    bits, count = action.form.type.bits, len(action.sources)
    width = max(bits, 32)
    locations = [b.resized(b.source(source, bits), width) for source in action.sources]
    assert action.address is not None
    root, _ = root_of(base_of(b, action.address, 32 if is_narrow(action) else 64))
    b.materialise([*locations, root] if isinstance(root, Result) else locations)
    slots = [b.in_memory(location, width) for location in locations]
    lanes = active_lanes(b, action)
    space, arguments = located(b, action, lanes)
    data = [b.pointer(slot) for slot in slots]
    sanitizer_calls.before(b, action)
    b.f.runtime(b.context.access(f"store_{space}_{bits}x{count}"), "void", *arguments, *data)
    sanitizer_calls.after(b, action, *arguments[-2:])
    undefined.stored(b, action, space, arguments)


def copy_async(b: BlockWriter, action: Action) -> None:
    """Emit a `cp.async`."""
    b.make_room()
    f = b.f
    size, *given = action.sources
    assert isinstance(size, Immediate)
    assert action.address is not None
    assert action.other_address is not None
    if size.value not in (4, 8, 16):
        raise unsupported(action.instruction, "cp.async copies 4, 8 or 16 bytes")
    lanes = active_lanes(b, action)
    key = guard_key(b, action)
    reading, sizes, source_key = lanes, NULL, key
    if given:
        location = _bytes_read(b, action, size.value)
        sizes = b.pointer(b.in_memory(location, 32))
        reading = f.and_(lanes, f.runtime("positive", "i32", sizes))
        # These lanes are a separate set; the location of the size distinguishes it.
        source_key = (
            location if key is None else b.node(lambda _, s: s[:1], [(location, 32)], [32])[0]
        )
    count_separately(b, action, reading, lanes)
    to, to_base = address_of(b, action, action.address, True, lanes, key)
    start, start_base = address_of(b, action, action.other_address, False, reading, source_key)
    site = f.offset(C, b.context.areas.site(action.number))
    function = b.context.access(f"copy_async_{size.value}")
    cached = literal("i1", action.form["C"] == "ca")
    f.runtime(function, "void", C, site, to, to_base, start, start_base, sizes, cached)


def _bytes_read(b: BlockWriter, action: Action, size: int) -> Location:
    """How many bytes each lane of a `cp.async` reads: all, or none with `ignore-src`."""
    source = action.sources[1]
    if source_widths(action)[1] != 1:
        return b.source(source, 32)

    def none_where_ignored(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        return (f.and_(f.sub(f.resize(s[0], 32), 1), size),)

    return b.node(none_where_ignored, [(b.source(source, 1), 1)], [32])[0]


def atomic(b: BlockWriter, action: Action) -> None:
    """Emit an atomic operation."""
    b.make_room()
    form, bits = action.form, action.form.type.bits
    name = "cas" if action.operation == "compare_and_swap" else form["O"]
    if not is_native(name, form["T"]):
        through_python(b, action)
        return
    locations = [b.source(source, bits) for source in action.sources]
    b.materialise([b.resized(location, bits) for location in locations])
    slots = [b.in_memory(location, bits) for location in locations]
    lanes = active_lanes(b, action)
    assert action.address is not None
    space, key = space_of(action), guard_key(b, action)
    pattern, base = address_of(b, action, action.address, is_narrow(action), lanes, key)
    result = b.scratch.take(bits) if action.dests else None
    act = f"{RUNTIME_PREFIX}{name}_{form['T']}"
    b.f.module.declare(act, "void", ["ptr"] * 5)
    registers = [b.pointer(result) if result is not None else NULL]
    registers += [b.pointer(slot) for slot in slots]
    registers += [NULL] * (3 - len(registers))
    site = b.f.offset(C, b.context.areas.site(action.number))
    arguments = (C, site, pattern, base, Value("ptr", f"@{act}"), *registers)
    sanitizer_calls.before(b, action)
    b.f.runtime(b.context.access(f"atomic_{space}_{bits}"), "void", *arguments)
    sanitizer_calls.after(b, action, pattern, base)
    if result is not None:
        b.put(action, [result])
