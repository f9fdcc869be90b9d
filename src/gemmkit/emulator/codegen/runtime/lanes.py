"""Lanes of one warp: where they continue, and what they read from each other."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, STACK, STACK_ENTRY, WARP
from gemmkit.emulator.codegen.runtime.patterns import element

W = Value("ptr", "%w")


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_diverge(module)
    _define_next_path(module)
    for mode in ("up", "down", "bfly", "idx"):
        _define_shuffle(module, mode)


def _field(f: Function, name: str) -> Value:
    return f.load("i32", W, WARP[name])


def _push(f: Function, block: Value, reconvergence: Value, lanes: Value) -> None:
    depth = _field(f, "depth")
    entry = f.offset(W, f.add(f.resize(f.binary("mul", depth, STACK_ENTRY), 64), STACK))
    for index, a in enumerate((block, reconvergence, lanes)):
        f.store(a, entry, 4 * index)
    f.store(f.add(depth, 1), W, WARP["depth"])


def _define_diverge(module: Module) -> None:
    """diverge(warp, taken, fall, reconvergence): some lanes continue, the others wait.

    If all lanes already wait for each other at that point, no further entry is pushed.
    """
    taken, fall, reconvergence = (
        Value("i32", f"%{name}") for name in ("taken", "fall", "reconvergence")
    )
    with module.function("gemmkit.diverge", "void", (W, taken, fall, reconvergence)) as f:
        mask, outer = _field(f, "mask"), _field(f, "reconvergence")
        with f.when(f.compare("ne", reconvergence, outer)):
            _push(f, reconvergence, outer, mask)
        with f.when(f.compare("ne", fall, reconvergence)):
            _push(f, fall, reconvergence, f.and_(mask, f.not_(taken)))
        f.store(taken, W, WARP["mask"])
        f.store(reconvergence, W, WARP["reconvergence"])
        f.ret()


def _define_next_path(module: Module) -> None:
    """next_path(warp) -> the block where the next lanes on the stack continue, or -1."""
    with module.function("gemmkit.next_path", "i32", (W,)) as f:
        remaining = f.not_(_field(f, "exited"))
        head, body, done = f.name("head"), f.name("body"), f.name("done")
        f.branch(head)
        f.label(head)
        depth = _field(f, "depth")
        f.branch_if(f.compare("eq", depth, 0), done, body)
        f.label(body)
        below = f.sub(depth, 1)
        f.store(below, W, WARP["depth"])
        entry = f.offset(W, f.add(f.resize(f.binary("mul", below, STACK_ENTRY), 64), STACK))
        lanes = f.and_(f.load("i32", entry, 8), remaining)
        with f.when(f.compare("ne", lanes, 0)):
            f.store(lanes, W, WARP["mask"])
            f.store(f.load("i32", entry, 4), W, WARP["reconvergence"])
            f.ret(f.load("i32", entry))
        f.branch(head)
        f.label(done)
        f.ret(literal("i32", -1))


def _define_shuffle(module: Module, mode: str) -> None:
    """shuffle_<mode>(result, values, b, c) -> lanes that read within their segment."""
    result, values, b, c = (Value("ptr", f"%{name}") for name in ("result", "values", "b", "c"))
    with module.function(f"gemmkit.shuffle_{mode}", "i32", (result, values, b, c)) as f:
        found = f.variable(literal("i32", 0))
        with f.loop(LANES) as lane:
            own = f.resize(lane, 32)
            other, inside = source_lane(f, mode, lane, b, c)
            chosen = f.resize(f.select(inside, other, own), 64)
            value = element(f, values, chosen, 32)
            f.store(value, f.element(result, lane, 32))
            f.set(found, f.or_(f.get("i32", found), f.shl(f.resize(inside, 32), own)))
        f.ret(f.get("i32", found))


def source_lane(f: Function, mode: str, lane: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """The lane that a lane of a shuffle reads, and whether it is in its segment; `b` and `c` are
    the vectors of those operands."""
    own = f.resize(lane, 32)
    limits = element(f, c, lane, 32)
    segment, clamp = f.and_(f.lshr(limits, 8), 31), f.and_(limits, 31)
    offset = f.and_(element(f, b, lane, 32), 31)
    outside = f.not_(segment)
    first = f.and_(own, segment)
    bound = f.or_(first, f.and_(clamp, outside))
    if mode == "idx":
        other = f.or_(first, f.and_(offset, outside))
    else:
        step = {"up": "sub", "down": "add", "bfly": "xor"}[mode]
        other = f.binary(step, own, offset)
    return other, f.compare("sge" if mode == "up" else "sle", other, bound)
