"""cp.async for the sanitizers: a copy's data does not arrive before it is waited for.

A copy reads its source when it is issued and waits in a queue of its warp. Each lane counts the
groups that it has committed; a wait lands the copies of the groups that it covers, lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal, vector
from gemmkit.emulator.codegen.layout import (
    LANES,
    PATTERN,
    SITE,
    STRIP_LANES,
    STRIPS,
    WARP,
    WINDOW_BYTES,
    WORKER,
)
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER as SITE_AT
from gemmkit.emulator.codegen.runtime.bounds import C, P, allowed
from gemmkit.emulator.codegen.runtime.copies import (
    CACHED,
    FROM,
    FROM_BASE,
    NULL,
    SIZES,
    TO,
    TO_BASE,
    count_copy,
    lanes_of_size,
)
from gemmkit.emulator.codegen.runtime.copies import length as length_of
from gemmkit.emulator.codegen.runtime.counts import Memo
from gemmkit.emulator.codegen.runtime.patterns import BASE, element, lanes_of, lanes_where
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.runtime.shadow import (
    BYTES,
    ROW_BYTES,
    append,
    common_word,
    each_word,
    foreign_bits,
    log_entry,
    own_word,
    publish,
    report,
    shadow,
    tell,
)
from gemmkit.emulator.codegen.shadow_layout import (
    BOUNDS,
    COMMITS,
    COMMON,
    COPY,
    COPY_BYTES,
    COPY_EPOCH_BITS,
    COPY_QUEUE,
    COPY_SITE,
    COPY_THREAD,
    LOG_ENTRY_BYTES,
    NOTHING_LEFT,
    OWN,
    OWN_READ,
    OWN_WRITTEN,
    RACE,
    SENT,
    SHADOW,
    STORED,
    TAG_WARP,
    WAIT_OLDEST,
    WAITS,
)

Length = Callable[[Value], Value]

_SLOT, _LANES = Value("ptr", "%slot"), Value("i32", "%lanes")


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_send(module)
    _define_mark_copies(module)
    _define_land(module)
    _define_commit(module)
    _define_wait(module)
    for size in (4, 8, 16):
        _define_copy(module, size)


def _define_send(module: Module) -> None:
    """send(worker, site, pattern, base, bytes, row bytes): copies to these addresses are issued."""
    parameters = (C, SITE_AT, P, BASE, BYTES, ROW_BYTES)
    with module.function("gemmkit.send", "void", parameters) as f:
        s = shadow(f)
        own = f.load("ptr", s, SHADOW["own"])
        race, within = (f.variable(literal("i64", 0)) for _ in range(2))

        def look(word: Value, touched: Value) -> None:
            common, mine = common_word(f, s, word), own_word(f, own, word)
            alarm = f.load("i64", common, COMMON["alarm"])
            by_me, read_by_me = (f.load("i64", mine, index) for index in (OWN_WRITTEN, OWN_READ))
            foreign = f.or_(foreign_bits(f, word, OWN_WRITTEN), alarm)
            for found, bits in (
                (race, f.or_(foreign, foreign_bits(f, word, OWN_READ))),
                (within, f.or_(by_me, read_by_me)),
            ):
                f.set(found, f.or_(f.get("i64", found), f.and_(bits, touched)))

        def mark(word: Value, touched: Value) -> None:
            common = common_word(f, s, word)
            f.store(f.or_(f.load("i64", common, COMMON["alarm"]), touched), common, COMMON["alarm"])

        each_word(f, s, look)
        with f.when(f.compare("ne", f.get("i64", race), 0)):
            report(f, RACE, extra=f.or_(BYTES, literal("i64", STORED << 8)))
        with f.when(f.compare("ne", f.get("i64", within), 0)):
            f.call("gemmkit.look_back", "void", C, SITE_AT, P, BASE, BYTES,
                   literal("i64", STORED))  # fmt: skip
        each_word(f, s, mark)
        with f.when(f.compare("ne", f.load("i64", s, SHADOW["asynchronous"]), 0)):
            append(f, s, literal("i64", SENT))
        f.ret()


def _define_mark_copies(module: Module) -> None:
    """mark_copies(worker, slot, lanes): record the last copy to each of their granules."""
    with module.function("gemmkit.mark_copies", "void", (C, _SLOT, _LANES)) as f:
        s = shadow(f)
        copies, shift = (
            f.load("ptr", s, SHADOW["copies"]),
            f.load("i64", s, SHADOW["granule_shift"]),
        )
        warp = f.and_(f.lshr(f.load("i64", s, SHADOW["own_tag"]), TAG_WARP), 255)
        epoch = f.and_(f.load("i64", s, SHADOW["epoch"]), (1 << COPY_EPOCH_BITS) - 1)
        note = f.or_(f.shl(f.load("i64", _SLOT, COPY["site"]), COPY_SITE), epoch)
        note = f.or_(note, f.shl(warp, COPY_THREAD + LANES.bit_length() - 1))
        count = f.lshr(f.load("i64", _SLOT, COPY["bytes"]), shift)
        with f.each_bit(_LANES) as lane:
            whose = f.or_(note, f.shl(lane, COPY_THREAD))
            first = f.lshr(_target(f, lane), shift)
            with f.loop(count) as further:
                f.store(whose, copies, f.shl(f.add(first, further), 3))
        f.ret()


def _target(f: Function, lane: Value) -> Value:
    """The target of a lane's copy in shared memory."""
    return f.resize(element(f, f.offset(_SLOT, COPY["targets"]), lane, 32), 64)


