"""Emits code that tracks undefined bits through registers and checks where they are used.

Only in code that tracks them; see `tracking` for what a shadow is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gemmkit.emulator.codegen import arithmetic
from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, W
from gemmkit.emulator.codegen.ir import Function, Value, element_type, literal
from gemmkit.emulator.codegen.operands import (
    Action,
    extends_sign,
    register_of,
    result_widths,
    source_widths,
)
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.shadow_layout import USED_ADDRESS, USED_GUARD, USED_SHIFT, USED_SOURCE
from gemmkit.emulator.codegen.tracking import used_from
from gemmkit.emulator.codegen.values import Lanes, Location, Scalar, Slot
from gemmkit.emulator.isa.definedness import flow_of
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrix_access import addressing_lanes, is_matrix
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.ptx.module import Register

Emit = Callable[[Function, Sequence[Value]], Sequence[Value]]
_NULL = Value("ptr", "null")


def before(b: BlockWriter, action: Action) -> None:
    """Before an instruction: check what it uses, and find the defined bits of its results."""
    if not b.context.shadows:
        return
    b.results.clear()
    guard = action.guard
    if guard is None:
        b.chosen = None
    else:
        b.chosen = b.guard_location(guard)
        if guard.register in b.context.shadows:
            b.decided = b.location(b.context.shadows[guard.register])
    if action.pure:
        _compute(b, action)
        return
    if guard is not None:
        _use(b, action, guard.register, b.mask, USED_GUARD)
    if action.operation != "no_operation":
        for location, address in enumerate((action.address, action.other_address)):
            if address is not None and isinstance(address.base, Register):
                lanes = b.active(guard)
                if is_matrix(action.form):
                    lanes = b.f.and_(lanes, addressing_lanes(action.form))
                _use(b, action, address.base, lanes, USED_ADDRESS + location)
    for location in range(used_from(action), len(action.sources)):
        register = register_of(action.sources[location])
        if register is not None:
            _use(b, action, register, b.active(guard), USED_SOURCE + location)


def after(b: BlockWriter, action: Action) -> None:
    """After an instruction: store the defined bits of its results."""
    shadows = b.context.shadows
    for register in action.dests:
        if register is None or register not in shadows:
            continue
        bits = TYPES[register.type].bits
        value = b.results.pop(register, None) or Scalar(literal(f"i{bits}", -1))
        b.keep(shadows[register], value, b.chosen)
        guard = action.guard
        if action.pure and guard is not None and guard.register in shadows:
            # If it is undefined whether an instruction acts, its results are undefined.
            both = [(b.location(shadows[register]), bits), (b.decided, 1)]
            b.keep(shadows[register], _node(b, partial(_both, bits), both, [bits])[0], None)


def _both(bits: int, f: Function, s: Sequence[Value]) -> Sequence[Value]:
    return (f.and_(s[0], f.resize(s[1], bits, signed=True)),)


def loaded(b: BlockWriter, action: Action, space: str, arguments: Sequence[Value]) -> None:
    """Look up which bits of a load's results are defined."""
    of = action.form.type
    width = max(of.bits, 32)
    for location, register in enumerate(action.dests):
        if register is None or register not in b.context.shadows:
            continue
        slot = b.scratch.take(width)
        here = [*located(b, arguments, location * of.bytes), literal("i64", of.bytes)]
        b.f.runtime(f"{PREFIX}defined_{space}", "void", C, W, *here, b.pointer(slot))
        b.results[register] = widened(b, slot, TYPES[register.type].bits)


def stored(b: BlockWriter, action: Action, space: str, arguments: Sequence[Value]) -> None:
    """Record which bits of a stored value are defined; a store that others see counts as a use."""
    if not b.context.shadows:
        return
    of = action.form.type
    width = max(of.bits, 32)
    for location, source in enumerate(action.sources):
        register = register_of(source)
        data = _NULL
        if register is not None and register in b.context.shadows:
            shadow = widened(b, b.location(b.context.shadows[register]), width)
            data = b.pointer(b.in_memory(shadow, width))
        elif space in ("global", "shared"):
            continue
        here = [*located(b, arguments, location * of.bytes), literal("i64", of.bytes), data]
        number = literal("i64", action.number | USED_SOURCE + location << USED_SHIFT)
        b.f.runtime(f"{PREFIX}keep_{space}", "void", C, W, *here, number)


def located(b: BlockWriter, arguments: Sequence[Value], distance: int) -> list[Value]:
    """The last arguments of an access, `distance` bytes further on."""
    site, pattern, base = arguments[-3:]
    return [site, pattern, b.f.add(base, distance) if distance else base]


