"""Tracks what each warp may race with if barriers synchronize only a part of a block's warps.

For every pair of warps there is the set of granules that one has read and written and that the
other is not ordered after. A warp that arrives at a barrier contributes what it is ordered after
and learns what all others there contribute: vector clocks, as sets. A barrier's sets follow those
of the warps. Kernels whose barriers are all for the whole block do not need this.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import AT_BARRIER, BARRIERS, DONE, WARP, WORKER
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.shadow import own_word, shadow, tell_of_barriers
from gemmkit.emulator.codegen.shadow_layout import (
    ARRIVES,
    OWN,
    OWN_BITMAPS,
    OWN_WORD_BYTES,
    SHADOW,
    TAG_WARP,
)

NULL = Value("ptr", "null")
_WORD, _BITS, _PLACE = Value("i64", "%word"), Value("i64", "%bits"), Value("i64", "%place")
_NUMBER, _EVERYONE = Value("i32", "%number"), Value("i32", "%everyone")
ALL_ONES = -1


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_publish(module)
    _define_foreign(module)
    _define_fresh(module)
    _define_arriving(module)
    _define_opening(module)


def _warps(f: Function) -> Value:
    return f.load("i64", C, WORKER["warp_count"])


def _running(f: Function, s: Value) -> Value:
    return f.lshr(f.load("i64", s, SHADOW["own_tag"]), TAG_WARP)


def _actor_bytes(f: Function, s: Value) -> Value:
    return f.binary("mul", f.load("i64", s, SHADOW["words"]), OWN_WORD_BYTES)


def _sets(f: Function, s: Value, observer: Value, actor: Value | int = 0) -> Value:
    """The accesses of the actor that the observer (a warp, or a barrier) is not ordered after."""
    index = f.add(f.binary("mul", observer, _warps(f)), actor)
    return f.offset(f.load("ptr", s, SHADOW["pairs"]), f.binary("mul", index, _actor_bytes(f, s)))


def _barrier(f: Function, s: Value) -> Value:
    return _sets(f, s, _barrier_number(f))


def _barrier_number(f: Function) -> Value:
    """A barrier's number among the observers, after the warps."""
    return f.add(_warps(f), f.resize(f.and_(_NUMBER, BARRIERS - 1), 64))


def clock(f: Function, s: Value, observer: Value, actor: Value) -> Value:
    """Where the time is kept up to which an observer is ordered after the actor, a warp."""
    index = f.add(f.binary("mul", observer, _warps(f)), actor)
    return f.offset(f.load("ptr", s, SHADOW["clocks"]), f.shl(index, 3))


def _catch_up(f: Function, s: Value, one: Value, other: Value) -> None:
    """An observer learns everything that another one is ordered after."""
    with f.loop(_warps(f)) as actor:
        at, there = (clock(f, s, each, actor) for each in (one, other))
        latest = f.intrinsic("umax", f.load("i64", at), f.load("i64", there))
        f.store(latest, at)


def _row_words(f: Function, s: Value) -> Value:
    """Words of all sets of one observer."""
    return f.lshr(f.binary("mul", _actor_bytes(f, s), _warps(f)), 3)


def _define_publish(module: Module) -> None:
    """publish(worker, word, bits, place): the running warp read or wrote; no warp is ordered after
    it."""
    with module.function("gemmkit.publish", "void", (C, _WORD, _BITS, _PLACE)) as f:
        s = shadow(f)
        me = _running(f, s)
        at = f.add(f.binary("mul", _WORD, OWN_WORD_BYTES), _PLACE)
        with f.loop(f.add(_warps(f), BARRIERS)) as observer:
            other = f.resize(f.compare("ne", observer, me), 64, signed=True)
            cell = f.offset(_sets(f, s, observer, me), at)
            f.store(f.or_(f.load("i64", cell), f.and_(_BITS, other)), cell)
        f.ret()


def _define_foreign(module: Module) -> None:
    """foreign(worker, word, place): what others have read or written, in a word, that the running
    warp may race with."""
    with module.function("gemmkit.foreign", "i64", (C, _WORD, _PLACE)) as f:
        s = shadow(f)
        own, found = f.load("ptr", s, SHADOW["own"]), f.variable(literal("i64", 0))
        pairs = f.load("ptr", s, SHADOW["pairs"])
        with f.when(f.compare("ne", pairs, NULL)):
            me = _running(f, s)
            at = f.add(f.binary("mul", _WORD, OWN_WORD_BYTES), _PLACE)
            with f.loop(_warps(f)) as actor:
                bits = f.load("i64", f.offset(_sets(f, s, me, actor), at))
                f.set(found, f.or_(f.get("i64", found), bits))
            f.ret(f.get("i64", found))
        step, start = f.load("i64", s, SHADOW["warp_bytes"]), f.load("ptr", s, SHADOW["warps"])
        with f.loop(_warps(f)) as warp:
            its = f.offset(start, f.binary("mul", warp, step))
            bits = f.load("i64", f.offset(own_word(f, its, _WORD), _PLACE))
            other = f.resize(f.compare("ne", its, own), 64, signed=True)
            f.set(found, f.or_(f.get("i64", found), f.and_(bits, other)))
        f.ret(f.get("i64", found))


