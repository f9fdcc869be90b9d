"""Compares logged accesses to shared memory with earlier ones by vector clocks.

This is what `sanitizer.granules` does for bulk copies, for each entry of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import LANES, PATTERN, SITE_BYTES
from gemmkit.emulator.codegen.runtime import logged_barriers, logged_products
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.comparison import T, field, pointer
from gemmkit.emulator.codegen.runtime.patterns import element
from gemmkit.emulator.codegen.runtime.shadow import log_entry, shadow
from gemmkit.emulator.codegen.shadow_layout import (
    COMPARISON,
    LOADED,
    LOG_ENTRY,
    MULTIPLIED,
    READS_WANTED,
    REPORTED_PAIRS,
    SENT,
    SHADOW,
    SUSPICIOUS,
    TAG_BYTES,
    TAG_KIND,
    TAG_WARP,
    TOLD,
    UPDATED,
)

NULL = Value("ptr", "null")
FIRST, END = Value("i64", "%first"), Value("i64", "%end")
NAME = "gemmkit.compare_logged"


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_suspicious(module)
    _define_compare(module)


def _strong(f: Function, number: Value) -> Value:
    return f.load("i8", f.offset(pointer(f, "strong"), number))


def _define_suspicious(module: Module) -> None:
    """suspicious(table, tag, serial) -> whether a conflict of an access like this one is new: the
    first of its warp, kind and pattern in one turn of the warp."""
    tag, serial = Value("i64", "%tag"), Value("i64", "%serial")
    with module.function("gemmkit.suspicious", "i1", (T, tag, serial), inline=False) as f:
        kind = f.lshr(tag, TAG_WARP)
        pairs, count = f.offset(T, COMPARISON["reported"]), field(f, "reports")
        with f.loop(count) as each:
            place = f.offset(pairs, f.shl(each, 4))
            same = f.and_(f.compare("eq", f.load("i64", place), kind),
                          f.compare("eq", f.load("i64", place, 8), serial))  # fmt: skip
            with f.when(same):
                f.ret(literal("i1", 0))
        with f.when(f.compare("ult", count, REPORTED_PAIRS)):
            place = f.offset(pairs, f.shl(count, 4))
            f.store(kind, place)
            f.store(serial, place, 8)
            f.store(f.add(count, 1), T, COMPARISON["reports"])
        f.ret(literal("i1", 1))


@dataclass(frozen=True, slots=True)
class _Access:
    """An entry's values: the actor and its time, the party of lane 0, what the actor knows."""

    actor: Value
    time: Value
    party: Value
    known: Value
    strong: Value


