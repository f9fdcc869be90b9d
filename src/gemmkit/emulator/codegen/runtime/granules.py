"""Compares what the asynchronous proxy reads and writes with earlier accesses to the same granules.

This is what `sanitizer.granules` does, as far as nothing is wrong.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.comparison import T, field, pointer
from gemmkit.emulator.codegen.runtime.shadow import shadow
from gemmkit.emulator.codegen.shadow_layout import COMMON, COMMON_BYTES, SHADOW

READ, READ_STRIPS, WRITE = (
    f"gemmkit.{name}_granules" for name in ("read", "read_strips_of", "write")
)
# Granules that follow each other and are compared at once.
STRIP = 8


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_read(module)
    _define_read_strips(module)
    _define_read_late(module)
    _define_write(module)


def _define_read(module: Module) -> None:
    """read_granules(worker, table, granules, count, warp, actor, time, who) -> whether it is clean:
    a warp's wgmma, which is an actor of its own, reads these granules through the asynchronous
    proxy, and all of them were written before, in order and visibly."""
    granules = Value("ptr", "%granules")
    count, warp, actor, time, who = (
        Value("i64", f"%{name}") for name in ("count", "warp", "actor", "time", "who")
    )
    parameters = (C, T, granules, count, warp, actor, time, who)
    with module.function(READ, "i32", parameters) as f:
        common = f.load("ptr", shadow(f), SHADOW["common"])
        row = field(f, "clock_bytes")
        ordered = f.offset(pointer(f, "clocks"), f.binary("mul", warp, row))
        # The rows of a clock: what is ordered, then what is visible too.
        visible = f.offset(ordered, field(f, "row_bytes"))
        writer, times = pointer(f, "writer"), pointer(f, "time")
        read_times, read_whos = (
            f.load("ptr", f.offset(pointer(f, name), f.shl(actor, 3)))
            for name in ("read_times", "read_whos")
        )
        warps, copies = field(f, "warps"), field(f, "copies_from")
        clean = f.variable(literal("i32", 1))
        with f.loop(count) as index:
            granule = f.load("i64", f.offset(granules, f.shl(index, 3)))
            place = f.binary("mul", f.lshr(granule, 6), COMMON_BYTES)
            word = f.load("i64", f.offset(common, place), COMMON["initialized"])
            unset = f.compare("eq", f.and_(f.lshr(word, f.and_(granule, 63)), 1), 0)
            at4, at8 = f.shl(granule, 2), f.shl(granule, 3)
            by = f.resize(f.load("i16", f.offset(writer, f.shl(granule, 1))), 64)
            written, column = f.load("i32", f.offset(times, at4)), f.shl(by, 2)
            late = f.compare("sgt", written, f.load("i32", f.offset(ordered, column)))
            late = f.and_(late, f.compare("ne", by, actor))
            unseen = f.compare("sgt", written, f.load("i32", f.offset(visible, column)))
            generic = f.or_(f.compare("ult", by, warps), f.compare("uge", by, copies))
            with f.when(f.or_(f.or_(unset, late), f.and_(unseen, generic))):
                f.set(clean, literal("i32", 0))
            f.store(f.resize(time, 32), f.offset(read_times, at4))
            f.store(who, f.offset(read_whos, at8))
        f.ret(f.get("i32", clean))


def _define_read_strips(module: Module) -> None:
    """read_strips(table, strips, count, warp, actor, time, who): the same for strips of
    granules, by their first ones, all of which were written before."""
    strips = Value("ptr", "%strips")
    count, warp, actor, time, who = (
        Value("i64", f"%{name}") for name in ("count", "warp", "actor", "time", "who")
    )
    with module.function(READ_STRIPS, "i32", (T, strips, count, warp, actor, time, who)) as f:
        ordered = f.offset(pointer(f, "clocks"), f.binary("mul", warp, field(f, "clock_bytes")))
        visible = f.offset(ordered, field(f, "row_bytes"))
        writers, times = pointer(f, "writer"), pointer(f, "time")
        read_times, read_whos = (
            f.load("ptr", f.offset(pointer(f, name), f.shl(actor, 3)))
            for name in ("read_times", "read_whos")
        )
        warps, copies = field(f, "warps"), field(f, "copies_from")
        now, party = f.splat(f.resize(time, 32)), f.splat(who)
        with f.loop(count) as index:
            first = f.load("i64", f.offset(strips, f.shl(index, 3)))
            by_all = f.load(f"<{STRIP} x i16>", f.offset(writers, f.shl(first, 1)), align=2)
            times_of_all = f.load(f"<{STRIP} x i32>", f.offset(times, f.shl(first, 2)), align=4)
            one, at = f.extract(by_all, 0), f.extract(times_of_all, 0)
            same = f.and_(f.compare("eq", by_all, f.splat(one)),
                          f.compare("eq", times_of_all, f.splat(at)))  # fmt: skip
            # Mostly one copy has written all of them.
            different = f.select(f.compare("eq", f.packed(same), -1), literal("i64", 1), STRIP)
            with f.loop(different) as each:
                granule = f.add(first, each)
                by = f.resize(f.load("i16", f.offset(writers, f.shl(granule, 1))), 64)
                written = f.load("i32", f.offset(times, f.shl(granule, 2)))
                late, unseen = (
                    f.compare("sgt", written, f.load("i32", f.offset(known, f.shl(by, 2))))
                    for known in (ordered, visible)
                )
                late = f.and_(late, f.compare("ne", by, actor))
                generic = f.or_(f.compare("ult", by, warps), f.compare("uge", by, copies))
                with f.when(f.or_(late, f.and_(unseen, generic))):
                    f.ret(literal("i32", 0))
            f.store(now, f.offset(read_times, f.shl(first, 2)), align=4)
            f.store(party, f.offset(read_whos, f.shl(first, 3)), align=8)
        f.ret(literal("i32", 1))


def _define_read_late(module: Module) -> None:
    """read_late(times, count, known) -> whether one of these times is later than it."""
    times, count, known = Value("ptr", "%times"), Value("i64", "%count"), Value("i32", "%known")
    with module.function("gemmkit.read_late", "i1", (times, count, known), inline=False) as f:
        latest = f.variable(literal(f"<{STRIP} x i32>", 0))
        strips = f.lshr(count, STRIP.bit_length() - 1)
        with f.loop(strips) as strip:
            here = f.load(f"<{STRIP} x i32>", f.offset(times, f.shl(strip, 5)), align=4)
            f.set(latest, f.intrinsic("smax", f.get(f"<{STRIP} x i32>", latest), here))
        most = f.variable(f.intrinsic("vector.reduce.smax", f.get(f"<{STRIP} x i32>", latest),
                                      result="i32"))  # fmt: skip
        done = f.shl(strips, STRIP.bit_length() - 1)
        with f.loop(f.sub(count, done)) as rest:
            here = f.load("i32", f.offset(times, f.shl(f.add(done, rest), 2)))
            f.set(most, f.intrinsic("smax", f.get("i32", most), here))
        f.ret(f.compare("sgt", f.get("i32", most), known))


def _define_write(module: Module) -> None:
    """write_granules(table, first, count, warp, actor, time, who) -> whether it is clean: for a
    warp, another actor overwrites these granules through the asynchronous proxy, and all that was
    read or written there before is in order, and visible. If not, nothing is recorded."""
    first, count, warp, actor, time, who = (
        Value("i64", f"%{name}") for name in ("first", "count", "warp", "actor", "time", "who")
    )
    with module.function(WRITE, "i32", (T, first, count, warp, actor, time, who)) as f:
        row = field(f, "clock_bytes")
        ordered = f.offset(pointer(f, "clocks"), f.binary("mul", warp, row))
        visible = f.offset(ordered, field(f, "row_bytes"))
        warps, copies = field(f, "warps"), field(f, "copies_from")
        writers = f.offset(pointer(f, "writer"), f.shl(first, 1))
        times = f.offset(pointer(f, "time"), f.shl(first, 2))
        whos = f.offset(pointer(f, "who"), f.shl(first, 3))
        with f.loop(count) as index:
            by = f.resize(f.load("i16", f.offset(writers, f.shl(index, 1))), 64)
            written, column = f.load("i32", f.offset(times, f.shl(index, 2))), f.shl(by, 2)
            late = f.compare("sgt", written, f.load("i32", f.offset(ordered, column)))
            late = f.and_(late, f.compare("ne", by, actor))
            unseen = f.compare("sgt", written, f.load("i32", f.offset(visible, column)))
            generic = f.or_(f.compare("ult", by, warps), f.compare("uge", by, copies))
            with f.when(f.or_(late, f.and_(unseen, generic))):
                f.ret(literal("i32", 0))
        readers = field(f, "readers")
        with f.loop(readers) as index:
            reader = _reader(f, index)
            known = f.load("i32", f.offset(ordered, f.shl(reader, 2)))
            late = f.call("gemmkit.read_late", "i1", _times_of(f, reader, first), count, known)
            with f.when(f.and_(f.compare("ne", reader, actor), late)):
                f.ret(literal("i32", 0))
        with f.loop(readers) as index:
            reader = _reader(f, index)
            with f.when(f.compare("ne", reader, actor)):
                f.clear(_times_of(f, reader, first), f.shl(count, 2))
        with f.loop(count) as index:
            f.store(f.resize(actor, 16), f.offset(writers, f.shl(index, 1)))
            f.store(f.resize(time, 32), f.offset(times, f.shl(index, 2)))
            f.store(who, f.offset(whos, f.shl(index, 3)))
        f.ret(literal("i32", 1))


def _reader(f: Function, index: Value) -> Value:
    return f.load("i64", f.offset(pointer(f, "reader_list"), f.shl(index, 3)))


def _times_of(f: Function, reader: Value, first: Value) -> Value:
    """The times of an actor's last reads, from a granule on."""
    start = f.load("ptr", f.offset(pointer(f, "read_times"), f.shl(reader, 3)))
    return f.offset(start, f.shl(first, 2))
