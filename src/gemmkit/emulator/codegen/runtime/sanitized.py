"""Loads, stores and atomics of global and shared memory with the sanitizers' steps.

An access that is not allowed is reported and skipped, lane by lane; the others are performed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN, WINDOW_BYTES
from gemmkit.emulator.codegen.runtime.access import (
    host_pointer,
    load_each,
    return_if_idle,
    store_each,
)
from gemmkit.emulator.codegen.runtime.atomics import ACT, OPERAND, OTHER, RESULT
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P, allowed
from gemmkit.emulator.codegen.runtime.counts import Memo
from gemmkit.emulator.codegen.runtime.patterns import BASE, element
from gemmkit.emulator.codegen.runtime.peers import move_lane, update_lane, visit_peers
from gemmkit.emulator.codegen.runtime.shadow import event, report, shadow
from gemmkit.emulator.codegen.runtime.spaces import for_each_part
from gemmkit.emulator.codegen.shadow_layout import (
    BOUNDS,
    DATA,
    LOADED,
    REACHED_BYTES,
    REACHED_KIND,
    REACHES,
    SHADOW,
    STORED,
    UPDATED,
)

PREFIX = "sanitized_"
_NOTES = {"load": "load", "store": "store", "atomic": "update"}


class SanitizedAccess:
    """The sanitizers' hooks of `access`."""

    prefix = PREFIX

    def note(
        self, f: Function, kind: str, space: str, size: int, row: int, data: Sequence[Value]
    ) -> None:
        """Report an access of `size` bytes per lane that is allowed, or adjacent ones of `row`
        bytes in total."""
        _remember(f, kind, space, size, data)
        _note(f, kind, space, size, row)
        _compare(f, kind, space, size, data)

    def whole(self, f: Function, space: str, size: int, align: int) -> Value:
        """Whether an access is allowed in all lanes, within one region of memory."""
        return _whole(f, space, size, align)

    def define_slow(
        self, module: Module, kind: str, space: str, bits: int, data: Sequence[Value], name: str
    ) -> None:
        """An access on the slow path: its count is not known yet, or it is not allowed."""
        _define_slow(module, kind, space, bits, data, name)


def _note(
    f: Function, kind: str, space: str, size: int, row: int, p: Value = P, base: Value = BASE
) -> None:
    each, whole = literal("i64", size), literal("i64", row)
    here = (C, SITE_POINTER, p, base)
    if space == "global":
        f.call(f"gemmkit.note_{_NOTES[kind]}_global", "void", *here, whole)
    elif kind == "load":
        f.call("gemmkit.read", "void", *here, each, whole)
    else:
        how = literal("i64", UPDATED if kind == "atomic" else STORED)
        f.call("gemmkit.write", "void", *here, each, whole, how)


