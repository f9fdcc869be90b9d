"""Races within a warp, for the sanitizers: lanes that access one address and are not in step."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.patterns import BASE, element, lanes_of, lanes_where, strip_of
from gemmkit.emulator.codegen.runtime.shadow import BYTES, KIND, log_entry, report, shadow
from gemmkit.emulator.codegen.shadow_layout import (
    COPIED,
    COPY_THREAD,
    IN_STEP,
    LANES_RACE,
    LOADED,
    LOG_ENTRIES,
    LOG_ENTRY,
    LOOK_BACK,
    MULTIPLIED,
    OWN,
    SAME_STORE,
    SHADOW,
    TAG_BYTES,
    TAG_KIND,
    TAG_WARP,
    UPDATED,
)

# How much of the log is searched for lanes that were in step.
_FURTHEST = 1 << 10


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_look_back(module)
    _define_overlap(module)
    _define_collide(module)
    _define_met_since(module)
    _define_copied_by_others(module)


def _handed_over(f: Function, own: Value) -> Value:
    """Where the log ended when the lanes of the running warp were last in step, or might have
    handed over to each other by flags."""
    step, fenced = (f.load("i64", own, OWN[each]) for each in ("in_step", "fenced"))
    return f.intrinsic("umax", step, fenced)


def _define_look_back(module: Module) -> None:
    """look_back(worker, site, pattern, base, bytes, kind): whether a lane accesses what another
    lane of its warp accessed since they were last in step; reports the latest such access."""
    parameters = (C, SITE_POINTER, P, BASE, BYTES, KIND)
    with module.function("gemmkit.look_back", "void", parameters, inline=False) as f:
        s = shadow(f)
        own, now = f.load("ptr", s, SHADOW["own"]), f.load("i64", s, SHADOW["log_count"])
        oldest = f.intrinsic("umax", _handed_over(f, own), f.load("i64", s, SHADOW["log_epoch"]))
        back = f.intrinsic("umin", f.sub(now, oldest), literal("i64", LOG_ENTRIES))
        looked = f.variable(literal("i64", 0))
        # For each lane, the lanes whose accesses before the current entry come before its own.
        known = f.variable(literal("<32 x i32>", 0))
        parts = f.compare("ugt", f.load("i64", own, OWN["in_part"]), oldest)
        with f.when(parts), f.loop(LANES) as lane:
            itself = f.shl(literal("i32", 1), f.resize(lane, 32))
            f.store(itself, known, f.shl(lane, 2))
        with f.loop(back) as further:
            at = f.sub(f.sub(now, 1), further)
            entry = log_entry(f, s, at)
            tag, p = f.load("i64", entry, LOG_ENTRY["tag"]), f.load("ptr", entry)
            warp = f.and_(f.lshr(tag, TAG_WARP), 255)
            mine = f.and_(f.lshr(f.load("i64", s, SHADOW["own_tag"]), TAG_WARP), 255)
            kind = f.lshr(tag, TAG_KIND)
            # Entries about wgmma do not count.
            counts = f.resize(f.compare("ult", kind, MULTIPLIED), 64)
            f.set(looked, f.add(f.get("i64", looked), counts))
            with f.when(f.compare("ugt", f.get("i64", looked), LOOK_BACK)):
                f.ret()
            step = f.and_(f.compare("eq", kind, IN_STEP), f.compare("eq", warp, mine))
            with f.when(f.and_(step, parts)):
                members = f.resize(f.load("i64", entry, LOG_ENTRY["base"]), 32)
                f.call("gemmkit.learn", "void", known, members)
            both = f.compare("eq", f.add(kind, KIND), 2 * LOADED)
            atomics = f.compare("eq", f.add(kind, KIND), 2 * UPDATED)
            worth = f.and_(f.compare("eq", warp, mine), f.not_(f.or_(both, atomics)))
            serial = f.load("i64", entry, LOG_ENTRY["serial"])
            real = f.and_(worth, f.compare("ne", serial, 0))
            # An entry that is not an access has no pattern.
            with f.when(real), f.when(f.compare("eq", f.load("i64", p, PATTERN.serial), serial)):
                base = f.load("i64", entry, LOG_ENTRY["base"])
                size = f.and_(f.lshr(tag, TAG_BYTES), 255)
                lanes = f.call("gemmkit.overlap", "i64", P, BASE, BYTES, p, base, size, known)
                with f.when(f.compare("sge", lanes, 0)):
                    report(f, LANES_RACE, extra=f.or_(lanes, f.shl(at, 16)))
                    f.ret()
        f.ret()
        f.ret()


def _define_overlap(module: Module) -> None:
    """overlap(pattern, base, bytes, pattern, base, bytes, known) -> two lanes that access the same
    byte, the first in the low 8 bits, or -1; the lanes in `known` do not count."""
    q, other, size = Value("ptr", "%q"), Value("i64", "%other"), Value("i64", "%size")
    known = Value("ptr", "%known")
    with module.function("gemmkit.learn", "void", (known, Value("i32", "%members"))) as f:
        members = Value("i32", "%members")
        with f.loop(LANES) as lane:
            before = f.load("i32", known, f.shl(lane, 2))
            joins = f.compare("ne", f.and_(before, members), 0)
            f.store(f.select(joins, f.or_(before, members), before), known, f.shl(lane, 2))
        f.ret()
    with module.function("gemmkit.overlap", "i64", (P, BASE, BYTES, q, other, size, known)) as f:
        lanes = f.load("i32", q, PATTERN.mask)
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            start = f.add(BASE, element(f, P, lane, 64))
            end = f.add(start, BYTES)

            def overlaps(strip: int, start: Value = start, end: Value = end) -> Value:
                begins = f.add(strip_of(f, q, strip, 64), f.splat(other))
                ends = f.add(begins, f.splat(size))
                both = f.and_(
                    f.compare("slt", begins, f.splat(end)), f.compare("sgt", ends, f.splat(start))
                )
                return f.and_(both, lanes_of(f, lanes, strip))

            met = lanes_where(f, overlaps)
            met = f.and_(met, f.not_(f.shl(literal("i32", 1), f.resize(lane, 32))))
            met = f.and_(met, f.not_(f.load("i32", known, f.shl(lane, 2))))
            with f.when(f.compare("ne", met, 0)):
                acting = f.resize(f.lowest_bit(met), 64)
                f.ret(f.or_(lane, f.shl(acting, 8)))
        f.ret(literal("i64", -1))


def _define_collide(module: Module) -> None:
    """collide(worker, site, pattern, base, register, bits): whether lanes store different values at
    one address; reports the first two."""
    data, bits = Value("ptr", "%data"), Value("i64", "%bits")
    parameters = (C, SITE_POINTER, P, BASE, data, bits)
    with module.function("gemmkit.collide", "void", parameters, inline=False) as f:
        lanes = f.load("i32", P, PATTERN.mask)
        with f.each_bit(lanes) as lane:
            above = f.and_(lanes, f.shl(literal("i32", -2), f.resize(lane, 32)))
            with f.each_bit(above) as other:
                mine, its = (element(f, P, each, 64) for each in (lane, other))
                with f.when(f.compare("eq", mine, its)):
                    values = [_stored(f, data, each, bits) for each in (lane, other)]
                    with f.when(f.compare("ne", *values)):
                        both = f.or_(lane, f.shl(other, 8))
                        report(f, LANES_RACE, extra=f.or_(both, SAME_STORE))
                        f.ret()
        f.ret()


def _stored(f: Function, data: Value, lane: Value, bits: Value) -> Value:
    """The value that a lane stores from a register, which is 64 bits wide or else 32."""
    wide = f.compare("eq", bits, 64)
    scale = f.select(wide, literal("i64", 3), 2)
    at = f.offset(data, f.shl(lane, scale))
    low = f.resize(f.load("i32", at), 64)
    high = f.variable(literal("i64", 0))
    with f.when(wide):
        f.set(high, f.shl(f.resize(f.load("i32", at, 4), 64), 32))
    unused = f.sub(literal("i64", 64), bits)
    return f.shl(f.or_(low, f.get("i64", high)), unused)


def _define_copied_by_others(module: Module) -> None:
    """copied_by_others(worker, site, pattern, base, bytes): whether a lane accesses what the
    cp.async of another lane of its warp wrote, for which that has waited since they were last in
    step; reports the first."""
    parameters = (C, SITE_POINTER, P, BASE, BYTES)
    with module.function("gemmkit.copied_by_others", "void", parameters, inline=False) as f:
        s = shadow(f)
        shift, copies = (
            f.load("i64", s, SHADOW["granule_shift"]),
            f.load("ptr", s, SHADOW["copies"]),
        )
        warp = f.and_(f.lshr(f.load("i64", s, SHADOW["own_tag"]), TAG_WARP), 255)
        own, landings = f.load("ptr", s, SHADOW["own"]), f.load("ptr", s, SHADOW["landed_at"])
        step, part = _handed_over(f, own), f.load("i64", own, OWN["in_part"])
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            first = f.lshr(f.add(BASE, element(f, P, lane, 64)), shift)
            with f.loop(f.lshr(BYTES, shift)) as further:
                at = f.shl(f.add(first, further), 3)
                note, landed = f.load("i64", copies, at), f.load("i64", landings, at)
                lately = f.compare("ugt", landed, step)
                thread = f.and_(f.lshr(note, COPY_THREAD), (1 << COPY_THREAD) - 1)
                here = f.compare("eq", f.lshr(thread, 5), warp)
                other = f.compare("ne", f.and_(thread, 31), lane)
                with f.when(f.and_(f.and_(lately, here), other)):
                    its = f.and_(thread, 31)
                    apart = f.variable(literal("i1", 1))
                    with f.when(f.compare("ugt", part, landed)):
                        met = f.call("gemmkit.met_since", "i1", C, lane, its, landed)
                        f.set(apart, f.not_(met))
                    with f.when(f.get("i1", apart)):
                        both = f.or_(lane, f.shl(its, 8))
                        report(f, LANES_RACE, extra=f.or_(both, COPIED))
                        f.ret()
        f.ret()


def _define_met_since(module: Module) -> None:
    """met_since(worker, lane, other lane, position in the log) -> whether what the other lane of
    the running warp did before that comes before what the lane does now; also if the log is too
    long to tell."""
    lane, other, since = (Value("i64", f"%{name}") for name in ("lane", "other", "since"))
    with module.function("gemmkit.met_since", "i1", (C, lane, other, since), inline=False) as f:
        s = shadow(f)
        now = f.load("i64", s, SHADOW["log_count"])
        with f.when(f.compare("ugt", f.sub(now, since), _FURTHEST)):
            f.ret(literal("i1", 1))
        mine = f.lshr(f.load("i64", s, SHADOW["own_tag"]), TAG_WARP)
        known = f.variable(f.shl(literal("i32", 1), f.resize(lane, 32)))
        with f.loop(f.sub(now, since)) as further:
            entry = log_entry(f, s, f.sub(f.sub(now, 1), further))
            tag = f.load("i64", entry, LOG_ENTRY["tag"])
            step = f.compare("eq", f.lshr(tag, TAG_KIND), IN_STEP)
            own = f.compare("eq", f.and_(f.lshr(tag, TAG_WARP), 255), mine)
            members = f.resize(f.load("i64", entry, LOG_ENTRY["base"]), 32)
            joins = f.compare("ne", f.and_(f.get("i32", known), members), 0)
            with f.when(f.and_(f.and_(step, own), joins)):
                f.set(known, f.or_(f.get("i32", known), members))
        f.ret(f.compare("ne", f.and_(f.lshr(f.get("i32", known), f.resize(other, 32)), 1), 0))