def _define_land(module: Module) -> None:
    """land(worker, slot, lanes): the copies of these lanes arrive."""
    with module.function("gemmkit.land", "void", (C, _SLOT, _LANES)) as f:
        s = shadow(f)
        own, memory = f.load("ptr", s, SHADOW["own"]), f.load("ptr", C, WORKER["shared"])
        size, shift = f.load("i64", _SLOT, COPY["bytes"]), f.load("i64", s, SHADOW["granule_shift"])
        quad = f.compare("eq", size, 16)
        ones = f.sub(f.shl(literal("i64", 1), f.lshr(size, shift)), 1)
        with f.each_bit(_LANES) as lane:
            target = _target(f, lane)
            to, data = (
                f.offset(memory, target),
                f.offset(_SLOT, f.add(f.shl(lane, 4), COPY["data"])),
            )
            with f.when(quad):
                f.store(f.load("<4 x i32>", data, align=16), to, align=16)
            with f.when(f.not_(quad)), f.loop(f.lshr(size, 2)) as word:
                step = f.shl(word, 2)
                f.store(f.load("i32", data, step), to, step)
            first = f.lshr(target, shift)
            bits = f.shl(ones, f.and_(first, 63))
            common = common_word(f, s, f.lshr(first, 6))
            for name in ("written", "initialized"):
                f.store(f.or_(f.load("i64", common, COMMON[name]), bits), common, COMMON[name])
            for name in ("alarm", "atomic"):
                kept = f.and_(f.load("i64", common, COMMON[name]), f.not_(bits))
                f.store(kept, common, COMMON[name])
            mine = own_word(f, own, f.lshr(first, 6))
            f.store(f.or_(f.load("i64", mine, OWN_WRITTEN), bits), mine, OWN_WRITTEN)
            publish(f, s, f.lshr(first, 6), bits, OWN_WRITTEN)
        f.call("gemmkit.mark_copies", "void", C, _SLOT, _LANES)
        left = f.and_(f.resize(f.load("i64", _SLOT), 32), f.not_(_LANES))
        f.store(f.resize(left, 64), _SLOT)
        with f.when(f.compare("ne", _LANES, 0)):
            # An empty entry, so that positions in the log distinguish before from after.
            count = f.load("i64", s, SHADOW["log_count"])
            f.clear(log_entry(f, s, count), LOG_ENTRY_BYTES)
            now = f.add(count, 1)
            f.store(now, s, SHADOW["log_count"])
            for name in ("landed", "last_access"):
                f.store(now, own, OWN[name])
            _note_landing(f, s, now)
        f.ret()


def _note_landing(f: Function, s: Value, now: Value) -> None:
    """Where the log ends when the copies of lanes have landed."""
    landed, shift = f.load("ptr", s, SHADOW["landed_at"]), f.load("i64", s, SHADOW["granule_shift"])
    count = f.lshr(f.load("i64", _SLOT, COPY["bytes"]), shift)
    with f.each_bit(_LANES) as lane:
        first = f.lshr(_target(f, lane), shift)
        with f.loop(count) as further:
            f.store(now, landed, f.shl(f.add(first, further), 3))


