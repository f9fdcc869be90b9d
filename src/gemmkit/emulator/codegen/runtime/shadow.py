"""Records each access to shared memory for the sanitizers, and finds suspicious ones.

An access is a few words of a bitmap. Python examines what looks wrong there; it alone decides, and
names both sides.
"""

from __future__ import annotations

from collections.abc import Callable

from gemmkit.emulator.codegen.ir import Function, Module, Value, literal
from gemmkit.emulator.codegen.layout import PATTERN, SITE_BYTES, WORKER
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.patterns import BASE, element
from gemmkit.emulator.codegen.shadow_layout import (
    COMMON,
    COMMON_BYTES,
    LOADED,
    LOG_ENTRIES,
    LOG_ENTRY,
    LOG_ENTRY_BYTES,
    OWN,
    OWN_BITMAPS,
    OWN_READ,
    OWN_WORD_BYTES,
    OWN_WRITTEN,
    RACE,
    REPORT_BYTES,
    REPORTED,
    REPORTS_PER_BLOCK,
    SHADOW,
    SHADOW_SITE,
    SHADOW_SITE_BYTES,
    TAG_BYTES,
    TAG_KIND,
    UNINITIALIZED,
    UPDATED,
)

BYTES, ROW_BYTES = Value("i64", "%bytes"), Value("i64", "%row")
KIND = Value("i64", "%kind")
NULL, ZERO = Value("ptr", "null"), literal("i64", 0)
_WINDOW = 48

Body = Callable[[Value, Value], None]


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    _define_report(module)
    _define_starts(module)
    _define_read(module)
    _define_suspect_read(module)
    _define_write(module)


def shadow(f: Function) -> Value:
    """The worker's shadow."""
    return f.load("ptr", C, WORKER["shadow"])


