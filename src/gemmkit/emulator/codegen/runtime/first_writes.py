"""Records the first write to each granule of shared memory in a block, in kernels with flags there.

A flag that one thread initializes, and another one polls with no barrier between, may be found as
it was before. Accesses to flags do not race with each other, so that nothing else tells.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.patterns import BASE, element
from gemmkit.emulator.codegen.runtime.shadow import (
    NULL,
    ROW_BYTES,
    common_word,
    event,
    shadow,
    site_shadow,
)
from gemmkit.emulator.codegen.runtime.warp_pairs import clock
from gemmkit.emulator.codegen.shadow_layout import (
    COMMON,
    FIRST_SITE,
    FIRST_THREAD,
    FIRST_WRITE,
    SHADOW,
    SHADOW_SITE,
    TAG_WARP,
)

_ACCESS = (C, SITE_POINTER, P, BASE, ROW_BYTES)


def define(module: Module) -> None:
    """first_writes(worker, site, pattern, base, bytes): a store; those granules that nothing has
    written yet note it. find_first(…): a strong access reads; tell Python of the first write if no
    barrier comes after it. Where vector clocks order accesses, Python looks by itself."""
    with module.function("gemmkit.first_writes", "void", _ACCESS, inline=False) as f:
        s, warp = shadow(f), _warp(f)
        now = f.load("i64", s, SHADOW["time"])
        record = f.shl(f.sub(f.integer(SITE_POINTER), f.integer(C)), FIRST_SITE)
        times, writers = _tables(f, s)
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            first, count = _granules(f, s, lane)
            thread = f.add(f.binary("mul", warp, LANES), lane)
            with f.loop(count) as further:
                granule = f.add(first, further)
                ready = f.load("i64", common_word(f, s, f.lshr(granule, 6)), COMMON["initialized"])
                with f.when(f.compare("eq", f.and_(f.lshr(ready, f.and_(granule, 63)), 1), 0)):
                    at = f.shl(granule, 3)
                    f.store(now, f.offset(times, at))
                    f.store(f.or_(record, thread), f.offset(writers, at))
        f.ret()
    with module.function("gemmkit.find_first", "void", _ACCESS, inline=False) as f:
        s = shadow(f)
        strong = f.load("i64", site_shadow(f, s), SHADOW_SITE["strong_in_block"])
        with f.when(f.compare("eq", strong, 0)):
            f.ret()
        with f.when(f.compare("ne", f.load("i64", s, SHADOW["asynchronous"]), 0)):
            f.ret()
        warp, (times, writers) = _warp(f), _tables(f, s)
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            granule, _ = _granules(f, s, lane)
            at = f.shl(granule, 3)
            other = f.lshr(f.and_(f.load("i64", f.offset(writers, at)), (1 << FIRST_SITE) - 1), 5)
            ordered = f.variable(f.load("i64", s, SHADOW["barrier_time"]))
            with f.when(f.compare("ne", f.load("ptr", s, SHADOW["clocks"]), NULL)):
                f.set(ordered, f.load("i64", clock(f, s, warp, other)))
            late = f.compare("uge", f.load("i64", f.offset(times, at)), f.get("i64", ordered))
            with f.when(f.and_(late, f.compare("ne", other, warp))):
                thread = f.add(f.binary("mul", warp, LANES), lane)
                more = f.or_(granule, f.shl(thread, FIRST_THREAD))
                event(f, FIRST_WRITE, BASE, more, site=SITE_POINTER, p=P)
                # It is told once.
                f.store(literal("i64", 0), f.offset(times, at))
        f.ret()


def _warp(f: Function) -> Value:
    return f.and_(f.lshr(f.load("i64", shadow(f), SHADOW["own_tag"]), TAG_WARP), 255)


def _tables(f: Function, s: Value) -> tuple[Value, Value]:
    times, writers = (f.load("ptr", s, SHADOW[each]) for each in ("first_times", "first_writers"))
    return times, writers


def _granules(f: Function, s: Value, lane: Value) -> tuple[Value, Value]:
    """The first granule that a lane accesses, and how many."""
    shift = f.load("i64", s, SHADOW["granule_shift"])
    return f.lshr(f.add(BASE, element(f, P, lane, 64)), shift), f.lshr(ROW_BYTES, shift)
