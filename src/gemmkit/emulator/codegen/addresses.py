"""Emits the address of a memory operand: its state space and the pattern of its lanes."""

from __future__ import annotations

from gemmkit.emulator.codegen.block import BlockWriter
from gemmkit.emulator.codegen.context import C, W
from gemmkit.emulator.codegen.ir import Value, literal
from gemmkit.emulator.codegen.layout import ALL_LANES, PATTERN
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ranks import relative, relative_base
from gemmkit.emulator.codegen.values import Location, Result, Scalar, Slot, root_of
from gemmkit.emulator.isa.cluster import reaches_peers
from gemmkit.emulator.ptx.module import Address, Register, Symbol


def space_of(action: Action) -> str:
    """The state space of a memory instruction: global, shared, local or generic."""
    space = action.form["S"].removesuffix("::cta") or "generic"
    return "global" if space == "const" else space


def is_narrow(action: Action) -> bool:
    """Whether addresses have 32 bits (shared and local memory) instead of 64."""
    return space_of(action) in ("shared", "local")


def address_of(
    b: BlockWriter,
    action: Action,
    address: Address,
    narrow: bool,
    lanes: Value,
    key: Location | None,
) -> tuple[Value, Value]:
    """The pattern of a memory operand, and the first active lane's address as i64.

    `key` distinguishes sets of active lanes: the guard's predicate, if there is one.
    """
    bits = 32 if narrow else 64
    location = base_of(b, address, bits, peers=reaches_peers(action.form))
    pattern, base = pattern_at(b, action, location, bits, lanes, key)
    if address.offset:
        base = b.f.add(base, address.offset)
    return pattern, b.f.resize(own_base(b, action, address, base, bits), 64)


def own_base(b: BlockWriter, action: Action, address: Address, base: Value, bits: int) -> Value:
    """The address of an access without the rank that it has if it is in the block's own shared
    memory, and comes from a register."""
    ranked = isinstance(address.base, Register) and b.context.shows_ranks
    own = (
        bits == 32 and not reaches_peers(action.form) and action.form.modifiers.get("S") != "local"
    )
    return relative_base(b.f, base, bits) if own and ranked else base


def pattern_at(
    b: BlockWriter,
    action: Action,
    location: Location,
    bits: int,
    lanes: Value,
    key: Location | None,
    chosen: int = ALL_LANES,
) -> tuple[Value, Value]:
    """The pattern of addresses of that width, and the first active lane's address.

    `chosen` are the lanes that an instruction is limited to, which distinguishes sets of lanes as
    `key` does.
    """
    f = b.f
    root, distance = root_of(location)
    if root is not None and not isinstance(location, Scalar):
        pattern, base = _pattern(b, action, root, bits, lanes, key, chosen)
    else:
        assert isinstance(location, Scalar)
        pattern, _ = _pattern(b, action, None, bits, lanes, key, chosen)
        base, distance = location.value, None
    if distance is not None:
        base = f.add(base, distance)
    return pattern, base


def base_of(b: BlockWriter, address: Address, bits: int, *, peers: bool = False) -> Location:
    """The base of an address: a register, a symbol or a number. `peers` says that it may be in
    the shared memory of any block: then it is a relative address."""
    if isinstance(address.base, Symbol):
        return b.symbol(address.base.name, bits)
    if isinstance(address.base, Register):
        found = b.resized(b.location(address.base), bits)
        return relative(b, found, bits) if peers and b.context.shows_ranks else found
    return Scalar(literal(f"i{bits}", address.base.value))


def _pattern(
    b: BlockWriter,
    action: Action,
    root: Slot | Result | None,
    bits: int,
    lanes: Value,
    key: Location | None,
    chosen: int,
) -> tuple[Value, Value]:
    """Look up the pattern of a vector of addresses, once per block; a scalar has that of zeros."""
    negated = action.guard is not None and action.guard.negated
    found = b.patterns.get((root, key, negated, chosen))
    if found is None:
        f = b.f
        zero = Scalar(literal(f"i{bits}", 0))
        slot = b.in_memory(root if root is not None else zero, bits)
        cache = f.offset(C, b.context.areas.new_patterns())
        pattern = f.runtime(f"match{bits}", "ptr", C, cache, b.pointer(slot), lanes)
        base = f.load(f"i{bits}", pattern, PATTERN.base)
        found = b.patterns[root, key, negated, chosen] = pattern, base
    return found


def guard_key(b: BlockWriter, action: Action) -> Location | None:
    """The predicate that guards an instruction, or None."""
    return None if action.guard is None else b.location(action.guard.register)


def located(b: BlockWriter, action: Action, lanes: Value) -> tuple[str, list[Value]]:
    """The space of an access, and the first arguments of the runtime function that performs it."""
    assert action.address is not None
    space, key = space_of(action), guard_key(b, action)
    pattern, base = address_of(b, action, action.address, is_narrow(action), lanes, key)
    site = b.f.offset(C, b.context.areas.site(action.number))
    here = [C, W] if space in ("local", "generic") else [C]
    return space, [*here, site, pattern, base]