def _define_compare(module: Module) -> None:
    """compare_logged(worker, table, first, end) -> why it stops: at `next` there is an entry that
    is not an access, and needs Python (TOLD); the entry before `next` is suspicious; the actor
    needs an array for its reads; or 0, at the end."""
    with module.function(NAME, "i32", (C, T, FIRST, END)) as f:
        s = shadow(f)
        head, body, skip, done = (f.name(each) for each in ("head", "body", "skip", "done"))
        now = f.variable(FIRST)
        f.branch(head)
        f.label(skip)
        f.set(now, f.add(f.get("i64", now), 1))
        f.branch(head)
        f.label(head)
        f.branch_if(f.compare("slt", f.get("i64", now), END), body, done)
        f.label(done)
        f.store(f.get("i64", now), T, COMPARISON["next"])
        f.ret(literal("i32", 0))
        f.label(body)
        entry = log_entry(f, s, f.get("i64", now))
        tag, serial = (f.load("i64", entry, LOG_ENTRY[each]) for each in ("tag", "serial"))
        kind, warp = f.lshr(tag, TAG_KIND), f.and_(f.lshr(tag, TAG_WARP), 255)
        # As the clocks count the warps.
        within, warp = warp, f.add(warp, field(f, "first_warp"))
        with f.when(f.compare("ugt", kind, SENT)):
            # What comes next counts as another turn.
            f.store(literal("i64", -1), T, COMPARISON["turn_of"])
            told = f.name("told")
            with f.when(f.compare("ult", kind, MULTIPLIED)):
                clean = f.call(logged_barriers.COMPARE, "i1", T, entry, kind, warp)
                f.branch_if(clean, skip, told)
            with f.when(f.compare("eq", kind, MULTIPLIED)):
                clean = f.call(logged_products.COMPARE, "i1", C, T, entry, within)
                f.branch_if(clean, skip, told)
            f.branch_if(f.call(logged_products.ORDER, "i1", T, entry, kind, within), skip, told)
            f.label(told)
            f.store(f.get("i64", now), T, COMPARISON["next"])
            f.ret(literal("i32", TOLD))
        with f.when(f.compare("ne", warp, field(f, "turn_of"))):
            f.store(warp, T, COMPARISON["turn_of"])
            f.store(literal("i64", 0), T, COMPARISON["reports"])
        access = f.or_(f.compare("ule", kind, UPDATED), f.compare("eq", kind, SENT))
        p = f.load("ptr", entry, LOG_ENTRY["pattern"])
        distance = f.sub(f.integer(p), f.integer(C))
        held = f.compare("ult", distance, field(f, "worker_bytes"))
        real = f.and_(f.and_(access, held), f.compare("ne", serial, 0))
        looked = f.name("looked")
        f.branch_if(real, looked, skip)
        f.label(looked)
        # The pattern must not have been replaced since.
        current = f.name("current")
        same = f.compare("eq", f.load("i64", p, PATTERN.serial), serial)
        f.branch_if(same, current, skip)
        f.label(current)
        sent = f.compare("eq", kind, SENT)
        known = f.offset(pointer(f, "clocks"), f.binary("mul", warp, field(f, "clock_bytes")))
        groups = f.offset(pointer(f, "groups"), f.shl(warp, 2))
        actor = f.select(sent, f.add(field(f, "copies_from"), warp), warp)
        own = f.load("i32", known, f.shl(warp, 2))
        time = f.select(sent, f.load("i32", groups), own)
        site = f.binary("udiv", f.sub(f.and_(tag, 0xFFFFFFFF), field(f, "sites_at")), SITE_BYTES)
        number = f.load("i64", f.offset(pointer(f, "numbers"), f.shl(site, 3)))
        party = f.or_(f.shl(number, 16), f.binary("mul", warp, LANES))
        one = _Access(actor, time, party, known, _strong(f, number))
        f.store(literal("i64", -1), T, COMPARISON["granule"])
        f.store(literal("i64", -1), T, COMPARISON["marked"])
        wanted = f.load("ptr", f.offset(pointer(f, "read_times"), f.shl(actor, 3)))
        loads = f.compare("eq", kind, LOADED)
        with f.when(f.and_(loads, f.compare("eq", wanted, NULL))):
            f.store(f.get("i64", now), T, COMPARISON["next"])
            f.store(actor, T, COMPARISON["other"])
            f.ret(literal("i32", READS_WANTED))
        writes, checked = f.name("writes"), f.name("checked")
        reads = f.name("reads")
        f.branch_if(loads, reads, writes)
        for label, reading in ((reads, True), (writes, False)):
            f.label(label)
            _each_granule(f, s, entry, p, tag, one, reading=reading)
            f.branch(checked)
        f.label(checked)
        clean = f.and_(f.compare("slt", field(f, "granule"), 0),
                       f.compare("slt", field(f, "marked"), 0))  # fmt: skip
        odd, new = f.name("odd"), f.name("new")
        f.branch_if(clean, skip, odd)
        f.label(odd)
        f.branch_if(f.call("gemmkit.suspicious", "i1", T, tag, serial), new, skip)
        f.label(new)
        f.store(f.add(f.get("i64", now), 1), T, COMPARISON["next"])
        f.ret(literal("i32", SUSPICIOUS))