def _remember(f: Function, kind: str, space: str, size: int, data: Sequence[Value]) -> None:
    """Record the registers that a store to global memory is about to write, for `same_value`."""
    if kind != "store" or space != "global":
        return
    s = shadow(f)
    for name, register in zip(DATA, data, strict=False):
        f.store(register, s, SHADOW[name])
    f.store(literal("i64", 8 * size // len(data)), s, SHADOW["data_bits"])


def _compare(f: Function, kind: str, space: str, size: int, data: Sequence[Value]) -> None:
    """Compare the values that lanes store at one address."""
    if kind != "store" or space != "shared":
        return
    bits = literal("i64", 8 * size // len(data))
    with f.when(f.compare("ne", f.load("i64", P, PATTERN.overlaps), 0)):
        for register in data:
            f.call("gemmkit.collide", "void", C, SITE_POINTER, P, BASE, register, bits)


def define_atomics(module: Module) -> None:
    """atomic_<space>_<bits>, as `atomics` has them."""
    for bits in (32, 64):
        for space in ("global", "shared"):
            _define_atomic(module, space, bits)
        rest = (ACT, RESULT, OPERAND, OTHER)
        parameters = (C, SITE_POINTER, P, BASE, *rest)
        name = f"gemmkit.{PREFIX}atomic_generic_{bits}"
        with module.function(name, "void", parameters) as f:
            return_if_idle(f)
            for_each_part(f, f"atomic_{{}}_{bits}", rest, ("shared", "global"), PREFIX)
            f.ret()


def _define_atomic(module: Module, space: str, bits: int) -> None:
    parameters = (C, SITE_POINTER, P, BASE, ACT, RESULT, OPERAND, OTHER)
    name = f"gemmkit.{PREFIX}atomic_{space}_{bits}"
    with module.function(name, "void", parameters) as f:
        return_if_idle(f)
        if space == "shared":
            rest = (RESULT, OPERAND, OTHER)

            def again(p: Value, base: Value) -> None:
                f.call(name, "void", C, SITE_POINTER, p, base, ACT, *rest)

            def whole(at: Value) -> None:
                f.call_pointer(ACT, "void", P, at, *rest)

            size = bits // 8
            before = _reaching(f, "atomic", size)
            visit_peers(f, size, whole, update_lane(f, ACT, rest), again, before)

        def act(p: Value, base: Value) -> None:
            at = host_pointer(f, space, base)
            f.call_pointer(ACT, "void", p, at, RESULT, OPERAND, OTHER)

        clear = (RESULT,)
        _make(f, "atomic", space, bits // 8, act, lambda lane: _clear(f, clear, lane, bits))
        f.ret()


def _define_slow(
    module: Module, kind: str, space: str, bits: int, data: Sequence[Value], name: str
) -> None:
    parts = f"gemmkit.{PREFIX}{kind}_part_{space}_{bits}x{len(data)}"
    with module.function(parts, "void", (P, Value("ptr", "%at"), *data), inline=False) as f:
        move = load_each if kind == "load" else store_each
        move(f, Value("ptr", "%at"), data, bits)
        f.ret()
    with module.function(name, "void", (C, SITE_POINTER, P, BASE, *data), inline=False) as f:
        return_if_idle(f)
        if space == "shared":

            def again(p: Value, base: Value) -> None:
                f.call(name, "void", C, SITE_POINTER, p, base, *data)

            def whole(at: Value) -> None:
                f.call(parts, "void", P, at, *data)

            size = bits // 8 * len(data)
            one, before = move_lane(f, kind, data, bits), _reaching(f, kind, size)
            visit_peers(f, size, whole, one, again, before)

        def act(p: Value, base: Value) -> None:
            f.call(parts, "void", p, host_pointer(f, space, base), *data)

        loaded = data if kind == "load" else ()
        size = bits // 8 * len(data)
        width = max(bits, 32)
        _make(f, kind, space, size, act, lambda lane: _clear(f, loaded, lane, width), data)
        f.ret()


def _reaching(f: Function, kind: str, size: int) -> Callable[[Value], None]:
    """Report that lanes are about to access other blocks' shared memory."""
    how = {"load": LOADED, "store": STORED, "atomic": UPDATED}[kind]

    def tell(lanes: Value) -> None:
        rest = size << REACHED_BYTES | how << REACHED_KIND
        more = f.or_(f.resize(lanes, 64), rest)
        event(f, REACHES, BASE, more, site=SITE_POINTER, p=P)

    return tell


def _make(
    f: Function,
    kind: str,
    space: str,
    size: int,
    act: Callable[[Value, Value], None],
    refuse: Callable[[Value], None],
    data: Sequence[Value] = (),
) -> None:
    """Count an access, then perform it: as a whole if allowed, else lane by lane."""
    memo = Memo(f, space, size, store=kind != "load")
    memo.find()
    memo.add()
    memo.add_tags()
    with f.when(_whole(f, space, size)):
        _remember(f, kind, space, size, data)
        _note(f, kind, space, size, size)
        _compare(f, kind, space, size, data)
        act(P, BASE)
        f.ret()
    _remember(f, kind, space, size, data)
    part = f.variable(literal(f"<{PATTERN.size} x i8>", 0))
    addresses = f.variable(literal(f"<{LANES} x i64>", 0))
    with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
        address = f.add(BASE, element(f, P, lane, 64))
        if space == "shared":
            # The first lane's address may precede it, since 32 bits wrap around.
            address = f.and_(address, WINDOW_BYTES - 1)
        fits = f.call(
            f"gemmkit.admit_{space}", "i1", C, SITE_POINTER, address, literal("i64", size)
        )
        with f.when(fits):
            f.store(address, f.element(addresses, lane, 64))
            own = f.shl(literal("i32", 1), f.resize(lane, 32))
            f.call("gemmkit.pattern64", "void", part, addresses, own)
            _note(f, kind, space, size, size, part, address)
            act(part, address)
        with f.when(f.not_(fits)):
            report(f, BOUNDS, extra=lane)
            refuse(lane)


def _whole(f: Function, space: str, size: int, align: int = 0) -> Value:
    align = align or size
    good = allowed(f, space, size, align=align, by_array=True)
    if space != "global":
        return good
    found = f.variable(good)
    with f.when(f.not_(good)):
        start = f.add(BASE, f.load("i64", P, PATTERN.least))
        whole = f.add(f.load("i64", P, PATTERN.extent), size)
        aligned = f.and_(f.or_(BASE, f.load("i64", P, PATTERN.bits)), align - 1)
        with f.when(f.compare("eq", aligned, 0)):
            f.call("gemmkit.settle", "void", C, SITE_POINTER, start, whole)
            f.set(found, allowed(f, space, size, align=align))
    return f.get("i1", found)


def _clear(f: Function, registers: Sequence[Value], lane: Value, bits: int) -> None:
    """Set the result of a lane's load to zero."""
    for register in registers:
        with f.when(f.compare("ne", register, Value("ptr", "null"))):
            pointer = f.element(register, lane, bits)
            f.store(literal(f"i{bits}", 0), pointer)