def _define_commit(module: Module) -> None:
    """commit(worker, lanes): commit the group of copies of these lanes."""
    with module.function(f"gemmkit.{PREFIX}commit", "void", (C, _LANES)) as f:
        with f.when(f.compare("ne", _LANES, 0)):
            tell(f, shadow(f), COMMITS)
        groups = f.offset(f.load("ptr", shadow(f), SHADOW["own"]), OWN["groups"])
        for strip in range(STRIPS):
            pointer = strip * STRIP_LANES * 4
            count = f.load(vector("i32"), groups, pointer, 4)
            more = f.resize(lanes_of(f, _LANES, strip), 32)
            f.store(f.add(count, more), groups, pointer, 4)
        f.ret()


def _define_wait(module: Module) -> None:
    """wait(worker, warp, lanes, groups that may stay in flight, or WAITS_FOR_ALL, or
    ARRIVES_FOR_ALL)."""
    going, warp = Value("i32", "%going"), Value("ptr", "%w")
    with module.function(f"gemmkit.{PREFIX}wait", "void", (C, warp, _LANES, going)) as f:
        oldest = f.variable(literal("i64", NOTHING_LEFT))
        alive = f.not_(f.load("i32", warp, WARP["exited"]))
        own = f.load("ptr", shadow(f), SHADOW["own"])
        queue = f.load("ptr", own, OWN["copy_queue"])
        kept = f.variable(literal("i64", 0))
        everything = f.compare("slt", going, 0)
        with f.loop(f.load("i64", own, OWN["copies"])) as number:
            slot = f.offset(queue, f.binary("mul", number, COPY_BYTES))

            def arrives(strip: int, slot: Value = slot) -> Value:
                offset = strip * STRIP_LANES * 4
                closed = f.load(vector("i32"), own, OWN["groups"] + offset, 4)
                group = f.load(vector("i32"), slot, COPY["groups"] + offset, 4)
                return f.compare("slt", group, f.sub(closed, f.splat(going)))

            ready = lanes_where(f, arrives, f.resize(everything, 32, signed=True))
            on_way = f.resize(f.load("i64", slot), 32)
            ready = f.and_(f.and_(ready, _LANES), on_way)
            with f.when(f.compare("ne", ready, 0)):
                f.call("gemmkit.land", "void", C, slot, ready)
            on_way = f.resize(f.load("i64", slot), 32)
            with f.when(f.compare("ne", f.and_(on_way, alive), 0)):
                time = f.load("i64", slot, COPY["time"])
                f.set(oldest, f.intrinsic("umin", f.get("i64", oldest), time))
            with f.when(f.compare("ne", on_way, 0)):
                place_ = f.get("i64", kept)
                to = f.offset(queue, f.binary("mul", place_, COPY_BYTES))
                with f.when(f.compare("ne", place_, number)):
                    f.move(to, slot, COPY_BYTES)
                f.set(kept, f.add(place_, 1))
        f.store(f.get("i64", kept), own, OWN["copies"])
        with f.when(f.compare("ne", _LANES, 0)):
            left = f.shl(f.get("i64", oldest), WAIT_OLDEST)
            tell(f, shadow(f), WAITS, f.or_(left, f.and_(f.resize(going, 64), (1 << 32) - 1)))
        f.ret()


def _define_copy(module: Module, size: int) -> None:
    """sanitized_copy_async_<bytes>(worker, site, to, to_base, from, from_base, sizes, cached)."""
    parameters = (C, SITE_AT, TO, TO_BASE, FROM, FROM_BASE, SIZES, CACHED)
    whole = literal("i64", size)
    with module.function(f"gemmkit.{PREFIX}copy_async_{size}", "void", parameters) as f:
        lanes, reading = (f.load("i32", each, PATTERN.mask) for each in (TO, FROM))
        with f.when(f.compare("eq", lanes, 0)):
            f.ret()
        good = f.variable(lanes)
        certain = allowed(f, "shared", size, TO, TO_BASE, by_array=True)
        with f.when(f.not_(certain)):
            _refuse_lanes(f, good, lanes, TO, TO_BASE, "shared", lambda _: whole)
        count_copy(f, size)
        with f.when(f.compare("ne", reading, 0)):
            memo = Memo(f, "global", size, store=False, p=FROM, base=FROM_BASE)
            memo.find()
            memo.add()
            memo.add_tags()
            certain = allowed(f, "global", size, FROM, FROM_BASE)
            with f.when(f.not_(certain)):
                _refuse_lanes(f, good, reading, FROM, FROM_BASE, "global",
                              lambda lane: length_of(f, lane, whole))  # fmt: skip
            full = f.variable(lanes)
            with f.when(f.compare("ne", SIZES, NULL)):
                f.set(full, lanes_of_size(f, "uge", size))
            # Lanes that read only a part are not checked, nor is a copy that is refused in some
            # lanes.
            looked_at = f.and_(f.get("i32", full), f.get("i32", good))
            with f.when(f.compare("eq", f.and_(reading, f.not_(looked_at)), 0)):
                f.call("gemmkit.note_load_global", "void", C, SITE_AT, FROM, FROM_BASE, whole)
        with f.when(f.compare("eq", f.get("i32", good), lanes)):
            f.call("gemmkit.send", "void", C, SITE_AT, TO, TO_BASE, whole, whole)
        _queue(f, f.get("i32", good), reading, size)
        f.ret()