def site_shadow(f: Function, s: Value, site: Value = SITE_POINTER) -> Value:
    """The sanitizers' record of a memory instruction."""
    distance = f.sub(f.integer(site), f.integer(C))
    scale = (SHADOW_SITE_BYTES // SITE_BYTES).bit_length() - 1
    return f.offset(f.load("ptr", s, SHADOW["sites"]), f.shl(distance, scale))


def _define_report(module: Module) -> None:
    """report(worker, class, site, pattern, base, extra): something looks wrong.

    It is reported to Python once per epoch, a few times per block; further ones are counted.
    """
    what, extra = Value("i64", "%what"), Value("i64", "%extra")
    parameters = (C, what, SITE_POINTER, P, BASE, extra)
    with module.function("gemmkit.report", "void", parameters) as f:
        s = shadow(f)
        reported = f.offset(site_shadow(f, s), f.binary("mul", what, REPORT_BYTES))
        block, epoch = f.load("i64", C, WORKER["block"]), f.load("i64", s, SHADOW["epoch"])
        with f.when(f.compare("ne", f.load("i64", reported, REPORTED["block"]), block)):
            f.store(block, reported, REPORTED["block"])
            f.store(literal("i64", 0), reported, REPORTED["times"])
        again = f.compare("eq", f.load("i64", reported, REPORTED["epoch"]), epoch)
        often = f.compare("uge", f.load("i64", reported, REPORTED["times"]), REPORTS_PER_BLOCK)
        with f.when(f.or_(again, often)):
            f.increase(reported, REPORTED["unreported"], 1)
            f.ret()
        true = event(f, what, BASE, extra, site=SITE_POINTER, p=P)
        f.store(epoch, reported, REPORTED["epoch"])
        f.increase(reported, REPORTED["times"], f.resize(true, 64))
        f.ret()


def event(
    f: Function,
    what: Value | int,
    base: Value,
    extra: Value = ZERO,
    *,
    site: Value = NULL,
    p: Value = NULL,
) -> Value:
    """Report to Python; 1 if it agrees that something is wrong.

    `base` is the base address of an access, or the number of an instruction that makes none.
    """
    function = f.load("ptr", shadow(f), SHADOW["event"])
    number = literal("i64", what) if isinstance(what, int) else what
    return f.call_pointer(function, "i32", number, site, p, base, extra)


def tell(f: Function, s: Value, what: int, base: Value = ZERO) -> None:
    """Tell Python of synchronization, in asynchronous kernels."""
    with f.when(f.compare("ne", f.load("i64", s, SHADOW["asynchronous"]), 0)):
        event(f, what, base)


def tell_of_barriers(f: Function, s: Value, what: int, base: Value = ZERO) -> None:
    """The same also in kernels in which a part of a block meets at barriers."""
    either = f.or_(f.load("i64", s, SHADOW["asynchronous"]), f.load("i64", s, SHADOW["pairs"]))
    with f.when(f.compare("ne", either, 0)):
        event(f, what, base)


def report(
    f: Function, what: int, p: Value = P, base: Value = BASE, extra: int | Value = 0
) -> None:
    """Call it."""
    more = literal("i64", extra) if isinstance(extra, int) else extra
    f.call("gemmkit.report", "void", C, literal("i64", what), SITE_POINTER, p, base, more)


def _define_starts(module: Module) -> None:
    """starts(shadow, pattern): where the lanes' accesses begin, as sets of granules."""
    s = Value("ptr", "%s")
    with module.function("gemmkit.starts", "void", (s, P)) as f:
        shift = f.load("i64", s, SHADOW["granule_shift"])
        least = f.load("i64", P, PATTERN.least)
        left = f.variable(f.load("i32", P, PATTERN.mask))
        pairs, seen = f.variable(literal("i64", 0)), f.variable(literal("i64", 0))
        head, body, done = (f.name(each) for each in ("head", "body", "done"))
        f.branch(head)
        f.label(head)
        f.branch_if(f.compare("ne", f.get("i32", left), 0), body, done)
        f.label(body)
        first = f.variable(literal("i64", (1 << 62)))
        with f.each_bit(f.get("i32", left)) as lane:
            f.set(first, f.intrinsic("umin", f.get("i64", first), _start(f, lane, least, shift)))
        found = f.variable(literal("i64", 0))
        with f.each_bit(f.get("i32", left)) as lane:
            distance = f.sub(_start(f, lane, least, shift), f.get("i64", first))
            with f.when(f.compare("ult", distance, _WINDOW)):
                one = f.shl(literal("i64", 1), distance)
                f.set(found, f.or_(f.get("i64", found), one))
                own = f.shl(literal("i32", 1), f.resize(lane, 32))
                f.set(left, f.and_(f.get("i32", left), f.not_(own)))
        entry = f.offset(P, f.add(f.shl(f.get("i64", pairs), 4), PATTERN.starts))
        f.store(f.get("i64", first), entry)
        f.store(f.get("i64", found), entry, 8)
        f.set(seen, f.add(f.get("i64", seen), f.intrinsic("ctpop", f.get("i64", found))))
        f.set(pairs, f.add(f.get("i64", pairs), 1))
        f.branch(head)
        f.label(done)
        f.store(f.get("i64", pairs), P, PATTERN.start_pairs)
        lanes = f.resize(f.intrinsic("ctpop", f.load("i32", P, PATTERN.mask)), 64)
        f.store(f.resize(f.compare("ne", f.get("i64", seen), lanes), 64), P, PATTERN.overlaps)
        f.ret()


def _start(f: Function, lane: Value, least: Value, shift: Value) -> Value:
    return f.lshr(f.sub(element(f, P, lane, 64), least), shift)


def each_word(f: Function, s: Value, body: Body) -> None:
    """Call `body` for each word of the bitmap that an access touches, with its bits there.

    An access is BYTES wide; if ROW_BYTES is larger, adjacent ones follow up to that many bytes.
    """
    with f.when(f.compare("eq", f.load("i64", P, PATTERN.start_pairs), 0)):
        f.call("gemmkit.starts", "void", s, P)
    shift = f.load("i64", s, SHADOW["granule_shift"])
    first = f.lshr(f.add(BASE, f.load("i64", P, PATTERN.least)), shift)
    width = f.resize(f.lshr(BYTES, shift), 128)
    row = f.compare("ugt", ROW_BYTES, BYTES)
    with f.loop(f.load("i64", P, PATTERN.start_pairs)) as pair:
        entry = f.offset(P, f.add(f.shl(pair, 4), PATTERN.starts))
        at = f.add(first, f.load("i64", entry))
        # Accesses begin at multiples of their width, so a subtraction sets all their bits.
        starts = f.resize(f.load("i64", entry, 8), 128)
        touched = f.sub(f.shl(starts, width), starts)
        for times in (1, 2):
            more = f.select(row, f.shl(width, times - 1), 0)
            touched = f.or_(touched, f.shl(touched, more))
        touched = f.shl(touched, f.resize(f.and_(at, 63), 128))
        word = f.lshr(at, 6)
        body(word, f.resize(touched, 64))
        high = f.resize(f.lshr(touched, 64), 64)
        with f.when(f.compare("ne", high, 0)):
            body(f.add(word, 1), high)


def common_word(f: Function, s: Value, word: Value) -> Value:
    """A word of the block's bitmaps."""
    offset = f.shl(word, COMMON_BYTES.bit_length() - 1)
    return f.offset(f.load("ptr", s, SHADOW["common"]), offset)


def own_word(f: Function, own: Value, word: Value) -> Value:
    """A word of a warp's bitmaps."""
    offset = f.add(f.shl(word, OWN_WORD_BYTES.bit_length() - 1), OWN_BITMAPS)
    return f.offset(own, offset)


def log_entry(f: Function, s: Value, number: Value) -> Value:
    """The entry of the log for the access of that number."""
    offset = f.shl(f.and_(number, LOG_ENTRIES - 1), LOG_ENTRY_BYTES.bit_length() - 1)
    return f.offset(f.load("ptr", s, SHADOW["log"]), offset)


def append(f: Function, s: Value, kind: Value) -> None:
    """Add the access to the log."""
    count = f.load("i64", s, SHADOW["log_count"])
    entry = log_entry(f, s, count)
    f.store(P, entry, LOG_ENTRY["pattern"])
    f.store(BASE, entry, LOG_ENTRY["base"])
    f.store(f.load("i64", P, PATTERN.serial), entry, LOG_ENTRY["serial"])
    site, worker = (f.integer(each) for each in (SITE_POINTER, C))
    tag = f.add(f.sub(site, worker), f.load("i64", s, SHADOW["own_tag"]))
    tag = f.add(tag, f.shl(ROW_BYTES, TAG_BYTES))
    f.store(f.add(tag, f.shl(kind, TAG_KIND)), entry, LOG_ENTRY["tag"])
    now = f.add(count, 1)
    f.store(now, s, SHADOW["log_count"])
    f.store(now, f.load("ptr", s, SHADOW["own"]), OWN["last_access"])


def _define_read(module: Module) -> None:
    """read(worker, site, pattern, base, bytes, row bytes): a load of shared memory."""
    parameters = (C, SITE_POINTER, P, BASE, BYTES, ROW_BYTES)
    with module.function("gemmkit.read", "void", parameters) as f:
        s = shadow(f)
        own = f.load("ptr", s, SHADOW["own"])
        suspicious = f.variable(literal("i64", 0))

        def look(word: Value, touched: Value) -> None:
            common, mine = common_word(f, s, word), own_word(f, own, word)
            written, ready, alarm = (
                f.load("i64", common, COMMON[each]) for each in ("written", "initialized", "alarm")
            )
            odd = f.and_(f.or_(f.or_(written, alarm), f.not_(ready)), touched)
            f.set(suspicious, f.or_(f.get("i64", suspicious), odd))
            f.store(f.or_(f.load("i64", mine, OWN_READ), touched), mine, OWN_READ)
            publish(f, s, word, touched, OWN_READ)

        each_word(f, s, look)
        with f.when(f.compare("ne", f.get("i64", suspicious), 0)):
            f.call("gemmkit.suspect_read", "void", *parameters)
        with f.when(f.compare("ne", f.load("ptr", s, SHADOW["first_times"]), NULL)):
            f.call("gemmkit.find_first", "void", C, SITE_POINTER, P, BASE, ROW_BYTES)
        append(f, s, literal("i64", LOADED))
        f.ret()


def _define_suspect_read(module: Module) -> None:
    """suspect_read(…): report what may be wrong with a load."""
    parameters = (C, SITE_POINTER, P, BASE, BYTES, ROW_BYTES)
    with module.function("gemmkit.suspect_read", "void", parameters, inline=False) as f:
        s = shadow(f)
        own = f.load("ptr", s, SHADOW["own"])
        race, unready, within = (f.variable(literal("i64", 0)) for _ in range(3))

        def look(word: Value, touched: Value) -> None:
            common, mine = common_word(f, s, word), own_word(f, own, word)
            ready, alarm = (
                f.load("i64", common, COMMON[each]) for each in ("initialized", "alarm")
            )
            by_me = f.load("i64", mine, OWN_WRITTEN)
            foreign = f.or_(foreign_bits(f, word, OWN_WRITTEN), alarm)
            for found, bits in (
                (race, foreign),
                (unready, f.not_(f.or_(ready, alarm))),
                (within, by_me),
            ):
                f.set(found, f.or_(f.get("i64", found), f.and_(bits, touched)))

        each_word(f, s, look)
        for found, what in ((race, RACE), (unready, UNINITIALIZED)):
            with f.when(f.compare("ne", f.get("i64", found), 0)):
                report(f, what, extra=ROW_BYTES)
        with f.when(f.compare("ne", f.get("i64", within), 0)):
            f.call("gemmkit.look_back", "void", C, SITE_POINTER, P, BASE, ROW_BYTES,
                   literal("i64", LOADED))  # fmt: skip
            _look_at_copies(f, own)
        f.ret()


def _look_at_copies(f: Function, own: Value) -> None:
    """The running warp accesses what it has written, maybe by copies that have just landed."""
    landed, in_step = (f.load("i64", own, OWN[each]) for each in ("landed", "in_step"))
    with f.when(f.compare("ugt", landed, in_step)):
        f.call("gemmkit.copied_by_others", "void", C, SITE_POINTER, P, BASE, ROW_BYTES)


def _define_write(module: Module) -> None:
    """write(worker, site, pattern, base, bytes, row bytes, kind): a store, or an atomic."""
    parameters = (C, SITE_POINTER, P, BASE, BYTES, ROW_BYTES, KIND)
    with module.function("gemmkit.write", "void", parameters) as f:
        s = shadow(f)
        own = f.load("ptr", s, SHADOW["own"])
        race, unready, within, fresh = (f.variable(literal("i64", 0)) for _ in range(4))
        atomic = f.resize(f.compare("eq", KIND, UPDATED), 64, signed=True)
        reads = f.load("i64", site_shadow(f, s), SHADOW_SITE["overwrites"])
        reads = f.resize(f.compare("eq", reads, 0), 64, signed=True)

        def look(word: Value, touched: Value) -> None:
            common, mine = common_word(f, s, word), own_word(f, own, word)
            _, ready, alarm, updated = _block_bits(f, common)
            by_me, read_by_me = (f.load("i64", mine, index) for index in (OWN_WRITTEN, OWN_READ))
            foreign = foreign_bits(f, word, OWN_WRITTEN)
            # Atomics do not race with each other.
            plain = f.and_(foreign, f.not_(f.and_(updated, atomic)))
            alarmed = f.and_(alarm, f.not_(f.and_(updated, atomic)))
            against = f.or_(f.or_(plain, alarmed), foreign_bits(f, word, OWN_READ))
            missing = f.and_(f.and_(atomic, reads), f.not_(f.or_(ready, alarm)))
            for found, bits in (
                (race, against),
                (unready, missing),
                (within, f.or_(by_me, read_by_me)),
                (fresh, f.not_(ready)),
            ):
                f.set(found, f.or_(f.get("i64", found), f.and_(bits, touched)))

        def mark(word: Value, touched: Value) -> None:
            common, mine = common_word(f, s, word), own_word(f, own, word)
            written, ready, alarm, updated = _block_bits(f, common)
            by_me = f.load("i64", mine, OWN_WRITTEN)
            foreign = f.and_(written, f.not_(by_me))
            meeting = f.and_(f.and_(foreign, updated), f.and_(atomic, touched))
            first = f.and_(f.and_(atomic, touched), f.not_(written))
            kept = f.or_(f.and_(updated, f.or_(f.not_(touched), atomic)), first)
            for name, bits in (
                ("written", f.or_(written, touched)),
                ("initialized", f.or_(ready, touched)),
                ("alarm", f.or_(alarm, meeting)),
                ("atomic", kept),
            ):
                f.store(bits, common, COMMON[name])
            f.store(f.or_(by_me, touched), mine, OWN_WRITTEN)
            publish(f, s, word, touched, OWN_WRITTEN)

        each_word(f, s, look)
        for found, what in ((race, RACE), (unready, UNINITIALIZED)):
            with f.when(f.compare("ne", f.get("i64", found), 0)):
                report(f, what, extra=f.or_(ROW_BYTES, f.shl(KIND, 8)))
        with f.when(f.compare("ne", f.get("i64", within), 0)):
            f.call("gemmkit.look_back", "void", C, SITE_POINTER, P, BASE, ROW_BYTES, KIND)
            _look_at_copies(f, own)
        with f.when(f.compare("ne", f.load("ptr", s, SHADOW["first_times"]), NULL)):
            here = (C, SITE_POINTER, P, BASE, ROW_BYTES)
            with f.when(f.compare("ne", f.and_(atomic, reads), 0)):
                f.call("gemmkit.find_first", "void", *here)
            # What reads memory that was never written is reported anyway.
            fresh_bits = f.and_(f.get("i64", fresh), f.not_(f.and_(atomic, reads)))
            with f.when(f.compare("ne", fresh_bits, 0)):
                f.call("gemmkit.first_writes", "void", *here)
        each_word(f, s, mark)
        append(f, s, KIND)
        f.ret()


def _block_bits(f: Function, common: Value) -> list[Value]:
    """A word of each of the block's bitmaps."""
    return [f.load("i64", common, COMMON[name]) for name in COMMON]


def foreign_bits(f: Function, word: Value, index: int) -> Value:
    """The reads or writes of other warps, in a word, that the running one may race with."""
    return f.call("gemmkit.foreign", "i64", C, word, literal("i64", index))


def publish(f: Function, s: Value, word: Value, bits: Value, index: int) -> None:
    """Record a read or write of the running warp, if each pair of warps is tracked."""
    with f.when(f.compare("ne", f.load("ptr", s, SHADOW["pairs"]), NULL)):
        f.call("gemmkit.publish", "void", C, word, bits, literal("i64", index))