def _each_granule(
    f: Function, s: Value, entry: Value, p: Value, tag: Value, one: _Access, *, reading: bool
) -> None:
    """Compare and record the granules of one entry."""
    shift = f.load("i64", s, SHADOW["granule_shift"])
    base = f.load("i64", entry, LOG_ENTRY["base"])
    wide = f.lshr(f.and_(f.lshr(tag, TAG_BYTES), 255), shift)
    parts = f.intrinsic("umax", wide, literal("i64", 1))
    last = f.variable(literal("i64", -1))
    writer, times, whos, marks = (pointer(f, name) for name in ("writer", "time", "who", "marks"))
    at_actor = f.shl(one.actor, 3)
    read_times, read_whos = (
        f.load("ptr", f.offset(pointer(f, name), at_actor)) for name in ("read_times", "read_whos")
    )
    limit = f.sub(field(f, "granules"), parts)
    with f.each_bit(f.load("i32", p, PATTERN.mask)) as lane:
        first = f.lshr(f.add(base, element(f, p, lane, 64)), shift)
        # A lane that accesses the same place as the one before it differs only in who it is.
        again = f.compare("eq", first, f.get("i64", last))
        within = f.compare("ule", first, limit)
        f.set(last, first)
        who = f.or_(one.party, lane)
        kept = read_whos if reading else whos
        with f.when(f.and_(again, within)), f.loop(parts) as part:
            f.store(who, f.offset(kept, f.shl(f.add(first, part), 3)))
        with f.when(f.and_(f.not_(again), within)), f.loop(parts) as part:
            granule = f.add(first, part)
            at2, at4, at8 = (f.shl(granule, each) for each in (1, 2, 3))
            by = f.resize(f.load("i16", f.offset(writer, at2)), 64)
            written = f.load("i32", f.offset(times, at4))
            late = f.compare("sgt", written, f.load("i32", f.offset(one.known, f.shl(by, 2))))
            with f.when(f.and_(late, f.compare("ne", by, one.actor))):
                _note(f, one, granule, who, f.load("i64", f.offset(whos, at8)), by, wrote=1)
            with f.when(f.compare("ne", f.load("i8", f.offset(marks, granule)), 0)):
                f.store(granule, T, COMPARISON["marked"])
                f.store(who, T, COMPARISON["marked_by"])
            if reading:
                f.store(one.time, f.offset(read_times, at4))
                f.store(who, f.offset(read_whos, at8))
            else:
                _forget_reads(f, one, granule, who)
                f.store(f.resize(one.actor, 16), f.offset(writer, at2))
                f.store(one.time, f.offset(times, at4))
                f.store(who, f.offset(whos, at8))


def _forget_reads(f: Function, one: _Access, granule: Value, who: Value) -> None:
    """A write comes after the reads of a granule by other actors, or should."""
    at4, at8 = f.shl(granule, 2), f.shl(granule, 3)
    with f.loop(field(f, "readers")) as index:
        reader = f.load("i64", f.offset(pointer(f, "reader_list"), f.shl(index, 3)))
        with f.when(f.compare("ne", reader, one.actor)):
            times, whos = (
                f.load("ptr", f.offset(pointer(f, name), f.shl(reader, 3)))
                for name in ("read_times", "read_whos")
            )
            place = f.offset(times, at4)
            knows = f.load("i32", f.offset(one.known, f.shl(reader, 2)))
            with f.when(f.compare("sgt", f.load("i32", place), knows)):
                _note(f, one, granule, who, f.load("i64", f.offset(whos, at8)), reader, wrote=0)
            f.store(literal("i32", 0), place)


def _note(
    f: Function, one: _Access, granule: Value, who: Value, other: Value, actor: Value, *, wrote: int
) -> None:
    """Record the first conflict of an access, one with a write if there is any; instructions whose
    accesses may conflict without a race do not."""
    both = f.and_(one.strong, _strong(f, f.lshr(other, 16)))
    first = f.compare("slt", field(f, "granule"), 0)
    if wrote:
        first = f.or_(first, f.compare("eq", field(f, "wrote"), 0))
    with f.when(f.and_(first, f.compare("eq", both, 0))):
        for name, a in (
            ("granule", granule),
            ("by", who),
            ("other", other),
            ("other_actor", actor),
            ("wrote", literal("i64", wrote)),
        ):
            f.store(a, T, COMPARISON[name])