def _refuse_lanes(
    f: Function, good: Value, lanes: Value, p: Value, base: Value, space: str, length: Length
) -> None:
    with f.each_bit(lanes) as lane:
        address = f.add(base, element(f, p, lane, 64))
        if space == "shared":
            address = f.and_(address, WINDOW_BYTES - 1)
        fits = f.call(f"gemmkit.admit_{space}", "i1", C, SITE_AT, address, length(lane))
        with f.when(f.not_(fits)):
            extra = f.or_(lane, literal("i64", 256 if space == "shared" else 0))
            report(f, BOUNDS, p, base, extra)
            own = f.shl(literal("i32", 1), f.resize(lane, 32))
            f.set(good, f.and_(f.get("i32", good), f.not_(own)))


def _queue(f: Function, lanes: Value, reading: Value, size: int) -> None:
    """Append a copy and its data to the warp's queue."""
    own = f.load("ptr", shadow(f), SHADOW["own"])
    queue = f.load("ptr", own, OWN["copy_queue"])
    with f.when(f.compare("uge", f.load("i64", own, OWN["copies"]), COPY_QUEUE)):
        f.call("gemmkit.land", "void", C, queue, f.resize(f.load("i64", queue), 32))
        rest = (COPY_QUEUE - 1) * COPY_BYTES
        f.move(queue, f.offset(queue, COPY_BYTES), rest)
        f.store(literal("i64", COPY_QUEUE - 1), own, OWN["copies"])
    count = f.load("i64", own, OWN["copies"])
    f.store(f.add(count, 1), own, OWN["copies"])
    slot = f.offset(queue, f.binary("mul", count, COPY_BYTES))
    site, worker = (f.integer(each) for each in (SITE_AT, C))
    f.store(f.resize(lanes, 64), slot, COPY["lanes"])
    f.store(literal("i64", size), slot, COPY["bytes"])
    f.store(f.sub(site, worker), slot, COPY["site"])
    with f.when(f.compare("ne", f.load("ptr", shadow(f), SHADOW["open_groups"]), NULL)):
        warp = f.lshr(f.load("i64", shadow(f), SHADOW["own_tag"]), TAG_WARP)
        group = f.offset(f.load("ptr", shadow(f), SHADOW["open_groups"]), f.shl(warp, 2))
        f.store(f.resize(f.load("i32", group), 64), slot, COPY["time"])
    f.move(f.offset(slot, COPY["groups"]), f.offset(own, OWN["groups"]), 4 * LANES)
    with f.each_bit(lanes) as lane:
        target = f.resize(f.add(TO_BASE, element(f, TO, lane, 64)), 32)
        f.store(target, f.offset(slot, f.add(f.shl(lane, 2), COPY["targets"])))
        data = f.offset(slot, f.add(f.shl(lane, 4), COPY["data"]))
        f.clear(data, size)
        reads = f.and_(f.lshr(reading, f.resize(lane, 32)), 1)
        with f.when(f.compare("ne", reads, 0)):
            address = f.add(FROM_BASE, element(f, FROM, lane, 64))
            here = f.pointer(address)
            length = length_of(f, lane, literal("i64", size))
            whole = f.compare("eq", length, size)
            with f.when(whole):
                kind = "<4 x i32>" if size == 16 else f"i{8 * size}"
                f.store(f.load(kind, here, align=size), data, align=size)
            with f.when(f.not_(whole)):
                f.move(data, here, length)
            with f.when(f.compare("ne", SIZES, NULL)):
                f.increase(SITE_AT, SITE["bytes_copied"], length)
    f.call("gemmkit.mark_copies", "void", C, slot, lanes)