def shuffled(b: BlockWriter, action: Action, lanes: Value, operands: Sequence[Slot]) -> None:
    """Check whether lanes of a shuffle read from lanes that do not participate, whose values are
    undefined. Otherwise a shuffle moves the defined bits as it does the values."""
    if not b.context.sanitize:
        return
    f, shadows, mode = b.f, b.context.shadows, action.form["M"]
    masks = b.pointer(b.in_memory(b.source(action.sources[3], 32), 32))
    choice = [b.pointer(each) for each in operands[1:]]
    number = literal("i64", action.number)
    absent = f.runtime(f"{PREFIX}absent_{mode}", "i32", C, lanes, *choice, masks, number)
    register, source = action.dests[0], register_of(action.sources[0])
    if register is None or register not in shadows:
        return
    defined: Location = Scalar(literal("i32", -1))
    if source is not None and source in shadows:
        slot = b.in_memory(widened(b, b.location(shadows[source]), 32), 32)
        result = b.scratch.take(32)
        f.runtime(f"shuffle_{mode}", "i32", b.pointer(result), b.pointer(slot), *choice)
        defined = result

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        return (f.select(s[0], literal(s[1].type, 0), s[1]),)

    found = b.node(emit, [(Lanes(absent), 1), (defined, 32)], [32])[0]
    b.results[register] = widened(b, found, TYPES[register.type].bits)


def gathered(b: BlockWriter, action: Action) -> None:
    """The result of a vote is defined if the operand is defined in all lanes that participate."""
    shadows = b.context.shadows
    source = register_of(action.sources[0])
    if source is None or source not in shadows or not used_from(action):
        return
    f = b.f
    lanes = f.and_(b.active(action.guard), _undefined_lanes(b, source))
    fine = f.compare("eq", lanes, 0)
    for register in action.dests:
        if register is not None:
            bits = TYPES[register.type].bits
            b.results[register] = Scalar(f.resize(fine, bits, signed=True))


def multiplied(b: BlockWriter, action: Action) -> None:
    """An element of a matrix product is defined if its row, its column and its addend are."""
    shadows = b.context.shadows
    if not any(register in shadows for register in action.dests):
        return
    operands = []
    for source, bits in zip(action.sources, source_widths(action), strict=True):
        register = register_of(source)
        location: Location = Scalar(literal(f"i{bits}", -1))
        if register is not None and register in shadows:
            location = widened(b, b.location(shadows[register]), bits)
        copy = b.node(lambda _, s: s[:1], [(location, bits)], [bits])[0]
        operands.append((b.in_memory(copy, bits).offset, bits))
    results = [b.scratch.take(bits) for bits in result_widths(action)]
    number = -1 - action.number
    b.context.outside[number] = (
        tuple(operands),
        tuple((slot.offset, slot.bits) for slot in results),
    )
    b.f.runtime("operate", "void", C, W, literal("i32", number), b.active(action.guard))
    for register, slot in zip(action.dests, results, strict=True):
        if register is not None:
            b.results[register] = slot


def _use(b: BlockWriter, action: Action, register: Register, lanes: Value, how: int) -> None:
    """Report lanes that use undefined bits of a register."""
    if register not in b.context.shadows:
        return
    f = b.f
    found = f.and_(lanes, _undefined_lanes(b, register))
    number = literal("i64", action.number | how << USED_SHIFT)
    with f.when(f.compare("ne", found, 0)):
        f.runtime(PREFIX + "used", "void", C, found, number)


def _undefined_lanes(b: BlockWriter, register: Register) -> Value:
    """The lanes in which some bit of a register is undefined, inactive lanes included."""
    location = b.location(b.context.shadows[register])
    bits = TYPES[register.type].bits
    if bits == 1:
        return b.f.not_(b.lanes(location))
    return b.lanes(_node(b, _some, [(location, bits)], [1])[0])


def _some(f: Function, s: Sequence[Value]) -> Sequence[Value]:
    return (f.compare("ne", s[0], -1),)


def _node(
    b: BlockWriter, emit: Emit, sources: Sequence[tuple[Location, int]], bits: Sequence[int]
) -> Sequence[Location]:
    if all(isinstance(location, Scalar) for location, _ in sources):
        return b.at_once(emit, sources)
    return b.node(emit, sources, bits)


def widened(b: BlockWriter, defined: Location, bits: int, *, signed: bool = False) -> Location:
    """The defined bits in another width: added bits are, unless they copy an undefined sign."""
    have = defined.bits
    if have == bits:
        return defined

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        return (f.not_(f.resize(f.not_(s[0]), bits, signed=signed)),)

    return _node(b, emit, [(defined, have)], [bits])[0]


# Lane by lane


def _compute(b: BlockWriter, action: Action) -> None:
    """Find which bits of the results of a computation are defined."""
    shadows = b.context.shadows
    if not any(register in shadows for register in action.dests):
        return
    widths, results = source_widths(action), result_widths(action)
    values, undefined = [], []
    for source, bits in zip(action.sources, widths, strict=True):
        register = register_of(source)
        values.append((b.resized(b.source(source, bits), bits), bits))
        has = register is not None and register in shadows
        undefined.append((_undefined(b, register, bits), bits) if has and register else None)
    if not any(undefined):
        return
    rule = _rule(action, len(widths), results)
    given = [location for location in undefined if location is not None]
    which = [number for number, location in enumerate(undefined) if location is not None]

    def emit(f: Function, s: Sequence[Value]) -> Sequence[Value]:
        bits: list[Value | None] = [None] * len(widths)
        for number, location in enumerate(which, len(widths)):
            bits[location] = s[number]
        return rule(f, s[: len(widths)], bits)

    locations = _node(b, emit, [*values, *given], results)
    for register, location in zip(action.dests, locations, strict=False):
        if register is not None and register in shadows:
            width = TYPES[register.type].bits
            wide = b.resized(location, width, signed=extends_sign(action))
            b.results[register] = _node(b, _inverted, [(wide, width)], [width])[0]