def _define_fresh(module: Module) -> None:
    """fresh_pairs(worker): a block begins; no warp has arrived at a barrier."""
    with module.function("gemmkit.fresh_pairs", "void", (C,)) as f:
        s = shadow(f)
        whole = f.binary("mul", _actor_bytes(f, s), _warps(f))
        f.clear(f.load("ptr", s, SHADOW["pairs"]), f.binary("mul", whole, _warps(f)))
        observers = f.add(_warps(f), BARRIERS)
        clocks = f.shl(f.binary("mul", observers, _warps(f)), 3)
        f.clear(f.load("ptr", s, SHADOW["clocks"]), clocks)
        with f.loop(f.binary("mul", f.lshr(whole, 3), BARRIERS)) as cell:
            pointer = f.offset(_sets(f, s, _warps(f)), f.shl(cell, 3))
            f.store(literal("i64", ALL_ONES), pointer)
        f.ret()


def _define_arriving(module: Module) -> None:
    """arriving(worker, barrier): the running warp contributes what it is ordered after."""
    with module.function("gemmkit.arriving", "void", (C, _NUMBER)) as f:
        s = shadow(f)
        tell_of_barriers(f, s, ARRIVES, f.resize(_NUMBER, 64))
        with f.when(f.compare("eq", f.load("ptr", s, SHADOW["pairs"]), NULL)):
            f.ret()
        _learn(f, s, _barrier(f, s), _sets(f, s, _running(f, s)))
        f.increase(s, SHADOW["time"], 1)
        me = _running(f, s)
        f.store(f.load("i64", s, SHADOW["time"]), clock(f, s, me, me))
        _catch_up(f, s, _barrier_number(f), me)
        f.ret()


def _learn(f: Function, s: Value, one: Value, other: Value) -> None:
    """An observer keeps in its sets only what neither of the two is ordered after."""
    with f.loop(_row_words(f, s)) as cell:
        at = f.shl(cell, 3)
        both = f.and_(f.load("i64", f.offset(one, at)), f.load("i64", f.offset(other, at)))
        f.store(both, f.offset(one, at))


def _define_opening(module: Module) -> None:
    """opening_pairs(worker, barrier, everyone): the waiting warps learn what all of them
    contributed."""
    with module.function("gemmkit.opening_pairs", "void", (C, _NUMBER, _EVERYONE)) as f:
        s = shadow(f)
        barrier, step = _barrier(f, s), f.load("i64", s, SHADOW["warp_bytes"])
        size = f.sub(step, OWN_BITMAPS)
        memory, each_bytes = (
            f.load("ptr", C, WORKER["warps"]),
            f.load("i64", C, WORKER["warp_bytes"]),
        )
        now = f.load("i64", s, SHADOW["log_count"])
        with f.loop(_warps(f)) as warp:
            header = f.offset(memory, f.binary("mul", warp, each_bytes))
            done = f.compare("eq", f.load("i32", header, WARP["status"]), DONE)
            with f.when(f.and_(done, f.compare("ne", _EVERYONE, 0))):
                actor = f.binary("mul", warp, _actor_bytes(f, s))
                f.clear(f.offset(barrier, actor), _actor_bytes(f, s))
                ended = clock(f, s, _barrier_number(f), warp)
                f.store(f.load("i64", s, SHADOW["time"]), ended)
        with f.loop(_warps(f)) as warp:
            header = f.offset(memory, f.binary("mul", warp, each_bytes))
            waits = f.compare("eq", f.load("i32", header, WARP["status"]), AT_BARRIER)
            here = f.compare("eq", f.load("i32", header, WARP["barrier"]), _NUMBER)
            with f.when(f.and_(waits, here)):
                _learn(f, s, _sets(f, s, warp), barrier)
                _catch_up(f, s, warp, _barrier_number(f))
                own = f.offset(f.load("ptr", s, SHADOW["warps"]), f.binary("mul", warp, step))
                f.clear(f.offset(own, OWN_BITMAPS), size)
                f.store(now, own, OWN["in_step"])
                f.store(f.load("i64", s, SHADOW["time"]), own, OWN["step_time"])
                f.increase(own, OWN["steps"], 1)
        with f.loop(_row_words(f, s)) as cell:
            f.store(literal("i64", ALL_ONES), f.offset(barrier, f.shl(cell, 3)))
        with f.loop(_warps(f)) as warp:
            f.store(literal("i64", 0), clock(f, s, _barrier_number(f), warp))
        f.ret()