def _inverted(f: Function, s: Sequence[Value]) -> Sequence[Value]:
    return (f.not_(s[0]),)


def _undefined(b: BlockWriter, register: Register, bits: int) -> Location:
    """The undefined bits of a register in the width in which it is read."""
    have = TYPES[register.type].bits
    location = b.location(b.context.shadows[register])
    return b.resized(_node(b, _inverted, [(location, have)], [have])[0], bits)


Rule = Callable[[Function, Sequence[Value], Sequence[Value | None]], Sequence[Value]]


def _rule(action: Action, sources: int, results: Sequence[int]) -> Rule:
    """How an instruction's undefined bits follow from those of its operands.

    The rule takes the operands' values and undefined bits, None if all bits are defined.
    """
    form = action.form
    if action.operation in ("move", "call_parameter", "load_parameter"):
        return _moving(form.type.bits, sources, results)
    flow = flow_of(form)
    if flow.kind == "moved":
        return _moved(form, flow.data)
    if flow.kind == "bitwise":
        return _bitwise(form)
    if flow.kind == "packed":
        return _packed
    return _whole(results, flow.part)


def _zero(like: Value) -> Value:
    return literal(like.type, 0)


def _moving(bits: int, sources: int, results: Sequence[int]) -> Rule:
    def emit(
        f: Function, values: Sequence[Value], undefined: Sequence[Value | None]
    ) -> Sequence[Value]:
        parts = [u or _zero(v) for u, v in zip(undefined, values, strict=True)]
        if sources > 1 and len(results) == 1:
            return (arithmetic.pack(f, bits, parts),)
        if len(results) > 1 and sources == 1:
            return arithmetic.unpack(f, parts[0], bits, len(results))
        return parts

    return emit


def _moved(form: Form, data: Sequence[int]) -> Rule:
    def emit(
        f: Function, values: Sequence[Value], undefined: Sequence[Value | None]
    ) -> Sequence[Value]:
        operands = [
            (undefined[location] or _zero(value)) if location in data else value
            for location, value in enumerate(values)
        ]
        (result,) = arithmetic.emit(f, form, operands)
        for location, bits in enumerate(undefined):
            if bits is not None and location not in data:
                result = f.or_(result, _spread(f, bits, _width(result)))
        return (result,)

    return emit


def _bitwise(form: Form) -> Rule:
    def emit(
        f: Function, values: Sequence[Value], undefined: Sequence[Value | None]
    ) -> Sequence[Value]:
        (now,) = arithmetic.emit(f, form, values)
        found = _zero(now)
        which = [location for location, bits in enumerate(undefined) if bits is not None]
        for chosen in range(1, 1 << len(which)):
            other = list(values)
            for number, location in enumerate(which):
                bits = undefined[location]
                if chosen >> number & 1 and bits is not None:
                    other[location] = f.xor(values[location], bits)
            (then,) = arithmetic.emit(f, form, other)
            found = f.or_(found, f.xor(now, then))
        return (found,)

    return emit


def _packed(
    f: Function, values: Sequence[Value], undefined: Sequence[Value | None]
) -> Sequence[Value]:
    low, high = (
        _spread(f, bits, 16) if bits is not None else _zero(f.resize(value, 16))
        for value, bits in zip(reversed(values), reversed(undefined), strict=True)
    )
    return (f.or_(f.resize(low, 32), f.shl(f.resize(high, 32), 16)),)


def _whole(results: Sequence[int], part: int) -> Rule:
    def emit(
        f: Function, values: Sequence[Value], undefined: Sequence[Value | None]
    ) -> Sequence[Value]:
        del values
        given = [bits for bits in undefined if bits is not None]
        if part:
            both = given[0]
            for bits in given[1:]:
                both = f.or_(both, bits)
            low = _spread(f, f.resize(both, part), 2 * part)
            high = _spread(f, f.resize(f.lshr(both, part), part), 2 * part)
            mask = (1 << part) - 1
            return (f.or_(f.and_(low, mask), f.and_(high, mask << part)),)
        some = f.compare("ne", given[0], 0)
        for bits in given[1:]:
            some = f.or_(some, f.compare("ne", bits, 0))
        return [f.resize(some, width, signed=True) for width in results]

    return emit


def _spread(f: Function, bits: Value, width: int) -> Value:
    """All ones if any bit is set."""
    return f.resize(f.compare("ne", bits, 0), width, signed=True)


def _width(value: Value) -> int:
    return int(element_type(value.type)[1:])
